"""Words of a command line that a person need not quote for Hydra: its grammar is not theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

FOLDERS = ("results", "data_root", "model_root")
"""Settings whose value is a folder, at any depth: taken as it stands, but for quotes around it."""

WORD = re.compile(r"([+~]*[A-Za-z_][\w./@:$-]*)=(.*)", re.DOTALL | re.ASCII)


def readable(words: Sequence[str], is_sweep: bool = False) -> list[str]:
    """Quote the values that Hydra cannot read, and those of folders that it would read as others.

    `results=dépôt`, `results=~/x` and `task.csv=my=file.csv` are what they say; `results=a,b` is
    one folder, but in a sweep.

    Args:
        words: of a command line; options, and words that are no KEY=VALUE, stay as they are.
        is_sweep: whether a list of values asks for a run each.
    """
    return [_quoted(word, is_sweep) for word in words]


def _quoted(word: str, is_sweep: bool) -> str:
    found = WORD.fullmatch(word)
    if found is None or not found[2]:
        return word
    key, value = found.groups()
    is_folder = key.lstrip("+~").rpartition(".")[2] in FOLDERS
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
        if not is_folder or override.is_delete():
            return word
        if override.is_sweep_override():
            is_wrong = not is_sweep
        else:  # a folder may be called 2024
            is_wrong = isinstance(override.value(), int | float)
            is_wrong = is_wrong and not isinstance(override.value(), bool)
    except HydraException:
        is_wrong = True
    return f"{key}={quoted(value)}" if is_wrong else word


def quoted(text: str) -> str:
    """Quote a text for Hydra, in which a backslash counts before a quote alone."""
    # Nowhere else; one at the end would come to stand before the quote.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + "\\" * bool(m[2]) + m[2], text) + "'"
