"""Draw points with error bars: a line for each row, measured and published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.collect.values import Value
from dpexp.reporting.render.legend import Entry, is_drawn, name
from dpexp.reporting.render.style import COLOURS, DASHED, GREY, HOLLOW, MARKERS, STROKES, above
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import Column, Row

STEP, FIRST, ASIDE, ROOM = 3.0, 8.5, 6.0, 9.0
"""Points: between measured marks, from the last one to the first published one, between published
ones, and from the outermost mark to the axis."""
MEASURED, PUBLISHED = 0, 1

Look = dict[str, Any]
"""Settings of matplotlib's lines."""


def _looks(table: Table) -> list[tuple[Row, Look]]:
    """Return the rows that the profile runs, each with its look; level lines are grey.

    Skipped rows keep theirs, so that a method looks the same under every profile.
    """
    curves = [row for row in table.artifact.rows if not row.regardless_of]
    looks: dict[str, Look] = {
        row.key: {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}
        for n, row in enumerate(curves)
    }
    levels = [row for row in table.artifact.rows if row.regardless_of]
    for n, row in enumerate(levels):
        stroke = STROKES[n % len(STROKES)]
        looks[row.key] = {"color": GREY, "marker": "", "linestyle": stroke}
    return [(row, looks[row.key]) for row in table.shown_rows()]


def panel(axes: Axes, table: Table, columns: Sequence[Column]) -> None:
    """Draw one panel: each row's measured and published marks stand beside all others'."""
    log_y = table.artifact.axes.log_y
    looks = _looks(table)
    places = _places(axes, table)
    for row, look in looks:
        if row.regardless_of:
            _level(axes, table, row, columns[0], look)
            continue
        beside = places[row.key]
        cells = sorted(
            ((column.place, table.values[row.key, column.key]) for column in columns),
            key=lambda cell: cell[0],
        )
        published = [(x, v.published) for x, v in cells if v.published is not None]
        if published:
            axes.update_datalim(published)
            axes.plot(*zip(*published, strict=True), color=look["color"], marker=look["marker"],
                      **HOLLOW, transform=beside[PUBLISHED], zorder=2)  # fmt: skip
        done = [(x, v.mean, _bar(v, v.mean, log_y)) for x, v in cells if is_drawn(v.mean, log_y)]
        if done:
            xs, means, bars = map(np.array, zip(*done, strict=True))
            bars = bars.T
            for ends in (means - bars[0], means + bars[1]):
                axes.update_datalim(list(zip(xs, ends, strict=True)))
            axes.errorbar(xs, means, yerr=bars if bars.any() else None,
                          **look, capsize=2.5, linewidth=1.6, elinewidth=1.1, markersize=5,
                          transform=beside[MEASURED], zorder=3)  # fmt: skip
    if not axes.lines:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color=GREY)
    _dress(axes, table, columns)


def _bar(value: Value, mean: float, log_y: bool) -> tuple[float, float]:
    """Return how far a mark's bar reaches down and up.

    A standard deviation larger than the mean has no place on a log axis; there it is the range of
    the seeds.
    """
    every: list[Any] = [*value.readings]  # numbers, in a figure of points
    readings = [number for number in every if math.isfinite(number)]
    if log_y and len(readings) > 1:
        return mean - min(readings), max(readings) - mean
    spread = value.std or 0.0
    return spread, spread


def _places(axes: Axes, table: Table) -> dict[str, tuple[Transform, Transform]]:
    """Return where a row's measured and published marks are drawn: at their x, and beside it.

    At one x the measured marks stand a small step apart, and the published ones to their right.
    Marks would otherwise hide each other wherever two values are about the same. The step is in
    points of the page, so that all values stay what they are; matplotlib then leaves it to us to
    say how far the axes have to reach.
    """
    rows = [row for row in table.shown_rows() if not row.regardless_of]
    with_published = [row for row in rows if _published(table, row)]
    places = {}
    for n, row in enumerate(rows):
        measured = STEP * (n - (len(rows) - 1) / 2)
        aside = with_published.index(row) if row in with_published else 0
        published = STEP * (len(rows) - 1) / 2 + FIRST + ASIDE * aside
        places[row.key] = (_moved(axes, measured), _moved(axes, published))
    return places


