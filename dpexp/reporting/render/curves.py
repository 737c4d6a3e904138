"""Draw curves: a line for each row, with the seeds' standard deviation as a band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation, Transform

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.collect.readings import Curve
from dpexp.reporting.collect.values import Value
from dpexp.reporting.render.legend import Entry, name
from dpexp.reporting.render.style import COLOURS, GREY, HOLLOW, MARKERS, STROKES, above
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import Column, Row

FEW = 25
"""Curves with at most this many points have them marked."""
ASIDE = 7.0
"""Points between a curve's end, the published one, and the next published one."""


def panel(axes: Axes, table: Table, columns: Sequence[Column]) -> None:
    """Draw one panel, with bands below the lines."""
    (column,) = columns
    figure = table.artifact.axes
    axes.set_xscale("log" if figure.log_x else "linear", **_masked(figure.log_x))
    axes.set_yscale("log" if figure.log_y else "linear", **_masked(figure.log_y))
    num_ends = 0
    for row, look in _looks(table):
        value = table.values[row.key, column.key]
        if value.curve is None:
            continue
        _band(axes, value.curve, look["color"], figure.log_y)
        axes.plot(value.curve.x, value.curve.mean, **look, linewidth=1.6, markersize=4, zorder=3)
        if value.published is not None:
            num_ends += 1
            axes.update_datalim([(value.curve.x[-1], value.published)])
            axes.plot([value.curve.x[-1]], [value.published], color=look["color"], marker="o",
                      **HOLLOW, transform=_aside(axes, num_ends), zorder=4)  # fmt: skip
    if not axes.lines:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_xscale("linear")
        axes.set_yscale("linear")
        axes.set_xticks([])
        axes.set_yticks([])
    _dress(axes, table, column, num_ends)


def _aside(axes: Axes, number: int) -> Transform:
    """Return where a published end stands: right of the curve's own and of those before it."""
    return axes.transData + ScaledTranslation(ASIDE * number / 72, 0, axes.figure.dpi_scale_trans)


def _masked(is_log: bool) -> dict[str, Any]:
    return {"nonpositive": "mask"} if is_log else {}


def _band(axes: Axes, curve: Curve, color: str, log_y: bool) -> None:
    """Draw the standard deviation, or on a log axis, which has no zero, the range of the seeds."""
    if curve.std is None:
        return
    low, high = curve.mean - curve.std, curve.mean + curve.std
    if log_y:
        low, high = curve.low, curve.high
    axes.fill_between(curve.x, low, high, color=color, alpha=0.18, linewidth=0, zorder=1)


def _looks(table: Table) -> list[tuple[Row, dict[str, Any]]]:
    """Return the rows that the profile runs, each with its colour, stroke and marker.

    Skipped rows keep theirs, so that a line looks the same under every profile.
    """
    sizes = [value.curve.x.size for value in table.values.values() if value.curve is not None]
    is_marked = max(sizes, default=0) <= FEW
    looks: dict[str, dict[str, Any]] = {
        row.key: {
            "color": COLOURS[n % len(COLOURS)],
            "linestyle": STROKES[n // len(COLOURS) % len(STROKES)],
            "marker": MARKERS[n % len(MARKERS)] if is_marked else "",
        }
        for n, row in enumerate(table.artifact.rows)
    }
    return [(row, looks[row.key]) for row in table.shown_rows()]


def _dress(axes: Axes, table: Table, column: Column, num_ends: int) -> None:
    if axes.lines and not table.artifact.axes.log_x:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.margins(x=0.03 + 0.04 * num_ends, y=0.08)
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if column.panel:
        axes.set_title(above(relabel(column, table.changes)[0]), loc="left", fontsize=10.5)


def entries(table: Table) -> list[Entry]:
    """Return the legend's entries, one for whatever is drawn: curves, then published ends."""
    looks = [(row, look) for row, look in _looks(table) if _drawn(table, row)]
    lines: list[Entry] = [
        (name(table, row), Line2D([], [], **look, markersize=4, linewidth=1.6))
        for row, look in looks
    ]
    hollow = [
        Line2D([], [], color=look["color"], marker="o", **HOLLOW)
        for row, look in looks
        if any(value.published is not None for value in _drawn(table, row))
    ]
    return [*lines, ("published, at the end", tuple(hollow))] if hollow else lines


def _drawn(table: Table, row: Row) -> list[Value]:
    """Return a row's cells that have a curve."""
    values = (table.values[row.key, column.key] for column in table.shown_columns())
    return [value for value in values if value.curve is not None]
