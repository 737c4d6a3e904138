"""Print numbers that bound others, such as a certified epsilon, and claim no more than they do."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 4
"""Significant digits of a run's epsilon where no number of decimals is asked for."""


def at_most(value: float, decimals: int | None = None, digits: int = DIGITS) -> str:
    """Return an upper bound, such as a certified epsilon, or a noise that suffices, rounded up.

    Args:
        value: the bound.
        decimals: how many are kept; None: significant digits, without zeros at the end.
        digits: how many significant digits, where no number of decimals is asked for.
    """
    return _rounded(value, decimals, ROUND_CEILING, digits)


def at_least(value: float, decimals: int) -> str:
    """Return a lower bound, such as an audit's, rounded down to so many decimals."""
    return _rounded(value, decimals, ROUND_FLOOR, DIGITS)


def _rounded(value: float, decimals: int | None, rounding: str, digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    exact = Decimal(repr(float(value)))  # as Python writes it: 3.2 is 3.2, not 3.201
    if decimals is None:
        return f"{float(Context(digits, rounding).create_decimal(exact)):.{digits}g}"
    return str(exact.quantize(Decimal(1).scaleb(-decimals), rounding))
