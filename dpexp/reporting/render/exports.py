"""Save an artifact: .md for people, .csv for programs, .tex or pictures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpexp.reporting.collect import build
from dpexp.reporting.render.csv_files import csv_text
from dpexp.reporting.render.latex import latex
from dpexp.reporting.render.markdown import markdown
from dpexp.reporting.render.table import Table


def write(table: Table, results: Path) -> list[Path]:
    """Write `<results>/<profile>/<paper>/<name>.*` and return the paths.

    A table is .md, .csv and .tex; a figure is .md, .csv, .svg and .png.
    """
    folder = results / table.profile / table.artifact.paper
    files = {"md": markdown(table), "csv": csv_text(table)}
    files |= _pictures(table) if table.artifact.figure else {"tex": latex(table)}
    paths = [folder / f"{table.artifact.name}.{suffix}" for suffix in files]
    for path, content in zip(paths, files.values(), strict=True):
        build.save(path, content)
    return paths


def _pictures(table: Table) -> dict[str, Any]:
    from dpexp.reporting.render import figure  # and matplotlib, which tables need not wait for

    return figure.pictures(table)