def _moved(axes: Axes, points: float) -> Transform:
    return axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)


def _published(table: Table, row: Row) -> bool:
    """Return whether a published value of the row is drawn."""
    values = (table.values[row.key, column.key] for column in table.shown_columns())
    return any(value.published is not None for value in values)


def _measured(table: Table, row: Row) -> bool:
    """Return whether a measured value of the row is drawn."""
    values = (table.values[row.key, column.key] for column in table.shown_columns())
    return any(is_drawn(value.mean, table.artifact.axes.log_y) for value in values)


def _level(axes: Axes, table: Table, row: Row, column: Column, look: Look) -> None:
    """Draw a value that does not depend on x, with its spread as a band."""
    value, color = table.values[row.key, column.key], look["color"]
    log_y = table.artifact.axes.log_y
    if value.published is not None:
        axes.axhline(value.published, color=color, **DASHED, zorder=1)
    if is_drawn(value.mean, log_y):
        axes.axhline(value.mean, **look, linewidth=1.4, zorder=1.5)
        down, up = _bar(value, value.mean, log_y)
        axes.axhspan(value.mean - down, value.mean + up, color=color, alpha=0.12, lw=0)


def _dress(axes: Axes, table: Table, columns: Sequence[Column]) -> None:
    """Add ticks at the points, and the panel's name."""
    xs = sorted(column.place for column in columns)
    if table.artifact.axes.log_x:
        axes.set_xscale("log")
    if table.artifact.axes.log_y:
        axes.set_yscale("log")
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.minorticks_off()
    axes.set_xlim(_limits(axes, table, columns))  # includes missing points
    axes.margins(y=0.1)
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if columns[0].panel:
        axes.set_title(above(relabel(columns[0], table.changes)[0]), loc="left", fontsize=10.5)


def _limits(axes: Axes, table: Table, columns: Sequence[Column]) -> tuple[float, float]:
    """Return limits around all x, with room for the marks that stand beside the outermost."""
    log = table.artifact.axes.log_x
    xs = sorted(math.log(column.place) if log else column.place for column in columns)
    rows = [row for row in table.shown_rows() if not row.regardless_of]
    last = {column.key for column in columns if column.x == max(c.place for c in columns)}
    aside = sum(_published(table, row) for row in rows)
    is_last = any(table.values[row.key, key].published is not None for row in rows for key in last)
    half = STEP * (len(rows) - 1) / 2
    left, right = half + ROOM, half + ROOM
    if is_last:
        right += FIRST + ASIDE * (aside - 1)
    figure = axes.get_figure(root=True)
    assert figure is not None
    width = 72 * axes.get_position().width * figure.get_figwidth()
    span = (xs[-1] - xs[0]) or 1.0
    point = span / max(width - left - right, width / 4)
    low, high = xs[0] - left * point, xs[-1] + right * point
    return (math.exp(low), math.exp(high)) if log else (low, high)


def entries(table: Table) -> list[Entry]:
    """Return the legend's entries, one for whatever is drawn: marks, then published ones."""
    looks = _looks(table)
    lines: list[Entry] = [
        (name(table, row), Line2D([], [], **look, markersize=5, linewidth=1.6))
        for row, look in looks
        if _measured(table, row)
    ]
    hollow = [
        Line2D([], [], color=look["color"], marker=look["marker"], **HOLLOW)
        for row, look in looks
        if _published(table, row) and not row.regardless_of
    ]
    if hollow:
        lines.append(("published", tuple(hollow)))
    lines += [
        (f"{name(table, row)}, published", Line2D([], [], color=look["color"], **DASHED))
        for row, look in looks
        if _published(table, row) and row.regardless_of
    ]
    return lines
