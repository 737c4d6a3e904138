"""Tell whose a module is: the user's own, or dpexp's, the standard library's or installed."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries, whose versions a record has."""

_OTHERS = tuple(
    Path(folder).resolve()
    for folder in (
        *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib")),
        Path(__file__).parent,
    )
)


@cache
def is_own_file(path: str) -> bool:
    """Return whether a file or folder is the user's own, by its place once links are followed.

    A file of the user's may have the name of a library's module; what counts is its place.
    """
    place = Path(path).resolve()
    if {*INSTALLED} & {*place.parts}:
        return False
    return not any(place.is_relative_to(folder) for folder in _OTHERS)


def is_own(name: str | None) -> bool:
    """Return whether code of a module is the user's own: of a script, a notebook or their files.

    Code whose origin is not known counts as theirs, as what is made by `exec` does.

    Args:
        name: of the module, which has been loaded.
    """
    if name is None or name == "__main__":
        return True
    top = name.partition(".")[0]
    for each in (name, top):
        module = sys.modules.get(each)
        places = [getattr(module, "__file__", None)]
        if places == [None]:
            places = [*getattr(module, "__path__", ())]
        if places and places[0] is not None:
            return any(is_own_file(str(place)) for place in places)
    return top not in (*sys.stdlib_module_names, "builtins")
