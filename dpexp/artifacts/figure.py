"""Draws a figure: a panel a task, a line a method, published points beside the measured ones."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath

from dpexp.artifacts.cells import relabel
from dpexp.artifacts.spec import Line
from dpexp.artifacts.table import Table

# Okabe and Ito (2008): told apart by the colour-blind too; yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v")
INK, GREY, RULE = "#1a1a1a", "#595959", "#d9d9d9"
STYLE = {
    "font.size": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "svg.hashsalt": "dpexp",  # the same values give the same bytes
}
DASHED = {"linestyle": (0, (3, 2)), "linewidth": 1}
HOLLOW = {**DASHED, "markersize": 8, "markerfacecolor": "none"}
DPI = 150
PANEL_WIDTH, PANEL_HEIGHT, LEAST_WIDTH = 3.3, 2.4, 6.6  # inches, axes with their labels
MARGIN, GAP = 0.15, 0.12
NAMED = 4
"""How many missing points the picture names; the .md names all."""


def pictures(table: Table) -> dict[str, bytes]:
    """Draw a figure once and give its files by suffix, svg and png."""
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
    """Draw the panels under what the figure is, above the legend and what is missing."""
    panels = _panels(table)
    num_columns = 2 if len(panels) == 4 else min(3, len(panels))
    num_rows = -(-len(panels) // num_columns)
    width = max(LEAST_WIDTH, PANEL_WIDTH * num_columns + 2 * MARGIN)
    figure = Figure(figsize=(width, PANEL_HEIGHT * num_rows), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    head = _wrapped(_head(table), width - 2 * MARGIN)
    foot = _wrapped([(line, 8, GREY, "normal") for line in _caption(table)], width - 2 * MARGIN)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    for number, (axes, columns) in enumerate(zip(grid, panels, strict=False)):
        _panel(axes, table, columns)
        axes.set_ylabel(table.artifact.value_label if number % num_columns == 0 else "")
        below = number + num_columns < len(panels)
        axes.set_xlabel("" if below else table.artifact.figure.x_label)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    legend = _legend(figure, table)
    _stack(figure, head, foot, legend, PANEL_HEIGHT * num_rows)
    return figure


def _panels(table: Table) -> list[list[Line]]:
    """Group the columns that the profile runs by panel, in order."""
    panels: dict[str, list[Line]] = {}
    for column in table.columns:
        if not table.changes.why_skipped(column):
            panels.setdefault(column.panel, []).append(column)
    return list(panels.values())


def _looks(table: Table) -> list[tuple[Line, dict[str, Any]]]:
    """Give the rows that the profile runs, each with its colour and marker; level lines are grey.

    A row that is skipped takes its colour with it: a method looks the same under every profile.
    """
    curves = [row for row in table.artifact.rows if not row.regardless_of]
    looks = {
        row.key: {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)]}
        for n, row in enumerate(curves)
    }
    rows = (row for row in table.artifact.rows if not table.changes.why_skipped(row))
    return [(row, looks.get(row.key, {"color": GREY, "marker": ""})) for row in rows]


def _panel(axes: Axes, table: Table, columns: Sequence[Line]) -> None:
    """Draw one panel: published marks first, so that measured ones lie on top."""
    for row, look in _looks(table):
        if row.regardless_of:
            _level(axes, table, row, columns[0], look["color"])
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
        axes.text(0.5, 0.5, "nothing run yet", transform=axes.transAxes, ha="center", color=GREY)
    _dress(axes, table, columns)


def _level(axes: Axes, table: Table, row: Line, column: Line, color: str) -> None:
    """Draw what does not depend on x, its standard deviation as a band."""
    value = table.values[row.key, column.key]
    if value.published is not None:
        axes.axhline(value.published, color=color, **DASHED, zorder=1)
    if value.mean is not None:
        axes.axhline(value.mean, color=color, linewidth=1.4, zorder=1.5)
        spread = value.std or 0.0
        axes.axhspan(value.mean - spread, value.mean + spread, color=color, alpha=0.12, lw=0)


def _dress(axes: Axes, table: Table, columns: Sequence[Line]) -> None:
    """Put ticks where points are, and the panel's name."""
    xs = sorted(column.x for column in columns)
    if table.artifact.figure.log_x:
        axes.set_xscale("log")
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.minorticks_off()
    axes.set_xlim(_limits(xs, table.artifact.figure.log_x))  # points that are missing included
    axes.margins(y=0.1)
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if columns[0].panel:
        axes.set_title(relabel(columns[0], table.changes)[0], loc="left", fontsize=10.5)


