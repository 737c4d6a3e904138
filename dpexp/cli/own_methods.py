"""The methods that conf/method names, and a person's own folder of conf beside it."""

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
    """Return whether a word names further folders of conf, as hydra.searchpath=[file:///my/conf]."""
    return word.lstrip("+").partition("=")[0] == SEARCHPATH


def methods(words: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return what each file of conf/method says, by its name, a person's own folders included.

    Args:
        words: of a command line; those that name folders of conf are read.

    Raises:
        ConfigError: for a folder that is not there, or of another kind than file://.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in (CONF, *_folders(words)):
        for path in sorted((folder / "method").glob("*.yaml")):
            found.setdefault(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return found


def admit_methods(words: Sequence[str] = ()) -> None:
    """Import the modules of all these methods, so that verification finds what they state."""
    for said in methods(words).values():
        target = {**said, **said.get("method", {})}.get("_target_")
        if target is not None:  # else it is another file's, which the defaults name
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
