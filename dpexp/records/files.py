"""Replace files atomically, and expand paths."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from dpexp.types import ConfigError

TEMPORARY = ".unfinished-"
"""Prefix of a file's name while it is being written."""


VARIABLE = r"\$([A-Za-z_]\w*)"
"""An environment variable in a path. With braces it is an OmegaConf interpolation."""


class RecordError(RuntimeError):
    """A record could not be written. The message is one line; the old file survives."""


def unmade(path: Path, error: OSError) -> RecordError:
    """Return the error of a run whose folder or file cannot be made below `results`."""
    is_long = error.errno == errno.ENAMETOOLONG
    remedy = "a shorter path" if is_long else "a folder that can be written to"
    return RecordError(f"Cannot make {path}: {error.strerror}. Set results to {remedy}.")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there.

    Raises:
        RecordError: if it cannot be made, e.g. on a disk that is read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"Cannot make {folder}: {error.strerror}.") from error


def replace_file(
    path: Path, write: Callable[[IO[bytes]], None], *, is_lasting: bool = True
) -> None:
    """Write a file atomically: a reader sees the whole old file or the whole new one.

    Args:
        path: of the file; its folder exists.
        write: fills the open temporary file, which is next to it.
        is_lasting: whether to wait for the disk, so that the file survives a power loss; a file
            that can be made again need not.

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
    """Return a path with ~, ~user and $VARIABLE expanded; a shell expands unquoted ones only.

    Raises:
        ConfigError: the home directory does not exist, or the variable is not set.
    """
    expanded = re.sub(VARIABLE, lambda match: os.environ.get(match[1], match[0]), path)
    try:
        expanded = str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded
    except RuntimeError:
        raise ConfigError(
            f"Expected {setting} in an existing home directory; got {setting}={path}. Give an "
            "absolute path."
        ) from None
    if unset := re.search(VARIABLE, expanded):
        raise ConfigError(
            f"Expected {setting} to use variables that are set; got {setting}={path}. Set "
            f"{unset[1]}, or give the path without it."
        )
    return expanded


def write_atomically(path: str | Path, text: str, *, is_lasting: bool = True) -> None:
    """Replace a text file as a whole; see `replace_file`."""

    def write(file: IO[bytes]) -> None:
        file.write(text.encode())

    replace_file(Path(path), write, is_lasting=is_lasting)
