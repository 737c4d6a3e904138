"""Words of a record, which anyone may have written, made safe to stand in a table."""

from __future__ import annotations

LONGEST = 600
"""Characters of one text; what is beyond is left out (ours)."""

_MD = {letter: f"\\{letter}" for letter in "[]`"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

FORMULA = ("=", "+", "-", "@")
"""How a cell begins that spreadsheets compute."""


def clean(text: str, longest: int = LONGEST) -> str:
    """Give a text on one line, of printable characters and of a length that a page can take.

    Args:
        text: of a record.
        longest: characters that are kept.
    """
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(line.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def for_markdown(text: str) -> str:
    """Give a text that is neither HTML nor a link, whatever it holds."""
    return "".join(_MD.get(letter, letter) for letter in clean(text))


def for_csv(value: object) -> object:
    """Give a cell that no spreadsheet takes for a formula; numbers stay what they are."""
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.startswith(FORMULA) else text
