"""Writes an artifact to disk: .md for people, .csv for programs, .tex or pictures for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpexp.artifacts import build, figure
from dpexp.artifacts.cells import relabel
from dpexp.artifacts.collect import WORDS, Value
from dpexp.artifacts.markdown import markdown
from dpexp.artifacts.plain import clean, for_csv
from dpexp.artifacts.table import Table
from dpexp.artifacts.words import CURVES, MAPS, Line

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

_CURVE_FIELDS = (
    "paper",
    "artifact",
    "line",
    "panel",
    "metric",
    "x",
    "profile",
    "mean",
    "std",
    "n",
    "published",
    "status",
)

_MAP_FIELDS = (
    "paper",
    "artifact",
    "row",
    "column",
    "metric",
    "profile",
    "n",
    "status",
    "y",
)
"""And one for each x, by its number."""

DIGITS = 6
"""Significant ones of the values of curves and pictures, which are many."""

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
    "|": r"$|$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "√": r"$\surd$",
    "∂": r"$\partial$",
    "Δ": r"$\Delta$",
    "κ": r"$\kappa$",
    "ψ": r"$\psi$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\to$",
    "−": r"$-$",
    "–": "--",
    "…": r"\dots{}",
    "²": r"$^2$",
    "³": r"$^3$",
    "ᵀ": r"$^\top$",
    "₁": r"$_1$",
    "₂": r"$_2$",
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
    """Give one line per cell, in full precision, without columns of words.

    Of a figure one per point or level line; of curves one per point of a curve; of maps one per
    row of a picture.
    """
    kind = table.artifact.kind
    if kind == CURVES:
        return _csv(_CURVE_FIELDS, _curve_lines(table))
    if kind == MAPS:
        shapes = [v.picture.shape for v in table.values.values() if v.picture is not None]
        width = max((of_one[1] for of_one in shapes), default=0)
        return _csv((*_MAP_FIELDS, *map(str, range(width))), _map_lines(table))
    lines = [
        (row, column, _csv_line(table, row, column, value))
        for row, column, value in table.distinct()
        if value.status != WORDS
    ]
    if not kind:
        return _csv(CSV_FIELDS, (line for _, _, line in lines))
    return _csv(FIGURE_FIELDS, (_as_point(table, *line) for line in lines))


def _csv(fields: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: for_csv(value) for key, value in line.items()} for line in lines)
    return stream.getvalue()


def _curve_lines(table: Table) -> Iterator[dict[str, Any]]:
    """Give every point of every curve; one line without x for a curve that isn't there."""
    for row, column, value in table.distinct():
        line = _of_cell(table, row, column, value)
        del line["row"], line["column"]
        line |= {"line": row.key, "panel": "".join(relabel(column, table.changes))}
        curve = value.curve
        if curve is None:
            yield line
            continue
        stds = [None] * curve.x.size if curve.std is None else curve.std.tolist()
        for place, (x, mean, std) in enumerate(
            zip(curve.x.tolist(), curve.mean.tolist(), stds, strict=True), 1
        ):
            end = {"published": value.published} if place == curve.x.size else {}
            point = {"x": x, "mean": mean, "std": std}
            yield {**line, **{key: _short(number) for key, number in point.items()}, **end}


def _map_lines(table: Table) -> Iterator[dict[str, Any]]:
    """Give every row of every picture; one line without y for a picture that isn't there."""
    for row, column, value in table.distinct():
        line = _of_cell(table, row, column, value)
        if value.picture is None:
            yield line
            continue
        for y, pixels in enumerate(value.picture.tolist()):
            yield {**line, "y": y, **{str(x): _short(pixel) for x, pixel in enumerate(pixels)}}


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.{DIGITS}g}"


def _of_cell(table: Table, row: Line, column: Line, value: Value) -> dict[str, Any]:
    return {
        "paper": table.artifact.paper,
        "artifact": table.artifact.name,
        "row": row.key,
        "column": column.key,
        "metric": " ".join(table.artifact.metric_of(row, column)),
        "profile": table.profile,
        "n": value.num_seeds,
        "status": value.status,
    }


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
    caption = f"{artifact.title}. {artifact.place}."
    if artifact.published:
        caption = f"{artifact.title}. Beside {artifact.place}, whose values are in brackets."
    if table.profile != "paper":
        caption += f" Profile {table.profile}: not comparable with the published values."
    body = [
        [
            *map(_escape, relabel(row, table.changes)),
            *(_tex_cell(value, artifact.decimals_of(row, column)) for column, value in cells),
        ]
        for row, cells in table.grid()
    ]
    sides = "".join("l" if column.words else "r" for column in table.columns)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(caption)}}}",
        rf"\label{{tab:{artifact.paper}-{artifact.name}-{table.profile}}}",
        rf"\begin{{tabular}}{{{'l' * len(artifact.row_head)}{sides}}}",
        r"\toprule",
        " & ".join(map(_escape, table.head())) + r" \\",
        r"\midrule",
        *(" & ".join(line) + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tex_cell(value: Value, decimals: int) -> str:
    if value.status == WORDS:
        return _escape(value.text)
    measured = _escape(value.status)
    if value.mean is not None:
        measured = f"{value.mean:.{decimals}f}"
        measured += "" if value.std is None else rf" $\pm$ {value.std:.{decimals}f}"
    return measured if value.published is None else f"{measured} ({value.published:.{decimals}f})"


def _escape(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in clean(text))
