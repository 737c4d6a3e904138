"""Read numbers from table cells in given formats, exactly or not at all."""

from __future__ import annotations

import math
import re
from datetime import date

MISSING = frozenset(
    {
        *("", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A", "#N/A N/A", "NULL", "null", "None"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)
"""Markers of missing values, the same as pandas'."""

LARGEST = (2 - 2.0**-23) * 2.0**127
"""Largest float32; numbers are stored as float32."""

MONTH_NAMES = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"

PLAIN = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"

Forms = tuple[re.Pattern[str], ...]
"""Formats of a cell; each has one group, the number to read."""


def _forms(*texts: str) -> Forms:
    return tuple(map(re.compile, texts))


NUMBER = _forms(PLAIN)
"""No separators: 28,854 is 28854 in one country and 28.854 in the next."""

PER_CENT = _forms(PLAIN + " ?%", PLAIN)

MONTHS = _forms(r"([0-9]+) months?", r"([0-9]+)")
"""A term: "36 months"."""

YEARS = _forms(r"([0-9]+) years?", r"< ?(1) year", r"(10)\+ years", r"([0-9]+)")
"""Years of employment, from "< 1 year" to "10+ years"."""

DATE = _forms(
    f"(?:{MONTH_NAMES})-([0-9]{{4}})",  # "Dec-2011"
    r"([0-9]{4})-(?:0[1-9]|1[0-2])",  # "2011-12"
    r"([0-9]{4})-[0-9]{2}-[0-9]{2}",  # "2011-12-01"
    r"([0-9]{4})",
)
"""A date, read as its year."""

ZIP = _forms("([0-9]{3})xx", "([0-9]{3})")
"""The published part of a zip code: "860xx"."""

ANY = (*PER_CENT, *MONTHS, *YEARS, *DATE, *ZIP)


def number(text: str, forms: Forms = NUMBER) -> float:
    """Return a cell's number; nan for a missing value.

    Args:
        text: the cell; spaces around it are ignored.
        forms: formats of its column.

    Raises:
        ValueError: the cell has none of the formats, is an impossible date, or exceeds float32.
    """
    text = text.strip(" \t")
    if text in MISSING:
        return math.nan
    for form in forms:
        if match := form.fullmatch(text):
            value = float(match[1])
            if form is DATE[2]:
                date.fromisoformat(text)
            if abs(value) <= LARGEST:
                return value
    raise ValueError(f"no number: {text}")


def is_truth(cell: object) -> bool:
    """Return whether a cell of text is a truth value, in any case."""
    return isinstance(cell, str) and cell.lower() in ("true", "false")
