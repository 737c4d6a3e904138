"""What is kept between runs, and where."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from dpexp.records import RecordError, at_home, write_atomically

VERSIONS = 4
"""Versions of what makes values of a kind whose values stay: those of a few checkouts (ours)."""

MOST = 5000
"""Values of one version; beyond, the older half goes (ours)."""


def cache_dir() -> Path:
    """Return the folder: DPEXP_CACHE, else dpexp in XDG_CACHE_HOME, else ~/.cache/dpexp.

    Raises:
        ConfigError: DPEXP_CACHE is to lie in a home, or a variable, that there is not.
    """
    if chosen := os.environ.get("DPEXP_CACHE"):
        return Path(at_home("DPEXP_CACHE", chosen))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpexp"
    except RuntimeError:  # nobody's home: a place where nothing can be written
        return Path(os.devnull) / "dpexp"


class Kept:
    """Values of JSON that take longer to make than to read, a file each.

    They are named by whoever makes them, and have a folder for each version of what makes them. A
    folder that cannot be read or written costs time and nothing else; a DPEXP_CACHE that names none
    is a ConfigError, as everywhere.
    """

    def __init__(self, kind: str, version: bytes) -> None:
        """Take the name of a folder for the kind, and what decides values beside their names."""
        self._kind, self._version = kind, hashlib.sha256(version).hexdigest()[:16]

    def get(self, name: str) -> Any:
        """Return what was kept by that name; None where nothing was, or nothing that is JSON."""
        path = self._path(name)
        with suppress(OSError, ValueError, RecursionError):
            return json.loads(path.read_text(encoding="utf-8"))
        return None

    def put(self, name: str, value: Any) -> None:
        """Keep a value by a name of any characters, if reading it would give the same again."""
        text = json.dumps(value)
        if json.loads(text) == value:
            with suppress(OSError, RecordError):
                path = self._path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text, is_lasting=False)

    def _path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"

    @cached_property
    def _folder(self) -> Path:
        folder = cache_dir() / self._kind / self._version
        if folder.is_dir():
            with suppress(OSError):
                os.utime(folder)  # reading alone would not say that it is in use
            _thin_out(folder)
        else:
            _forget(folder.parent)
        return folder


def _thin_out(folder: Path) -> None:
    """Leave the newer half of a folder's files where there are too many."""
    with suppress(OSError):  # another process is at it
        files = list(folder.iterdir())
        if len(files) > MOST:
            for path in sorted(files, key=lambda path: path.stat().st_mtime)[: MOST // 2]:
                path.unlink(missing_ok=True)


def _forget(root: Path) -> None:
    """Leave the folders of the versions that were used last."""
    with suppress(OSError):
        folders = [path for path in root.glob("*") if path.is_dir()]
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime)[: -VERSIONS + 1]:
            shutil.rmtree(folder, ignore_errors=True)
