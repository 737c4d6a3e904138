"""The methods of conf/method and of the user's own config folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dpexp.cli.folders import folders_of, options_in
from dpexp.cli.instantiate import admit, find
from dpexp.reporting.schema.kinds import SafeLoader


def methods(words: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the method files' contents by name, the user's own folders included.

    Args:
        words: of a command line; those that name config folders are read.

    Raises:
        ConfigError: for a folder that does not exist or is no file:// URL.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in options_in(folders_of(words), "method"):
        if path.stem not in found:
            found[path.stem] = _contents(path)
    return found


def method(name: str) -> dict[str, Any]:
    """Return the contents of one of dpexp's method files; {} if there is none of this name."""
    paths = (path for path in options_in([], "method") if path.stem == name)
    return next(map(_contents, paths), {})


def chooses(name: str, part: str) -> bool:
    """Return whether a method's file chooses a part, as compressive SGD's does the schedule.

    Args:
        name: of one of dpexp's method files; any other chooses nothing.
        part: a config group, as "public".
    """
    entries = method(name).get("defaults", ())
    return any(
        any(str(group).endswith(f"/{part}") for group in entry)
        if isinstance(entry, dict)
        else chooses(entry, part)  # another method's file, which this one begins with
        for entry in entries
    )


def _contents(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(encoding="utf-8"), SafeLoader) or {}


def admit_methods(words: Sequence[str] = ()) -> None:
    """Import these methods' modules, so that verification finds their statements.

    Raises:
        ConfigError: for a method of the user's own folders that cannot be imported.
    """
    ours = methods()
    for name, node in methods(words).items():
        target = {**node, **(node.get("method") or {})}.get("_target_")
        if target is None:  # a file among its defaults has it
            continue
        if name in ours:
            admit(target)
        else:
            find("method", target)