def _limits(xs: Sequence[float], log: bool) -> tuple[float, float]:
    """Leave a margin about sorted x."""
    first, last = (math.log(x) if log else x for x in (xs[0], xs[-1]))
    margin = 0.06 * (last - first) or 0.5
    limits = first - margin, last + margin
    return (math.exp(limits[0]), math.exp(limits[1])) if log else limits


def _legend(figure: Figure, table: Table) -> Legend:
    """Make the one legend, in as few rows as the figure is wide for."""
    handles = [
        Line2D([], [], **look, markersize=5, linewidth=1.6,
               label=" ".join(relabel(row, table.changes)))
        for row, look in _looks(table)
    ]  # fmt: skip
    if any(table.values[cell].published is not None for cell in table.values):
        handles.append(Line2D([], [], color=GREY, marker="o", **HOLLOW, label="published"))
    width = (figure.get_figwidth() - 2 * MARGIN) * figure.dpi
    for rows in range(1, len(handles) + 1):
        legend = Legend(figure, handles, [handle.get_label() for handle in handles],
                        ncols=-(-len(handles) // rows), loc="lower center", frameon=False,
                        fontsize=9.5, columnspacing=1.5, borderpad=0)  # fmt: skip
        legend.set_in_layout(False)
        if legend.get_window_extent().width <= width:
            break
    figure.add_artist(legend)
    return legend


Text = tuple[str, float, str, str]
"""A line of text, its size in points, colour and weight."""


def _head(table: Table) -> list[Text]:
    artifact = table.artifact
    place = f"Beside {artifact.place}" if artifact.published else artifact.place
    lines = [
        (artifact.title, 12, INK, "bold"),
        (f"{place}. Profile {table.profile}.", 9, GREY, "normal"),
    ]
    if table.profile != "paper":
        warning = f"Not comparable with the published figure. {table.changes.scaled.strip()}"
        lines.append((warning, 9, "#a33a00", "normal"))
    if table.overridden:
        lines.append((f"Overridden: {', '.join(table.overridden)}.", 9, "#a33a00", "normal"))
    return lines


def _caption(table: Table) -> list[str]:
    lines = [table.legend()]
    for status, names in table.absent().items():
        more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"{status.capitalize()}: {'; '.join(names[:NAMED])}{more}.")
    return lines + [f"{line[0].upper()}{line[1:]}." for line in table.skipped()]


def _wrapped(lines: Sequence[Text], width: float) -> list[Text]:
    """Break lines to a width in inches, with room for the hinting of letters."""
    broken = []
    for text, size, color, weight in lines:
        rest: list[str] = []
        for word in text.split():
            wide = TextPath((0, 0), " ".join([*rest, word]), size, prop={"weight": weight})
            if rest and wide.get_extents().width > 0.96 * 72 * width:
                broken.append((" ".join(rest), size, color, weight))
                rest = []
            rest.append(word)
        broken.append((" ".join(rest), size, color, weight))
    return broken


def _stack(
    figure: Figure, head: Sequence[Text], foot: Sequence[Text], legend: Legend, panels: float
) -> None:
    """Give every part its height in inches, so that none covers another, and write the texts."""
    legend_height = legend.get_window_extent().height / figure.dpi
    head_height, foot_height = (sum(map(_leading, lines)) for lines in (head, foot))
    bottom = MARGIN + foot_height + legend_height + 2 * GAP
    height = bottom + panels + GAP + head_height + MARGIN
    width = figure.get_figwidth()
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(
        rect=(MARGIN / width, bottom / height, 1 - 2 * MARGIN / width, panels / height)
    )
    legend.set_bbox_to_anchor((0.5, (MARGIN + foot_height + GAP) / height), figure.transFigure)
    _write(figure, head, height - MARGIN)
    _write(figure, foot, MARGIN + foot_height)


def _write(figure: Figure, lines: Sequence[Text], top: float) -> None:
    width, height = figure.get_size_inches()
    for line in lines:
        text, size, color, weight = line
        figure.text(MARGIN / width, top / height, text, va="top", fontsize=size, color=color,
                    fontweight=weight, in_layout=False)  # fmt: skip
        top -= _leading(line)


def _leading(line: Text) -> float:
    """Give the height of a line of text in inches."""
    return 1.4 * line[1] / 72
