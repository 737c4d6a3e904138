"""Writes an artifact to disk: .md for people, .csv for programs, .tex or pictures for papers."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from dpexp.artifacts import build, figure
from dpexp.artifacts.cells import relabel
from dpexp.artifacts.collect import Value
from dpexp.artifacts.markdown import markdown
from dpexp.artifacts.spec import Artifact, Line
from dpexp.artifacts.table import Table

CSV_FIELDS = (
    "paper",
    "artifact",
    "row",
    "column",
    "profile",
    "mean",
    "std",
    "n",
    "published",
    "difference",
    "epsilon",
    "noise_multiplier",
    "deviations",
    "runs",
    "status",
)

FIGURE_FIELDS = ("paper", "artifact", "line", "panel", "x", *CSV_FIELDS[4:])

_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def write(table: Table, results: Path) -> list[Path]:
    """Write `<results>/<profile>/<paper>/<name>.*`; give the paths.

    A table is .md, .csv and .tex; a figure .md, .csv, .svg and .png.
    """
    folder = results / table.profile / table.artifact.paper
    files = {"md": markdown(table), "csv": csv_text(table)}
    files |= figure.pictures(table) if table.artifact.figure else {"tex": tex(table)}
    paths = [folder / f"{table.artifact.name}.{suffix}" for suffix in files]
    for path, content in zip(paths, files.values(), strict=True):
        build.save(path, content)
    return paths


def csv_text(table: Table) -> str:
    """Give one line per cell, in full precision; of a figure, one per point or level line."""
    is_figure = table.artifact.figure is not None
    stream = io.StringIO()
    fields = FIGURE_FIELDS if is_figure else CSV_FIELDS
    writer = csv.DictWriter(stream, fields, lineterminator="\n")
    writer.writeheader()
    for row, column, value in table.distinct():
        line = _csv_line(table, row, column, value)
        writer.writerow(_as_point(table, row, column, line) if is_figure else line)
    return stream.getvalue()


def _as_point(table: Table, row: Line, column: Line, line: dict[str, Any]) -> dict[str, Any]:
    """Say a cell by line, panel as this profile words it, and x, none for a level line."""
    line = {key: value for key, value in line.items() if key not in ("row", "column")}
    panel = relabel(column, table.changes)[0] if column.panel else ""
    return {**line, "line": row.key, "panel": panel, "x": "" if row.regardless_of else column.x}


def _csv_line(table: Table, row: Line, column: Line, value: Value) -> dict[str, Any]:
    difference = value.difference
    return {
        "paper": table.artifact.paper,
        "artifact": table.artifact.name,
        "row": row.key,
        "column": column.key,
        "profile": table.profile,
        "mean": value.mean,
        "std": value.std,
        "n": value.num_seeds,
        "published": value.published,
        "difference": None if difference is None else round(difference, 6),
        "epsilon": value.epsilon,
        "noise_multiplier": value.noise_multiplier,
        "deviations": "; ".join(value.deviations),
        "runs": " ".join(value.run_ids),
        "status": value.status,
    }


def tex(table: Table) -> str:
    """Give a booktabs table; the preamble needs the package booktabs."""
    artifact = table.artifact
    caption = f"{artifact.title}. Beside {artifact.place}, whose values are in brackets."
    if table.profile != "paper":
        caption += f" Profile {table.profile}: not comparable with the published values."
    body = [
        [*map(_escape, relabel(row, table.changes)), *(_tex_cell(v, artifact) for _, v in cells)]
        for row, cells in table.grid()
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\label{{tab:{artifact.paper}-{artifact.name}-{table.profile}}}",
        rf"\begin{{tabular}}{{{'l' * len(artifact.row_head)}{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(map(_escape, table.head())) + r" \\",
        r"\midrule",
        *(" & ".join(line) + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_cell(value: Value, artifact: Artifact) -> str:
    decimals = artifact.decimals
    measured = value.status
    if value.mean is not None:
        measured = f"{value.mean:.{decimals}f}"
        measured += "" if value.std is None else rf" $\pm$ {value.std:.{decimals}f}"
    return measured if value.published is None else f"{measured} ({value.published:.{decimals}f})"


def _escape(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)
