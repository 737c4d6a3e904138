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
    settings, options, before = [], [], ""
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
