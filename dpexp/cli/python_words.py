"""The words of `dpexp.run`, and `dpexp.train`'s for what is refused in those of run.py."""

from __future__ import annotations

import re
import reprlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TypeVar

from omegaconf import OmegaConf

from dpexp.cli.groups import CONF
from dpexp.types import ConfigError

Result = TypeVar("Result")

ARGUMENTS = {
    "method": "method",
    "eps": "eps",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "optimizer": "optimizer",
    "optimizer.lr": "lr",
    "privacy.clip_norm": "clip_norm",
    "privacy.eps": "eps",
    "privacy.delta": "delta",
    "task.delta": "delta",
    "seed": "seed",
    "results": "results",
    "device": "device",
    "dataset_size": "dataset_size",
    "task.dataset_size": "dataset_size",
}
"""Arguments of `dpexp.train`, by the setting of run.py that each of them is."""

HANDED = {"task": "train and test", "model": "model", "data": "train and test"}
"""What is handed over in memory, by the choice of run.py that it stands in place of."""

ONE_BY_ONE = "For a sweep call dpexp.run once for each value."

REMEDY = re.compile(
    r"\b(?P<verb>[Ss]et|or(?! set\b)) (?P<key>[a-z_]+(?:\.\w+)*)"
    r"(?:=(?P<value>[\w.+-]*\w))?(?![\w=({\[])"
)
"""Where a message says what to set, or what else."""

PYTHONS = {"true": "True", "false": "False", "null": "None"}
NUMBER = re.compile(r"[+-]?\d[\d.eE+-]*")


def split(words: Sequence[str]) -> list[str]:
    """Split the words of `dpexp.run` as a shell does.

    Raises:
        ConfigError: for what is no text, or a quote that nothing ends.
    """
    for word in words:
        if not isinstance(word, str):
            way = "dpexp.run(*words)" if isinstance(word, list | tuple) else "dpexp.run('eps=8')"
            raise ConfigError(
                f"Expected words such as 'eps=8'; got {reprlib.repr(word)}. Write {way}."
            )
    try:
        return [part for word in words for part in shlex.split(word)]
    except ValueError as error:
        raise ConfigError(
            f"Expected words quoted as in a shell; got {' '.join(words)} ({error}). End the quote."
        ) from None


def require_no_options(words: Sequence[str]) -> None:
    """Refuse options of run.py, beside config folders, which are taken before.

    Raises:
        ConfigError: naming one.
    """
    for word in words:
        if word.startswith("-"):
            way = ONE_BY_ONE if word in ("-m", "--multirun") else f"Leave out {word}."
            raise ConfigError(f"Expected settings such as eps=8; got {word}. {way}")


@contextmanager
def one_by_one() -> Iterator[None]:
    """Say of a sweep what `dpexp.run` can do in its place."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(
            str(error).replace("For a sweep add -m;", f"{ONE_BY_ONE[:-1]};")
        ) from error


def in_arguments(function: Callable[..., Result]) -> Callable[..., Result]:
    """Name `dpexp.train`'s arguments in what is refused, not the settings that they become."""

    @wraps(function)
    def told(*args: Any, settings: Any, **arguments: Any) -> Result:
        try:
            return function(*args, settings=settings, **arguments)
        except ConfigError as error:
            line = str(error)
            for key, argument in ARGUMENTS.items():
                line = re.sub(rf"(?<![\w.']){re.escape(key)}\b", argument, line)
            line = REMEDY.sub(_in_python, line)
            raise type(error)(line + _of_quotes(line, settings)) from error

    return told


def _of_quotes(line: str, settings: Any) -> str:
    """Return what to add to a line that shows a setting's text as if it were a number."""
    for key, value in settings.items() if isinstance(settings, Mapping) else ():
        is_like = isinstance(value, str) and (NUMBER.fullmatch(value) or value in PYTHONS)
        if is_like and re.search(rf"\bgot (?:[\w.]+=)?{re.escape(value)}(?!\.?\w)", line):
            return f" settings['{key}'] is the text {value!r}; leave out its quotes."
    return ""


def _in_python(found: re.Match[str]) -> str:
    """Return a remedy that names a setting of run.py as `dpexp.train` takes it."""
    verb, key, value = found["verb"], found["key"], found["value"]
    if key == "task":
        return "Pass other examples"
    if (verb, key, value) == ("or", "noise", "false"):
        return "or eps=None"
    known = _top_settings() if value is None else _top_settings() | _groups()
    if "." not in key and (verb == "or" or key not in known):
        return found[0]
    if verb == "or" and value is None:
        return found[0]
    said = "..." if value is None else PYTHONS.get(value, value)
    if value is not None and said == value and not NUMBER.fullmatch(value):
        said = repr(value)
    return f"{verb} settings={{'{key}': {said}}}"


@cache
def _top_settings() -> frozenset[str]:
    """Return the names of run.py's settings that are no argument of `dpexp.train`."""
    names = {str(key) for key in OmegaConf.load(CONF / "config.yaml")}
    return frozenset(names - {*ARGUMENTS.values(), "defaults", "hydra"})


@cache
def _groups() -> frozenset[str]:
    """Return the names of run.py's choices that are no argument of `dpexp.train`."""
    names = {path.name for path in CONF.iterdir() if path.is_dir()}
    return frozenset(names - {*ARGUMENTS.values(), *HANDED})
