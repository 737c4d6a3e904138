"""Quote command-line words for Hydra, so that users need not know its grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

FOLDERS = ("results", "data_root", "model_root", "data")
"""Settings at any depth whose value is a folder or file, taken literally but for quotes around."""

UNSAID = re.compile(
    r"^(method\.freeze|method\.embeddings|model\.(?:fix|weight_standardization|args[\w.]*))(?==)"
)
"""Settings that a config holds only where they are said, so that other runs keep their ids."""

CORRELATED = re.compile(r"^noise=([\"']?)correlated\1$")
OF_NOISE = re.compile(r"^noise\.(?=\w+=)")
"""Words for correlated noise, and for its settings."""

WORD = re.compile(r"([+~]*[A-Za-z_][\w./@:$-]*)=(.*)", re.DOTALL | re.ASCII)


def readable(words: Sequence[str], is_sweep: bool = False) -> list[str]:
    """Quote values that Hydra cannot parse, and folders that it would parse as something else.

    `results=dépôt`, `results=~/x` and `task.csv=my=file.csv` mean what they say; `results=a,b` is
    one folder, except in a sweep. Settings that few configs hold (`UNSAID`) are added to them.
    `noise=correlated` is a choice of the group `correlation`, which `noise.bands` is a setting of.

    Args:
        words: of a command line; options and words that are not KEY=VALUE stay unchanged.
        is_sweep: whether a list of values means one run per value.
    """
    words = [CORRELATED.sub("correlation=banded", word) for word in words]
    words = [OF_NOISE.sub("correlation.", word) for word in words]
    return [_quoted(UNSAID.sub(r"++\1", word), is_sweep) for word in words]


@lru_cache(maxsize=4096)  # Hydra's parser takes a millisecond a word, and cells share most words
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
    """Quote a text for Hydra, where a backslash escapes only before a quote."""
    # A backslash at the end would escape the closing quote, so it is doubled too.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + "\\" * bool(m[2]) + m[2], text) + "'"
