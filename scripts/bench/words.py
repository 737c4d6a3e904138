"""Command lines of words with dashes, each of which may be said once."""

import argparse
from typing import Any, NoReturn

from dpexp.types import ConfigError


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
