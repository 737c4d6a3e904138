"""Write the values of a table or figure as CSV, in full precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.collect.values import WORDS, Value
from dpexp.reporting.render.escape import for_csv
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import CURVES, MAPS, Column, Row

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
"""Followed by one field for each x, named by its number."""

DIGITS = 6
"""Significant digits of the values of curves and pictures, to limit the files' size."""


def csv_text(table: Table) -> str:
    """Return one line per cell, without columns of words.

    A figure of points has one line per point or level line, a figure of curves one per point of a
    curve, a figure of maps one per row of a picture.
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
    import pandas as pd  # takes half a second, which a mistake in a command does not wait for

    cells = ([for_csv(line.get(field)) for field in fields] for line in lines)
    frame = pd.DataFrame(cells, columns=fields, dtype=object)
    return frame.to_csv(index=False, na_rep="nan", lineterminator="\n")


def _curve_lines(table: Table) -> Iterator[dict[str, Any]]:
    """Yield every point of every curve; one line without x for a missing curve."""
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
    """Yield every row of every picture; one line without y for a missing picture."""
    for row, column, value in table.distinct():
        line = _of_cell(table, row, column, value)
        if value.picture is None:
            yield line
            continue
        for y, pixels in enumerate(value.picture.tolist()):
            yield {**line, "y": y, **{str(x): _short(pixel) for x, pixel in enumerate(pixels)}}


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.{DIGITS}g}"


def _of_cell(table: Table, row: Row, column: Column, value: Value) -> dict[str, Any]:
    return {
        "paper": table.artifact.paper,
        "artifact": table.artifact.name,
        "row": row.key,
        "column": column.key,
        "metric": " ".join(table.artifact.metric_of(row, column)),
        "profile": table.profile,
        "n": value.num_seeds,
        "status": value.divergence or value.status,
    }


def _as_point(table: Table, row: Row, column: Column, line: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's line under its row, panel and x; a level line has no x."""
    line = {key: value for key, value in line.items() if key not in ("row", "column")}
    panel = relabel(column, table.changes)[0] if column.panel else ""
    return {**line, "line": row.key, "panel": panel, "x": "" if row.regardless_of else column.x}


def _csv_line(table: Table, row: Row, column: Column, value: Value) -> dict[str, Any]:
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
        "status": value.divergence or value.status,
    }
