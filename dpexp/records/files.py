"""Files that are whole at every moment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from dpexp.types import ConfigError

TEMPORARY = ".unfinished-"
"""How the name of a file begins while it is being written."""


VARIABLE = r"\$([A-Za-z_]\w*)"
"""A variable of the environment in a path. In braces it is OmegaConf's."""


class RecordError(RuntimeError):
    """A record could not be written; one line, and what was there before is still there."""


def replace_file(
    path: Path, write: Callable[[IO[bytes]], None], *, is_lasting: bool = True
) -> None:
    """Write a file so that a reader sees the old one or the new one, whole.

    Args:
        path: where it will be; its folder exists.
        write: fills the open temporary file beside it.
        is_lasting: whether to wait for the disk, so that the file outlives a loss of power; what is
            made again where it is lost need not.

    Raises:
        RecordError: if it cannot be written, e.g. on a full disk; the old file survives.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as file:
            write(file)
            if is_lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise RecordError(
                f"Cannot write {path}: {error.strerror}. What was saved before is untouched; "
                "make room or set results to another folder, and run the same command again."
            ) from error
        raise


def at_home(setting: str, path: str) -> str:
    """Return a path with ~, ~user and $VARIABLE replaced, as a shell does only where it is let.

    Raises:
        ConfigError: there is no such home, or the variable is not set.
    """
    known = re.sub(VARIABLE, lambda found: os.environ.get(found[1], found[0]), path)
    try:
        known = str(Path(known).expanduser()) if known.startswith("~") else known
    except RuntimeError:
        raise ConfigError(
            f"Expected {setting} to lie in a home that there is; got {setting}={path}. Name the "
            "folder from the root."
        ) from None
    if unset := re.search(VARIABLE, known):
        raise ConfigError(
            f"Expected {setting} to be of variables that are set; got {setting}={path}. Set "
            f"{unset[1]}, or name the folder."
        )
    return known


def write_atomically(path: str | Path, text: str, *, is_lasting: bool = True) -> None:
    """Replace a text file as a whole; see `replace_file`."""

    def write(file: IO[bytes]) -> None:
        file.write(text.encode())

    replace_file(Path(path), write, is_lasting=is_lasting)
