"""Numbers as tables write them, in the forms that a column may have, read whole or not at all."""

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
"""What stands for nothing, as pandas reads tables."""

LARGEST = (2 - 2.0**-23) * 2.0**127
"""What float32 holds, in which numbers end up."""

MONTH_NAMES = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"

PLAIN = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"

Forms = tuple[re.Pattern[str], ...]
"""Ways to write a cell, each with the number that counts as its one group."""


def _forms(*texts: str) -> Forms:
    return tuple(map(re.compile, texts))


NUMBER = _forms(PLAIN)
"""No other one: 28,854 is 28854 in one country and 28.854 in the next."""

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
"""A date, of which the year counts."""

ZIP = _forms("([0-9]{3})xx", "([0-9]{3})")
"""What is told of a zip code: "860xx"."""

ANY = (*PER_CENT, *MONTHS, *YEARS, *DATE, *ZIP)


def number(text: str, forms: Forms = NUMBER) -> float:
    """Read a cell's number; nan where it stands for nothing.

    Args:
        text: the cell; spaces around it do not count.
        forms: those that its column may have.

    Raises:
        ValueError: the cell is of none of the forms, no day of any month, or beyond float32.
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
