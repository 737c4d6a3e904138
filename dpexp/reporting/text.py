"""Make untrusted texts of records safe to print."""

from __future__ import annotations

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
