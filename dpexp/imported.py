"""Tell whose a module is, the user's own or a library's, and what was in its file when imported.

Python keeps no such content: `import dpexp` begins to remember that of the user's own files.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

BEGUN = time.time_ns()
"""When this process imported dpexp, before any other of its modules: nanoseconds since 1970."""

INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries, whose versions a record has."""

_PLACES = sysconfig.get_paths()
_OTHERS = [
    Path(folder).resolve()
    for folder in (_PLACES["stdlib"], _PLACES["platstdlib"], str(Path(__file__).parent))
]


@cache
def is_own_file(path: str) -> bool:
    """Return whether a file or folder is the user's own, by its place once links are followed.

    A file of the user's may have the name of a library's module; what counts is its place.
    """
    folder, name = os.path.split(path)
    if not folder or name in ("", ".", "..") or os.path.islink(path):
        return _is_own_place(Path(path).resolve())
    place = _resolved(folder)  # once for all files of a folder: thousands are asked about at once
    return _is_own_place(place) and name not in INSTALLED and place / name not in _OTHERS


@cache
def _resolved(folder: str) -> Path:
    return Path(folder).resolve()


@cache
def _is_own_place(place: Path) -> bool:
    """Return whether a place, with no links in it, is outside all folders of libraries."""
    if {*INSTALLED} & {*place.parts}:
        return False
    return not any(place.is_relative_to(folder) for folder in _OTHERS)


def is_own(name: Any) -> bool:
    """Return whether code of a module is the user's own: of a script, a notebook or their files.

    Code whose origin is not known counts as theirs, as what is made by `exec` does.

    Args:
        name: of the module, which has been loaded; None: not known. What is no word, as some of
            Python's own types have it, is Python's.
    """
    if name is None or name == "__main__":
        return True
    if not isinstance(name, str):
        return False
    top = name.partition(".")[0]
    for each in (name, top):
        module = sys.modules.get(each)
        places = [getattr(module, "__file__", None)]
        if places == [None]:
            places = [*getattr(module, "__path__", ())]
        if places and places[0] is not None:
            return any(is_own_file(str(place)) for place in places)
    return top not in (*sys.stdlib_module_names, "builtins")


def file_of(origin: str) -> Path:
    """Return a module's file, or the archive that it is in."""
    path = Path(origin)
    if os.path.isfile(origin):
        return path
    return next((each for each in path.parents if each.is_file()), path)


_CONTENT: dict[tuple[str, str], bytes] = {}
"""Of the user's modules, by name and file: what was in the file as the module was imported."""

_EARLIER: set[tuple[str, str]] = set()
"""Of them, those that had been imported before dpexp was: their content may be a later one."""


def content_at_import(name: str, origin: str) -> tuple[bytes | None, bool]:
    """Return what was in a module's file as it was imported, and whether that is certain.

    Args:
        name: of the module.
        origin: its file, as its specification has it.

    Returns:
        None if it was imported by other means than Python's own.
    """
    key = name, str(file_of(origin))
    return _CONTENT.get(key), key not in _EARLIER


def _remember(name: str, origin: str) -> tuple[str, str] | None:
    if not is_own_file(origin):
        return None
    file = file_of(origin)
    key = name, str(file)
    try:
        _CONTENT[key] = file.read_bytes()
    except OSError:
        return None
    _EARLIER.discard(key)
    return key


class _Remembering(MetaPathFinder):
    """Finds what the finders after it find, and remembers what is in the user's files by then."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what is imported now, or reloaded if there is a target."""
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                is_to_load = target is not None or name not in sys.modules
                if is_to_load and spec.has_location and spec.origin is not None:
                    _remember(name, spec.origin)
                return spec
        return None


def remember_imports() -> None:
    """Remember what is in the user's files when they are imported, and what is in them now."""
    if any(isinstance(finder, _Remembering) for finder in sys.meta_path):
        return
    for name, module in [*sys.modules.items()]:
        origin = getattr(module, "__file__", None)
        if isinstance(origin, str) and (key := _remember(name, origin)) and name != "__main__":
            _EARLIER.add(key)
    index = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(index, _Remembering())


def is_written_in(function: Any, package: str) -> bool:
    """Return whether a function is a package's, by its code as well as by what it says.

    A function of the user's says so too where it was decorated by `functools.wraps`.

    Args:
        function: or any other object, which is as its `__module__` says.
        package: name of it, as "dpexp".
    """
    said = [getattr(function, "__module__", None)]
    if isinstance(function, FunctionType):
        said.append(function.__globals__.get("__name__"))
    return all(str(each).partition(".")[0] == package for each in said)
