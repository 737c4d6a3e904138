"""Whether a run keeps its model, in words, and the files that hold it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dpexp.records.files import TEMPORARY

WEIGHTS = "model.safetensors"
"""A kept model's weights, under the name that libraries look for."""

KEEP, DISCARD, AUTO = WORDS = ("keep", "discard", "auto")
"""Values of `weights`; auto keeps the model unless the run is a table's."""

KEPT_FILES = "kept_files"
"""Entry of result.json: SHA-256 by path of what a kept model is loaded with, beside its weights."""


def place(directory: Path, write: Callable[[Path], None]) -> list[str]:
    """Let a library write files, and move them into a run's directory.

    Args:
        directory: the run's.
        write: fills an empty folder.

    Returns:
        The files' paths in the directory, with slashes.
    """
    folder = directory / f"{TEMPORARY}{os.getpid()}-kept"
    folder.mkdir()
    try:
        write(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder) for path in paths]
        for path, name in zip(paths, names, strict=True):
            (directory / name).parent.mkdir(exist_ok=True, parents=True)
            os.replace(path, directory / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [name.as_posix() for name in names]


def hashes(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files in a run's directory, by name."""
    return {name: _sha256(directory / name) for name in names}


def changed(directory: Path, result: Mapping[str, Any]) -> list[str]:
    """Return what of a kept model's files is not what result.json has; none where it has none.

    Args:
        directory: the run's, with the model's weights.
        result: contents of result.json.
    """
    expected = result.get(KEPT_FILES, {})
    if not isinstance(expected, dict):
        return [f"result.json {KEPT_FILES}: expected the hashes of a kept model's files"]
    found = []
    for name, sha in expected.items():
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute():
            found.append(f"result.json {KEPT_FILES}: {name!r} is no file of a kept model")
        elif not (path := directory / name).is_file():
            found.append(f"{name}: missing; the run kept it with its model")
        elif _sha256(path) != sha:
            found.append(f"{name} does not match its hash in result.json")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
