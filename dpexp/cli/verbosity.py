"""The words that ask for more on the screen: -v, --verbose, verbose=true.

They become Hydra's own `hydra.verbose`, which goes to every job of a sweep, also on another
machine, and is no part of a run's config.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.cli.command_line import beside
from dpexp.types import ConfigError

OPTIONS = ("-v", "--verbose")
WORD = "verbose"
LOGGERS = "hydra.verbose=[dpexp]"


def translated(words: Sequence[str]) -> list[str]:
    """Return a command line in Hydra's words.

    Raises:
        ConfigError: if verbose is neither true nor false.
    """
    others, asked = [], False
    for word in words:
        key, equals, value = word.partition("=")
        if word in OPTIONS:
            asked = True
        elif key.lstrip("+") != WORD or not equals:
            others.append(word)
        elif value.lower() in ("true", "false"):
            asked = value.lower() == "true"
        else:
            raise ConfigError(
                f"Expected verbose to be true or false; got {word}. Set verbose=true."
            )
    return beside(others, [LOGGERS]) if asked else others
