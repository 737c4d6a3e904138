"""Print numbers that bound others, such as a certified epsilon, and claim no more than they do."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 4
"""Significant digits of a run's epsilon where no number of decimals is asked for."""


def at_most(value: float, decimals: int | None = None) -> str:
    """Return an upper bound, such as a certified epsilon, rounded up.

    Args:
        value: the bound.
        decimals: how many are kept; None: `DIGITS` significant digits, without zeros at the end.
    """
    return _rounded(value, decimals, ROUND_CEILING)


def at_least(value: float, decimals: int) -> str:
    """Return a lower bound, such as an audit's, rounded down to so many decimals."""
    return _rounded(value, decimals, ROUND_FLOOR)


def _rounded(value: float, decimals: int | None, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    if decimals is None:
        return f"{float(Context(DIGITS, rounding).create_decimal(Decimal(value))):g}"
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding))
