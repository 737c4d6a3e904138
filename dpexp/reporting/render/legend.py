"""What a figure's legend says: an entry for each series that is drawn."""

from __future__ import annotations

import math
from typing import TypeGuard

from matplotlib.lines import Line2D

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema.artifact import Row

Entry = tuple[str, Line2D | tuple[Line2D, ...]]
"""A label, and what it looks like; several marks of one label stand side by side."""


def name(table: Table, row: Row) -> str:
    """Return a row's name under the profile."""
    return " ".join(relabel(row, table.changes))


def is_drawn(number: float | None, is_log: bool) -> TypeGuard[float]:
    """Return whether a number has a place on an axis: a log axis has none for zero and below."""
    return number is not None and math.isfinite(number) and (number > 0 or not is_log)
