"""The order of words on a command line: Hydra takes settings in one piece, then its options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dpexp.cli.groups import CONF
from dpexp.types import ConfigError

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


ALIASES = {
    **{f"privacy.{name}": name for name in ("eps", "noise", "clip", "sampling")},
    "privacy.delta": "task.delta",
    "task.data": "data",
    "task.dataset_size": "dataset_size",
    "model.repo": "repo",
    "model._target_": "target",
}
"""Settings that take their value from another one, which is then passed over."""

REPEATED = ("hydra.searchpath",)
"""Settings that may be said more than once, and then add up."""

SEVERAL = ("analysis", "tracking", "experiment")
"""Groups of which a run may have several options."""

SINGLE = {path.name for path in CONF.iterdir() if path.is_dir()} - {*SEVERAL}

LISTED = re.compile(r"""["']?[\[(][^])]*,.*""", re.DOTALL)
"""A list of several options, of one run and not of a sweep."""


def require_once(words: Sequence[str], names: Mapping[str, str] | None = None) -> None:
    """Refuse a command line that gives a setting two values: only one of them would be read.

    Args:
        words: as typed; options of Hydra's and their values are passed over.
        names: word -> another word of the same meaning, beside `ALIASES`.

    Raises:
        ConfigError: naming both words, or a word with several options of a group that has one.
    """
    known, said = {**ALIASES, **(names or {})}, dict[str, str]()
    before = ""
    for word in words:
        is_option = word.startswith("-") or _takes_value(before)
        key, equals, value = word.partition("=")
        before = word
        key = key.lstrip("+")
        if is_option or not equals or key.startswith("~") or key in REPEATED:
            continue
        if key in SINGLE and LISTED.fullmatch(value):
            raise ConfigError(
                f"Expected one {key}; got {word}, of which a run would have the last alone. Set "
                "one of them."
            )
        first = said.setdefault(known.get(key, key), word)
        if first.partition("=")[2] != value and (_is_torn(first) or _is_torn(word)):
            raise ConfigError(
                f"Expected one value of {key}; got {first} and {word}, as a shell makes them of a "
                f"word with braces. Put the word in quotes: '{key}={{...}}'."
            )
        if first.partition("=")[2] != value:
            raise ConfigError(
                f"Expected one value of {key}; got {first} and {word}. Leave one of them out."
            )


def _is_torn(word: str) -> bool:
    """Return whether a word lacks one of a pair of brackets, as those of {a:[1,2]} in bash."""
    return word.count("[") != word.count("]")


def with_words(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """Return a command line's words with more, in place of those that set the same."""

    def place(word: str) -> str:
        key = word.lstrip("+").partition("=")[0]
        return ALIASES.get(key, key)

    said = {place(word) for word in more}
    return [*(word for word in words if place(word) not in said), *more]
