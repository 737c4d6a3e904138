"""What configs name by another name than when runs were first named by it.

A run's id hashes its config, and so the dotted names in it. Moving a module must make no run
another one: ids are of first names, and configs of finished runs are read with present ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOVED = {
    "dpexp.models.prompts": "dpexp.training.prompts",
    "dpexp.models.warm_start": "dpexp.training.warm_start",
    "dpexp.schedules": "dpexp.training.schedules",
    "dpexp.tasks": "dpexp.data",
    "dpexp.train": "dpexp.training.train",
}
"""Modules that a config may name, or what is in them, by first name: each with its present one.

No name is added twice: what moves again gets another present name here.
"""

NAMING = ("_target_", "loop")
"""Settings that hold such a name, at any depth."""


def first_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Give a config with every moved name as it was when runs were first named by it."""
    return _renamed(config, {new: old for old, new in MOVED.items()})


def present_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Give a config with every moved name as it is now."""
    return _renamed(config, MOVED)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _named(item, names)
            if key in NAMING and isinstance(item, str)
            else _renamed(item, names)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_renamed(item, names) for item in value]
    return value


def _named(name: str, names: Mapping[str, str]) -> str:
    for before, after in names.items():
        if name == before or name.startswith(f"{before}."):
            return after + name[len(before) :]
    return name
