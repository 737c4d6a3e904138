"""Refuse a folder of data or models that was named and does not exist.

The default folders need not exist: data and models then come from the hub. A folder of the user's
that is missing is a mistake, also where nothing would be read from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpexp.types import ConfigError

DEFAULTS = {"data_root": "data", "model_root": "models"}
"""As in conf/config.yaml."""


def require_named(config: Mapping[str, Any]) -> None:
    """Refuse a config that names a folder of data or models that is not there.

    Raises:
        ConfigError: naming the setting.
    """
    for place, folder in _named("", config):
        path = Path(folder).expanduser()
        if not os.path.isdir(path):  # Path.is_dir raises for a name that is too long
            key = place.rpartition(".")[2]
            found = "a file" if os.path.exists(path) else "no such folder"
            raise ConfigError(
                f"Expected {place} to be a folder that exists; got {place}={folder} ({found}). Set "
                f"{place}, or leave it out for {DEFAULTS[key]}, and the hub where that has none."
            )


def _named(place: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the folders that are not the defaults, those of the whole config first."""
    inner = []
    for key, value in node.items():
        where = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping):
            inner.append((where, value))
        elif isinstance(value, str) and value != DEFAULTS.get(key, value):
            yield where, value
    for where, value in inner:
        yield from _named(where, value)
