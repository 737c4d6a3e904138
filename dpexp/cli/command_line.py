"""The order of words on a command line: Hydra takes settings in one piece, then its options."""

from __future__ import annotations

from collections.abc import Sequence

VALUED = {"--cfg", "--package", "--config-path", "--config-name", "--config-dir", "--info"}
VALUED |= {"-c", "-p", "-cp", "-cn", "-cd", "-i", "--experimental-rerun"}
"""Options of Hydra's with a value, which is the next word."""

OPTIONAL = {"--info", "-i"}
"""Those that may do without."""


def _takes_value(word: str) -> bool:
    """Return whether a word is an option with a value, or the start of such an option's name."""
    starts = word.startswith("--") and word != "--"
    return word in VALUED or (starts and any(each.startswith(word) for each in VALUED))


def in_one_piece(words: Sequence[str]) -> list[str]:
    """Return a command line with its options behind the settings; Hydra takes no others."""
    settings: list[str] = []
    options: list[str] = []
    before = ""
    for word in words:
        is_value = _takes_value(before) and not (before in OPTIONAL and "=" in word)
        (options if word.startswith("-") or is_value else settings).append(word)
        before = word
    return [*settings, *options]


def beside(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """Insert overrides beside those of a command line; Hydra takes them in one piece alone."""
    at = [n for n, word in enumerate(words) if "=" in word and not word.startswith("-")]
    end = at[-1] + 1 if at else len(words)
    return [*words[:end], *more, *words[end:]]
