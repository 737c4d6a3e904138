"""A cache on disk for values that outlive a run."""

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
"""Versions kept of each kind, enough for a few checkouts (ours)."""

MOST = 5000
"""Values kept of one version; beyond that, the older half is deleted (ours)."""


def cache_dir() -> Path:
    """Return the folder: DPEXP_CACHE, else dpexp in XDG_CACHE_HOME, else ~/.cache/dpexp.

    Raises:
        ConfigError: DPEXP_CACHE names a home directory or variable that does not exist.
    """
    if chosen := os.environ.get("DPEXP_CACHE"):
        return Path(at_home("DPEXP_CACHE", chosen))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpexp"
    except RuntimeError:  # no home directory: use a path where nothing can be written
        return Path(os.devnull) / "dpexp"


class Kept:
    """Cached JSON values that are slower to compute than to read, one file each.

    Each version of the code that computes them has its own folder. A folder that cannot be read or
    written costs time and nothing else; an invalid DPEXP_CACHE is a ConfigError.
    """

    def __init__(self, kind: str, version: bytes) -> None:
        """Set where values are kept.

        Args:
            kind: name of the folder.
            version: whatever decides a value besides its name.
        """
        self._kind, self._version = kind, hashlib.sha256(version).hexdigest()[:16]

    def get(self, name: str) -> Any:
        """Return the value of this name; None if there is none, or it is not JSON."""
        path = self._path(name)
        with suppress(OSError, ValueError, RecursionError):
            return json.loads(path.read_text(encoding="utf-8"))
        return None

    def put(self, name: str, value: Any) -> None:
        """Store a value under any name, if it survives a round trip through JSON."""
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
                os.utime(folder)  # reading alone would not mark it as used
            _thin_out(folder)
        else:
            _forget(folder.parent)
        return folder


def _thin_out(folder: Path) -> None:
    """Delete the older half of a folder's files if there are too many."""
    with suppress(OSError):  # another process may be deleting them
        files = list(folder.iterdir())
        if len(files) > MOST:
            for path in sorted(files, key=lambda path: path.stat().st_mtime)[: MOST // 2]:
                path.unlink(missing_ok=True)


def _forget(root: Path) -> None:
    """Delete all folders but those of the versions used last."""
    with suppress(OSError):
        folders = [path for path in root.glob("*") if path.is_dir()]
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime)[: -VERSIONS + 1]:
            shutil.rmtree(folder, ignore_errors=True)
