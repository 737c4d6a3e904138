"""What configs say in another way than when runs were first named by it.

A run's id hashes its config, and so the dotted names and the settings in it. Moving a module must
make no run another one: ids are of first names, and configs of finished runs are read with present
ones. The settings of an optimizer and of a schedule once listed, as null, what the default would
have taken and the chosen one does not: ids are of that list.
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

ADAMS = {"betas": [0.9, 0.999], "eps": 1e-8}
"""What torch's Adam takes of itself: runs listed it only where Adam was the default."""


def first_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that says all as it was said when runs were first named by it."""
    first = _renamed(config, {new: old for old, new in MOVED.items()})
    if isinstance(optimizer := first.get("optimizer"), dict):
        first["optimizer"] = _first_settings(optimizer, _had_adam(first))
    if isinstance(schedule := first.get("schedule"), dict):
        first["schedule"] = {"fractions": None, "factor": None} | schedule
    return first


def _first_settings(optimizer: dict[str, Any], had_adam: bool) -> dict[str, Any]:
    """List an optimizer's settings beside those that the default would have taken, as null."""
    if had_adam:
        return dict.fromkeys(("momentum", *ADAMS)) | optimizer
    said = {key: value for key, value in optimizer.items() if value != ADAMS.get(key, ...)}
    return {"momentum": None} | said


def _had_adam(config: Mapping[str, Any]) -> bool:
    """Return whether Adam was the default of a run, or of the model that its method prefers."""
    model, method = (config.get(group) for group in ("model", "method"))
    is_texts = isinstance(model, dict) and "tokenizer" in model
    return is_texts or (isinstance(method, dict) and method.get("name") == "compressive")


def present_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with every moved name as it is now."""
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
