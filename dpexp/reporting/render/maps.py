"""Draw a grid of maps, each with its colour scale."""

from __future__ import annotations

from textwrap import wrap

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.render.style import GREY, PICTURE_COLOURS, RULE, above, beside
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import Column, Row

WIDTH, LEAST, WIDEST = 2.7, 1.8, 13.0
"""Inches: of a picture with its scale, of the narrowest one, and of a whole row."""
HEIGHT, SCALE = 2.2, 1.0  # of the width, the scale and its labels
SHORT = 18
"""Letters per line in the text that replaces a missing picture."""


def size(table: Table) -> tuple[float, float]:
    """Return the width and height of the grid in inches."""
    num_rows, num_columns = len(table.shown_rows()), len(table.shown_columns())
    width = max(LEAST, min(WIDTH, WIDEST / num_columns))
    return width * num_columns, HEIGHT * num_rows


def fill(figure: Figure, table: Table) -> None:
    """Draw the pictures of the rows and columns that the profile runs."""
    rows, columns = table.shown_rows(), table.shown_columns()
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    labels = table.artifact.axes
    for row, of_row in zip(rows, grid, strict=True):
        for column, axes in zip(columns, of_row, strict=True):
            _picture(figure, axes, table, row, column)
        name = " ".join(relabel(row, table.changes))
        of_row[0].set_ylabel(f"{beside(name)}\n{beside(labels.y_label)}")
    for column, top, bottom in zip(columns, grid[0], grid[-1], strict=True):
        title = " ".join(relabel(column, table.changes))
        top.set_title(above(title, figure.get_figwidth() / len(columns) - SCALE), fontsize=10.5)
        bottom.set_xlabel(labels.x_label)


def _picture(figure: Figure, axes: Axes, table: Table, row: Row, column: Column) -> None:
    value = table.values[row.key, column.key]
    if value.picture is None or not np.isfinite(value.picture).any():
        why = "\n".join(wrap(value.status.partition(" (")[0], SHORT))
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=GREY,
                  fontsize=8, in_layout=False)  # fmt: skip
        axes.set_xticks([])
        axes.set_yticks([])
        return
    colours = colormaps[PICTURE_COLOURS].with_extremes(bad=RULE)
    image = axes.imshow(np.ma.masked_invalid(value.picture), cmap=colours, aspect="auto",
                        interpolation="nearest")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
    scale = figure.colorbar(image, ax=axes, fraction=0.06, pad=0.03)
    scale.outline.set_visible(False)
    factor = _factor(value.picture)
    scale.ax.yaxis.set_major_locator(MaxNLocator(4))
    scale.ax.yaxis.set_major_formatter(lambda number, _: f"{number / 10.0**factor:.3g}")
    unit = f" in $10^{{{factor}}}$" if factor else ""
    scale.set_label(beside(table.artifact.value_label_of(row, column) + unit))


def _factor(picture: np.ndarray) -> int:
    """Return the power of ten that a scale's numbers are divided by; 0 if they are short."""
    largest = float(np.abs(picture[np.isfinite(picture)]).max(initial=0.0))
    power = int(np.floor(np.log10(largest))) if largest > 0 else 0
    return 0 if -2 <= power <= 3 else power
