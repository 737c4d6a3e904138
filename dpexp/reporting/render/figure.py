"""Draw a figure: panels of points or curves with one legend, or a grid of pictures."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpexp.reporting.render import curves, layout, maps, points
from dpexp.reporting.render.style import (
    DPI,
    LEAST_WIDTH,
    MARGIN,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    STYLE,
    beside,
)
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import CURVES, MAPS, POINTS, Column

PLOTS = {POINTS: points, CURVES: curves}


def pictures(table: Table) -> dict[str, bytes]:
    """Return a figure's files by suffix, svg and png."""
    with rc_context(STYLE):
        figure = draw(table)
        return {
            "svg": _bytes(figure, format="svg", metadata={"Date": None}),
            "png": _bytes(figure, format="png", dpi=DPI),
        }


def _bytes(figure: Figure, **how: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, **how)
    return stream.getvalue()


def draw(table: Table) -> Figure:
    """Draw title, panels, legend and caption, which lists missing cells."""
    if table.artifact.kind == MAPS:
        figure = _blank(*maps.size(table))
        maps.fill(figure, table)
        layout.finish(figure, table, ())
        return figure
    plot = PLOTS[table.artifact.kind]
    panels = _panels(table)
    num_columns = 2 if len(panels) == 4 else min(3, len(panels))
    num_rows = -(-len(panels) // num_columns)
    figure = _blank(PANEL_WIDTH * num_columns, PANEL_HEIGHT * num_rows)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    labels = [table.value_label(columns) for columns in panels]
    for number, (axes, columns) in enumerate(zip(grid, panels, strict=False)):
        plot.panel(axes, table, columns)
        is_new = number % num_columns == 0 or labels[number] != labels[number - 1]
        axes.set_ylabel(beside(labels[number]) if is_new else "")
        below = number + num_columns < len(panels)
        axes.set_xlabel("" if below else table.artifact.axes.x_label)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    layout.finish(figure, table, plot.entries(table))
    return figure


def _blank(width: float, height: float) -> Figure:
    """Return an empty figure for panels of this size in inches, wide enough for its texts."""
    size = max(LEAST_WIDTH, width + 2 * MARGIN), height
    figure = Figure(figsize=size, layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def _panels(table: Table) -> list[list[Column]]:
    """Return the columns that the profile runs, grouped by panel."""
    panels: dict[str, list[Column]] = {}
    for column in table.shown_columns():
        panels.setdefault(column.panel, []).append(column)
    return list(panels.values())
