"""Keep run ids stable when modules move or settings are listed differently.

A run's id hashes its config, dotted names and settings included. So that moving a module changes
no id, ids use the first name of each module, and configs of finished runs are read with present
names. A model that differs from the choice it is made of is named for what it is; ids use the
choice's name, beside the settings that differ. Optimizer and schedule configs once listed, as null,
the settings that only the default optimizer or schedule has; ids still use that list. Before a
language model's precision could be auto, the default was bfloat16, which auto stands for in ids;
result.json says which it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOVED = {
    "dpexp.models.prompts": "dpexp.training.prompts",
    "dpexp.models.warm_start": "dpexp.training.warm_start",
    "dpexp.schedules": "dpexp.training.schedules",
    "dpexp.tasks": "dpexp.data",
    "dpexp.train": "dpexp.training.train",
}
"""First name of each moved module to its present one; configs name modules or their contents.

List each first name once: when a module moves again, change its present name here.
"""

CHANGED = re.compile(r"(?P<with>\w+) with \w+=.*|.* in place of (?P<in_place>\w+)", re.DOTALL)
"""Names of models that differ from a choice of conf/model; ids use the choice's own."""

ADDED = {
    "dpexp.models.from_timm.classifier": {"channels_last": False},
    "dpexp.models.from_torchvision.classifier": {"channels_last": False},
    "dpexp.models.from_transformers.classifier": {"channels_last": False},
    "dpexp.models.resnet.ResNet": {"channels_last": False},
    "dpexp.models.wrn_standardized.StandardizedWRN": {"channels_last": False},
}
"""What a model was built with before it was a setting."""

NAMING = ("_target_", "loop")
"""Settings that hold such a name, at any depth."""

ADAMS = {"betas": [0.9, 0.999], "eps": 1e-8}
"""Defaults of torch's Adam; configs listed them only where Adam was the default optimizer."""


def first_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in its first form, from which run ids are computed."""
    first = _renamed(config, {new: old for old, new in MOVED.items()})
    if isinstance(model := first.get("model"), dict) and isinstance(model.get("name"), str):
        model["name"] = _first_name(model["name"])
    if isinstance(optimizer := first.get("optimizer"), dict):
        first["optimizer"] = _first_settings(optimizer, _had_adam(first))
    if isinstance(schedule := first.get("schedule"), dict):
        first["schedule"] = {"fractions": None, "factor": None} | schedule
    if isinstance(model := first.get("model"), dict) and model.get("precision") == "auto":
        first["model"] = model | {"precision": "bfloat16"}
    return first


def _first_name(model: str) -> str:
    """Return the choice that a model's name began as, before it says what differs."""
    found = CHANGED.fullmatch(model)
    return (found["with"] or found["in_place"]) if found else model


def _first_settings(optimizer: dict[str, Any], had_adam: bool) -> dict[str, Any]:
    """Return an optimizer's settings, with those that only the default optimizer has as null."""
    if had_adam:
        return dict.fromkeys(("momentum", *ADAMS)) | optimizer
    listed = {key: value for key, value in optimizer.items() if value != ADAMS.get(key, ...)}
    return {"momentum": None} | listed


def _had_adam(config: Mapping[str, Any]) -> bool:
    """Return whether Adam was the default optimizer of a run, or of its method's default model."""
    model, method = (config.get(group) for group in ("model", "method"))
    is_texts = isinstance(model, dict) and "tokenizer" in model
    return is_texts or (isinstance(method, dict) and method.get("name") == "compressive")


def present_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with every moved name replaced by its present one, and what was added."""
    present = _renamed(config, MOVED)
    if isinstance(model := present.get("model"), dict):
        present["model"] = ADDED.get(str(model.get("_target_")), {}) | model
    return present


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
