"""Style of figures: palette, fonts, sizes in inches."""

from __future__ import annotations

from textwrap import fill
from typing import Any

# Okabe and Ito (2008): distinguishable for the colour-blind; yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v")
STROKES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))
"""Line styles of curves: once the colours are used up, they repeat with the next one."""
PICTURE_COLOURS = "cividis"  # perceptually uniform, also for the colour-blind (Nuñez et al. 2018)
INK, GREY, RULE, WARNING = "#1a1a1a", "#595959", "#d9d9d9", "#a33a00"
STYLE: Any = {
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
DASHED: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1}
HOLLOW: dict[str, Any] = {
    "linestyle": "",
    "markersize": 6,
    "markeredgewidth": 1.2,
    "markerfacecolor": "none",
}
DPI = 150
PANEL_WIDTH, PANEL_HEIGHT, LEAST_WIDTH = 3.3, 2.4, 6.6  # inches, axes with their labels
MARGIN, GAP = 0.15, 0.12
TITLE, SIDE = 13, 24
"""Letters per inch in a title above a panel, and per line in a label beside it."""


def above(words: str, width: float = PANEL_WIDTH) -> str:
    """Break a title to fit its panel, whose width in inches includes its labels."""
    return fill(words, max(8, round(TITLE * (width - 0.8))))


def beside(words: str) -> str:
    """Break the label of a y axis to fit the axis' height."""
    return fill(words, SIDE)
