"""The words that ask for more on the screen: -v, --verbose, verbose=true.

They become Hydra's own `hydra.verbose`, which goes to every job of a sweep, also on another
machine, and is no part of a run's config.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.types import ConfigError

OPTIONS = ("-v", "--verbose")
WORD = "verbose"
LOGGERS = "hydra.verbose=[dpexp]"
VALUES = {"true": [LOGGERS], "false": []}


def translated(words: Sequence[str]) -> list[str]:
    """Return a command line in Hydra's words.

    Raises:
        ConfigError: if verbose is neither true nor false.
    """
    return [new for word in words for new in _translated(word)]


def _translated(word: str) -> list[str]:
    if word in OPTIONS:
        return [LOGGERS]
    key, equals, value = word.partition("=")
    if key.lstrip("+") != WORD or not equals:
        return [word]
    if value.lower() not in VALUES:
        raise ConfigError(f"Expected verbose to be true or false; got {word}. Set verbose=true.")
    return VALUES[value.lower()]
