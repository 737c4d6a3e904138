"""What configs say in another way than when runs were first named by it.

A run's id hashes its config, and so the dotted names in it, and the settings that it lists. Moving a
module must make no run another one: ids are of first names, and configs of finished runs are read
with present ones. So it is with an optimizer's and a schedule's settings, of which a run once listed
those that its default would have taken as null.
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


CHOSEN = ("optimizer", "schedule")
"""Groups of which the settings that were not for what was chosen were null."""

ADAMS = {"betas": [0.9, 0.999], "eps": 1e-8}
"""What Adam takes of itself, which only language models' runs listed."""


def first_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that says all as it was said when runs were first named by it."""
    first = present_names(config)
    optimizer, schedule = (first.get(group) for group in CHOSEN)
    if isinstance(optimizer, dict):
        for key, own in ADAMS.items():
            if _lists_adams(first):
                optimizer.setdefault(key, None)
            elif optimizer.get(key) == own:
                del optimizer[key]
        optimizer.setdefault("momentum", None)
    if isinstance(schedule, dict):
        first["schedule"] = {"fractions": None, "factor": None} | schedule
    return _renamed(first, {new: old for old, new in MOVED.items()})


def present_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that says all as it is said now."""
    present = _renamed(config, MOVED)
    for group in CHOSEN:
        if isinstance(present.get(group), dict):
            present[group] = {k: v for k, v in present[group].items() if v is not None}
    return present


def _lists_adams(config: Mapping[str, Any]) -> bool:
    """Tell whether a run's optimizer was once Adam, or was to stand in its place."""
    model, method = (config.get(group) for group in ("model", "method"))
    is_texts = isinstance(model, dict) and "tokenizer" in model
    return is_texts or (isinstance(method, dict) and method.get("name") == "compressive")


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
