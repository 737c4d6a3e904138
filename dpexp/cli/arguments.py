"""Parse a script's command line: its own WORD=VALUE words, and Hydra overrides."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dpexp.cli import errors, folders
from dpexp.cli.command_line import require_once
from dpexp.cli.quoting import readable
from dpexp.cli.signals import restore_signals
from dpexp.cli.streams import safe_output
from dpexp.records import RecordError, is_neutral
from dpexp.reporting.schema.artifact import unknown
from dpexp.types import ConfigError

LONGEST_NAME = 200
"""Most bytes of a file's name that is typed: file systems take 255, with an ending (ours)."""

Reader = Callable[[str], Any]
"""Reads the value from WORD=VALUE; raises ConfigError if it is invalid."""


def split(
    words: Sequence[str], readers: Mapping[str, Reader], names: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Separate a script's own words from Hydra overrides.

    Args:
        words: the command line.
        readers: how to read each of the script's own words.
        names: word -> name of its value; the word itself if left out.

    Returns:
        Values by name, and the overrides.

    Raises:
        ConfigError: for an invalid value, a word with two values, or one that is not WORD=VALUE.
    """
    require_once(words, names)
    errors.own_words += readers  # a program may read its words in two parts
    own, overrides = {}, []
    for word in words:
        key, equals, _ = word.partition("=")
        if equals and key in readers:
            own[(names or {}).get(key, key)] = readers[key](word)
        elif word.startswith("~") or (equals and not word.startswith("-")):
            overrides += readable([word])
        else:
            raise ConfigError(f"Expected WORD=VALUE; got '{word}'. See --help.")
    return own, overrides


def only(words: Sequence[str], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Read a command line that takes no overrides; raises ConfigError as `split` does."""
    own, overrides = split(words, readers)
    for word in overrides:
        raise unknown("word", word.partition("=")[0], readers)
    return own


def text(word: str) -> str:
    """Read WORD=TEXT."""
    return word.partition("=")[2]


def file_name(word: str) -> str:
    """Read WORD=NAME, the name of files in a folder that is not said."""
    key, _, value = word.partition("=")
    if (size := len(os.fsencode(value))) > LONGEST_NAME:
        raise ConfigError(
            f"Expected {key} to have at most {LONGEST_NAME} bytes; got {size}. Set a shorter {key}."
        )
    if set(value) <= {"."} or {"/", "\\", "\0"} & set(value):
        raise ConfigError(
            f"Expected {key} to name a file, without a folder; got '{word}'. Set {key}, or results "
            "for another folder."
        )
    return value


def listed(word: str) -> tuple[str, ...]:
    """Read WORD=A,B, each once."""
    return tuple(dict.fromkeys(text(word).split(",")))


def truth(word: str) -> bool:
    """Read WORD=true or WORD=false."""
    key, _, value = word.partition("=")
    if value not in ("true", "false"):
        raise ConfigError(f"Expected {key}=true or {key}=false; got '{word}'.")
    return value == "true"


def seeds(word: str) -> tuple[int, ...]:
    """Read WORD=0,1,2."""
    try:
        found = tuple(int(seed) for seed in text(word).split(","))
    except ValueError:
        raise ConfigError(f"Expected whole numbers, as in seeds=0,1,2; got '{word}'.") from None
    if len({*found}) < len(found):  # one run would count as several
        raise ConfigError(f"Expected seeds that differ; got '{word}'.")
    return found


def number(word: str, above: float | None = None) -> float:
    """Read WORD=NUMBER; with a bound, the number must be above it."""
    key, _, value = word.partition("=")
    with suppress(ValueError):
        if above is None or float(value) > above:
            return float(value)
    bound = "" if above is None else f" above {above}"
    raise ConfigError(f"Expected a number{bound}, as in {key}=40e12; got '{word}'.")


positive = partial(number, above=0)


def whole(least: int) -> Reader:
    """Return a reader of WORD=NUMBER, a whole number >= `least`."""

    def read(word: str) -> int:
        key, _, value = word.partition("=")
        if not value.isdecimal() or int(value) < least:
            raise ConfigError(f"Expected {key} to be a whole number >= {least}; got '{word}'.")
        return int(value)

    return read


def changing(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides that change results; `device=cpu`, for example, does not."""
    return tuple(word for word in overrides if not is_neutral(word))


def may_mistake(overrides: Sequence[str]) -> bool:
    """Return whether overrides may be why a run is refused; where results go is none."""
    return any(word.partition("=")[0] != "results" for word in overrides)


def require_kept(page: Path, is_kept: bool) -> None:
    """Refuse to write over a page whose numbers the new one would not have.

    Args:
        page: to be written; there may be none yet.
        is_kept: whether the new page has all that this one has.

    Raises:
        ConfigError: if they would be lost.
    """
    if page.is_file() and not is_kept:
        raise ConfigError(
            f"Expected name= or results= beside these words: {page} is of other settings, and its "
            "numbers would be lost. Add name=NAME or results=FOLDER, or move that page away."
        )


def require_apart(overrides: Sequence[str], results: Path) -> None:
    """Refuse to overwrite the default tables with those of other settings.

    Raises:
        ConfigError: if overrides change results and `results` is the default folder.
    """
    changed = changing(overrides)
    if changed and results.resolve() == Path("results").resolve():
        raise ConfigError(
            f"Expected results= beside {' '.join(changed)}: the result would replace the "
            "table or figure without it. Add results=mine, or another folder."
        )


@safe_output()
def exit_code_of(
    program: Callable[[Sequence[str]], int],
    words: Sequence[str],
    doc: str | None,
    of_records: int = 1,
    is_quiet: bool = False,
) -> int:
    """Run a program, or print its help; return the exit code.

    Args:
        program: takes the words.
        words: the command line.
        doc: the help.
        of_records: exit code for a record that cannot be read or written; other user errors are 2.
        is_quiet: whether runs say warnings alone meanwhile.
    """
    if {"-h", "--help"} & set(words):
        print((doc or "").strip())
        return 0
    restore_signals()
    log = logging.getLogger("dpexp")
    level, shown = log.level, warnings.showwarning
    if is_quiet:
        log.setLevel(logging.WARNING)
    warnings.showwarning = errors.show_warning  # type: ignore[assignment]
    try:
        return program(folders.taken(words))
    except KeyboardInterrupt:
        line = "Interrupted. The same command goes on from what is done."
        return errors.fail(line, errors.INTERRUPTED)
    except Exception as error:
        said = errors.mistake(error)
        if said is None:
            raise
        return errors.fail(said, of_records if isinstance(error, RecordError) else 2)
    finally:
        log.setLevel(level)
        warnings.showwarning = shown
        errors.own_words.clear()
