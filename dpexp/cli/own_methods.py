"""The methods of conf/method and of the user's own config folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from dpexp.cli.folders import folders_of, options_in
from dpexp.cli.instantiate import admit, find


def methods(words: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the method files' contents by name, the user's own folders included.

    Args:
        words: of a command line; those that name config folders are read.

    Raises:
        ConfigError: for a folder that does not exist or is no file:// URL.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in options_in(folders_of(words), "method"):
        found.setdefault(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return found


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
