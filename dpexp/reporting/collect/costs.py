"""Columns of what a step costs, read off the tables of `make bench`."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from dpexp.reporting.schema.artifact import Artifact, Column

NOT_MEASURED = "not measured"
NONE = "–"
"""Of a row that a case has no step of."""


def filled(artifact: Artifact, results: Path) -> Artifact:
    """Return an artifact whose columns of costs hold the words of these results.

    Args:
        artifact: as in its YAML.
        results: the results folder; bench's tables are in `bench` in it.
    """
    if not any(column.bench for column in artifact.columns):
        return artifact
    columns = (_filled(column, artifact, results) for column in artifact.columns)
    return replace(artifact, columns=tuple(columns))


def _filled(column: Column, artifact: Artifact, results: Path) -> Column:
    if not column.bench:
        return column
    path = results / "bench" / f"{column.bench}.csv"
    if not path.is_file():
        return replace(column, words={row.key: NOT_MEASURED for row in artifact.rows})
    with path.open(encoding="utf-8", newline="") as stream:
        steps = {line["step"]: line for line in csv.DictReader(stream)}
    words = {row.key: _words(steps.get(row.key)) for row in artifact.rows}
    return replace(column, words=words)


def _words(step: dict[str, str] | None) -> str:
    """Return time and memory, each over those of the step without privacy."""
    if step is None:
        return NONE
    if not step["time"]:
        return step["note"] or NOT_MEASURED
    return f"{float(step['time']):.2f},\N{NO-BREAK SPACE}{float(step['memory']):.2f}"
