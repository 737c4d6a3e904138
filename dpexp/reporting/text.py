"""Make untrusted texts of records safe to print, and numbers true to what they bound."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

LONGEST = 600
"""Characters kept of one text (ours)."""


def clean(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of printable characters, cut to a length that fits a page.

    Args:
        text: of a record.
        longest: number of characters kept.
    """
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(line.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def at_most(value: float, decimals: int) -> str:
    """Return an upper bound, such as a certified epsilon, rounded up to so many decimals."""
    return _rounded(value, decimals, ROUND_CEILING)


def at_least(value: float, decimals: int) -> str:
    """Return a lower bound, such as an audit's, rounded down to so many decimals."""
    return _rounded(value, decimals, ROUND_FLOOR)


def _rounded(value: float, decimals: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding))
