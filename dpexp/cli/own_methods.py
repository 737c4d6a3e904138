"""The methods of conf/method and of the user's own config folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from dpexp.cli.groups import CONF
from dpexp.cli.instantiate import admit
from dpexp.types import ConfigError

SEARCHPATH = "hydra.searchpath"


def is_searchpath(word: str) -> bool:
    """Return whether a word names config folders, e.g. hydra.searchpath=[file:///my/conf]."""
    return word.lstrip("+").partition("=")[0] == SEARCHPATH


def methods(words: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the method files' contents by name, the user's own folders included.

    Args:
        words: of a command line; those that name config folders are read.

    Raises:
        ConfigError: for a folder that does not exist or is no file:// URL.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in (CONF, *_folders(words)):
        for path in sorted((folder / "method").glob("*.yaml")):
            found.setdefault(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return found


def admit_methods(words: Sequence[str] = ()) -> None:
    """Import these methods' modules, so that verification finds their statements."""
    for node in methods(words).values():
        target = {**node, **node.get("method", {})}.get("_target_")
        if target is not None:  # else a file among its defaults has it
            admit(target)


def _folders(words: Sequence[str]) -> list[Path]:
    folders = []
    for word in filter(is_searchpath, words):
        (override,) = OverridesParser.create().parse_overrides([word])
        value = override.value()
        for place in value if isinstance(value, list) else [value]:
            url = urlsplit(str(place))
            folder = Path(unquote(url.path))
            if url.scheme != "file" or not folder.is_dir():
                raise ConfigError(
                    f"Expected {SEARCHPATH} to name folders, as file:///my/conf; got {place}."
                )
            folders.append(folder)
    return folders
