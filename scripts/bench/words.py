"""Command lines of words with dashes, each of which may be said once; and the bench's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from dpexp.reporting.schema.artifact import unknown
from dpexp.types import ConfigError

STEPS = ("vision", "language", "recipes-vision", "recipes-language", "recipes-tuned")
"""Cases of steps, by name."""

RUNS = ("run-vision", "run-small", "run-language")
"""Cases of whole runs, by name."""

ONLY = (*STEPS, "gep", "convolutions", "run", *RUNS)
"""What --only takes."""


class Once(argparse.Action):
    """Stores a value; refuses a second one, of which argparse would take the last."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value."""
        said = namespace.__dict__.setdefault("said", {})
        if self.dest in said:
            parser.error(f"{option_string} is said twice, as {said[self.dest]} and {values}")
        said[self.dest] = values
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose words are said once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Begin as argparse does."""
        super().__init__(*args, **kwargs)
        self.register("action", None, Once)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(f"Expected words of --help; {message}.")


def read(words: Sequence[str] | None = None, description: str = "") -> argparse.Namespace:
    """Read the bench's command line.

    Args:
        words: of it; None: those of this process.
        description: what --help begins with.

    Raises:
        ConfigError: for a word that is none, or a number out of range.
    """
    parser = Parser(prog="python -m scripts.bench", description=description)
    parser.add_argument("--only", help=f"one of {', '.join(ONLY)}")
    parser.add_argument("--batch", type=int, help="examples a step; each case has its own")
    parser.add_argument("--rounds", type=int, help="12; of whole runs 5")
    parser.add_argument("--examples", type=int, help="training examples of a whole run")
    parser.add_argument("--test", type=int, help="test examples of a whole run, 1000 if there")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, help="folder; results, unless sizes are given")
    parser.add_argument("--weigh", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.only is not None and arguments.only not in ONLY:
        raise unknown("case", arguments.only, ONLY)
    for number in ("rounds", "batch", "examples", "test"):
        if (given := getattr(arguments, number)) is not None and given < 1:
            raise ConfigError(f"Expected --{number} to be at least 1; got {given}.")
    of_runs = whole(arguments.only)
    if not of_runs and (arguments.examples or arguments.test):
        raise ConfigError(
            f"Expected --examples and --test beside --only run or {' or '.join(RUNS)}; got "
            f"--only {arguments.only}."
        )
    is_of_cpus = bool(of_runs) or arguments.only == "convolutions"
    if is_of_cpus and arguments.device not in ("auto", "cpu"):
        raise ConfigError(f"Expected --device=cpu of {arguments.only}; got {arguments.device}.")
    if arguments.only == "convolutions":
        from dpexp.kernels import compiled  # imports torch

        if compiled() is None:
            raise ConfigError(
                "Expected kernels of our own for --only convolutions; they did not compile."
            )
    sizes = [name for name in ("batch", "examples", "test") if getattr(arguments, name) is not None]
    if arguments.results is None and sizes and not arguments.weigh:
        raise ConfigError(
            f"Expected --results beside --{sizes[0]}: the page would replace the one of the usual "
            "sizes. Add --results mine, or another folder."
        )
    arguments.results = arguments.results or Path("results")
    return arguments


def whole(only: str | None) -> list[str]:
    """Return the cases of whole runs that a choice stands for: none unless it names them."""
    return [case for case in RUNS if only in ("run", case)]
