"""Numbers as tables write them, read whole or not at all."""

from __future__ import annotations

import math
import re

MISSING = frozenset(
    {
        *("", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A", "#N/A N/A", "NULL", "null", "None"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)
"""What stands for nothing, as pandas reads tables."""

NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"

FORMS = tuple(
    map(
        re.compile,
        (
            NUMBER,
            NUMBER + r" ?%",
            r"[<>]? ?([0-9]+)\+? (?:months?|years?)",  # "36 months", "10+ years", "< 1 year"
            r"([0-9]{3})xx",  # what is told of a zip code
        ),
    )
)
"""Forms of a cell, each with the number that counts. What has another one could be read in more
ways than one: 28,854 is 28854 in one country and 28.854 in the next."""


DATES = tuple(
    map(
        re.compile,
        (
            r"[A-Z][a-z]{2}-([0-9]{4})",  # "Dec-2011"
            r"([0-9]{4})-[0-9]{2}(?:-[0-9]{2})?",  # "2011-12-01"
        ),
    )
)
"""Forms of a date, each with its year."""


def number(text: str, *, is_year: bool = False) -> float:
    """Read a cell's number; nan where it stands for nothing.

    Args:
        text: the cell; spaces around it do not count.
        is_year: whether it may be a date, of which the year counts.

    Raises:
        ValueError: the cell is of none of the forms, or beyond what float64 holds.
    """
    text = text.strip(" \t")
    if text in MISSING:
        return math.nan
    for form in FORMS + DATES * is_year:
        if match := form.fullmatch(text):
            value = float(match[1])
            if math.isfinite(value):
                return value
    raise ValueError(f"no number: {text}")
