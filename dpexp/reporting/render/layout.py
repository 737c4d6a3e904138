"""Lay out a figure: title above its panels, legend and caption below, without overlap."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerTuple
from matplotlib.textpath import text_to_path

from dpexp.reporting.render.legend import Entry
from dpexp.reporting.render.style import GAP, GREY, INK, MARGIN, WARNING
from dpexp.reporting.render.table import Table

NAMED = 4
"""Number of missing points named in the picture; the .md file names all."""

Text = tuple[str, float, str, str]
"""A line of text with its size in points, colour and weight."""


def finish(figure: Figure, table: Table, entries: Sequence[Entry]) -> None:
    """Add title, legend and caption to drawn panels; the figure grows in height.

    Args:
        figure: as wide as the page and as high as its panels.
        table: the figure's texts.
        entries: the legend's entries; without entries there is no legend.
    """
    width = figure.get_figwidth() - 2 * MARGIN
    head = _wrapped(_head(table), width)
    foot = _wrapped([(line, 8, GREY, "normal") for line in _caption(table)], width)
    _stack(figure, head, foot, _legend(figure, entries) if entries else None)


def _legend(figure: Figure, entries: Sequence[Entry]) -> Legend:
    """Add the legend in as few rows as fit the figure's width."""
    width = (figure.get_figwidth() - 2 * MARGIN) * figure.dpi
    labels, handles = zip(*entries, strict=True)
    for rows in range(1, len(entries) + 1):
        legend = Legend(figure, handles, labels, ncols=-(-len(entries) // rows), frameon=False,
                        loc="lower center", fontsize=9.5, columnspacing=1.5, borderpad=0,
                        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.3)})  # fmt: skip
        legend.set_in_layout(False)
        if legend.get_window_extent().width <= width:
            break
    figure.add_artist(legend)
    return legend


def _head(table: Table) -> list[Text]:
    artifact = table.artifact
    place = f"Beside {artifact.place}" if artifact.published else artifact.place
    lines: list[Text] = [
        (artifact.title, 12, INK, "bold"),
        (f"{place}. Profile {table.profile}.", 9, GREY, "normal"),
    ]
    if table.profile != "paper":
        warning = f"Not comparable with the published figure. {table.changes.scaled.strip()}"
        lines.append((warning, 9, WARNING, "normal"))
    if table.overridden:
        lines.append((f"Overridden: {', '.join(table.overridden)}.", 9, WARNING, "normal"))
    return lines


def _caption(table: Table) -> list[str]:
    lines = [table.legend()]
    for status, names in table.absent().items():
        more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"{status.capitalize()}: {'; '.join(names[:NAMED])}{more}.")
    return lines + [f"{line[0].upper()}{line[1:]}." for line in table.skipped()]


def _wrapped(lines: Sequence[Text], width: float) -> list[Text]:
    """Break lines at a width in inches, with room for the hinting of letters."""
    broken = []
    for text, size, color, weight in lines:
        rest: list[str] = []
        for word in text.split():
            wide, *_ = text_to_path.get_text_width_height_descent(
                " ".join([*rest, word]), FontProperties(size=size, weight=weight), ismath=False
            )
            if rest and wide > 0.96 * 72 * width:
                broken.append((" ".join(rest), size, color, weight))
                rest = []
            rest.append(word)
        broken.append((" ".join(rest), size, color, weight))
    return broken


def _stack(
    figure: Figure, head: Sequence[Text], foot: Sequence[Text], legend: Legend | None
) -> None:
    """Place all parts by their heights in inches, without overlap, and write the texts."""
    width, panels = figure.get_size_inches()
    legend_height = legend.get_window_extent().height / figure.dpi + GAP if legend else 0.0
    head_height, foot_height = (sum(map(_leading, lines)) for lines in (head, foot))
    bottom = MARGIN + foot_height + legend_height + GAP
    height = bottom + panels + GAP + head_height + MARGIN
    figure.set_size_inches(width, height)
    rect = MARGIN / width, bottom / height, 1 - 2 * MARGIN / width, panels / height
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=rect)
    if legend:
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
    """Return the height of a line of text in inches."""
    return 1.4 * line[1] / 72
