"""Draw points with error bars: a line for each row, measured and published."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.render.style import COLOURS, DASHED, GREY, HOLLOW, MARKERS, STROKES, above
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import Column, Row


def _looks(table: Table) -> list[tuple[Row, dict[str, str]]]:
    """Return the rows that the profile runs, each with its look; level lines are grey.

    Skipped rows keep theirs, so that a method looks the same under every profile.
    """
    curves = [row for row in table.artifact.rows if not row.regardless_of]
    looks = {
        row.key: {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}
        for n, row in enumerate(curves)
    }
    levels = [row for row in table.artifact.rows if row.regardless_of]
    for n, row in enumerate(levels):
        stroke = STROKES[n % len(STROKES)]
        looks[row.key] = {"color": GREY, "marker": "", "linestyle": stroke}
    return [(row, looks[row.key]) for row in table.shown_rows()]


def panel(axes: Axes, table: Table, columns: Sequence[Column]) -> None:
    """Draw one panel, with measured marks above published ones."""
    for row, look in _looks(table):
        if row.regardless_of:
            _level(axes, table, row, columns[0], look)
            continue
        cells = sorted(
            ((column.x, table.values[row.key, column.key]) for column in columns),
            key=lambda cell: cell[0],
        )
        published = [(x, v.published) for x, v in cells if v.published is not None]
        if published:
            axes.plot(*zip(*published, strict=True), **look, **HOLLOW, zorder=2)
        done = [(x, v.mean, v.std or 0.0) for x, v in cells if v.mean is not None]
        if done:
            xs, means, stds = zip(*done, strict=True)
            axes.errorbar(xs, means, yerr=stds if any(stds) else None, **look, capsize=2.5,
                          linewidth=1.6, elinewidth=1.1, markersize=5, zorder=3)  # fmt: skip
    if not axes.lines:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color=GREY)
    _dress(axes, table, columns)


def _level(axes: Axes, table: Table, row: Row, column: Column, look: dict[str, str]) -> None:
    """Draw a value that does not depend on x, with its standard deviation as a band."""
    value, color = table.values[row.key, column.key], look["color"]
    if value.published is not None:
        axes.axhline(value.published, color=color, **DASHED, zorder=1)
    if value.mean is not None:
        axes.axhline(value.mean, **look, linewidth=1.4, zorder=1.5)
        spread = value.std or 0.0
        axes.axhspan(value.mean - spread, value.mean + spread, color=color, alpha=0.12, lw=0)


def _dress(axes: Axes, table: Table, columns: Sequence[Column]) -> None:
    """Add ticks at the points, and the panel's name."""
    xs = sorted(column.x for column in columns)
    if table.artifact.figure.log_x:
        axes.set_xscale("log")
    if table.artifact.figure.log_y:
        axes.set_yscale("log")
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.minorticks_off()
    axes.set_xlim(_limits(xs, table.artifact.figure.log_x))  # includes missing points
    axes.margins(y=0.1)
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if columns[0].panel:
        axes.set_title(above(relabel(columns[0], table.changes)[0]), loc="left", fontsize=10.5)


def _limits(xs: Sequence[float], log: bool) -> tuple[float, float]:
    """Return limits with a margin around sorted x."""
    first, last = (math.log(x) if log else x for x in (xs[0], xs[-1]))
    margin = 0.06 * (last - first) or 0.5
    limits = first - margin, last + margin
    return (math.exp(limits[0]), math.exp(limits[1])) if log else limits


def entries(table: Table) -> list[Line2D]:
    """Return the legend's entries: every row, and the published marks if there are any."""
    lines = [
        Line2D([], [], **look, markersize=5, linewidth=1.6,
               label=" ".join(relabel(row, table.changes)))
        for row, look in _looks(table)
    ]  # fmt: skip
    if any(value.published is not None for value in table.values.values()):
        lines.append(Line2D([], [], color=GREY, marker="o", **HOLLOW, label="published"))
    return lines
