"""What every run's settings must be like, whatever they are for; looked at before anything is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dpexp.tracking import MODES
from dpexp.types import ConfigError, require_word
from scripts.mistakes import CONF, nearest

GROUPS = {
    "profile": "profile=embedded",
    "task": "task=digits",
    "model": "model=wrn10_1",
    "method": "method=rgp",
    "privacy": "privacy.clip_norm=1",
    "optimizer": "optimizer._target_=torch.optim.Adam",
    "schedule": "schedule._target_=dpexp.schedules.LinearDecay",
    "checkpoint": "checkpoint.steps=100",
    "wandb": "wandb.mode=offline",
}
"""Settings that have others below them, with an example of one."""

NAMED = ("method", "model", "task", "profile", "public", "attack", "audit")
"""Groups whose settings hold the name of the option that was chosen."""

WORDS = {
    "results": "a folder",
    "data_root": "a folder",
    "model_root": "a folder",
    "device": "auto, cpu, cuda or cuda:N",
}


def check_names(overrides: Sequence[str]) -> None:
    """Refuse a new name for what was chosen by name: it would stand in records and tables.

    What is made of another `_target_` may have one of its own.

    Args:
        overrides: of the command line.

    Raises:
        ConfigError: naming the word.
    """
    places = [word.lstrip("+~").partition("=")[0] for word in overrides]
    for place, word in zip(places, overrides, strict=True):
        group, dot, key = place.rpartition(".")
        if dot and key == "name" and group in NAMED and f"{group}._target_" not in places:
            raise ConfigError(
                f"Expected {group} to keep the name that it is chosen by; got {word}. Leave it out."
            )


def check(config: Mapping[str, Any]) -> None:
    """Refuse what no run can mean.

    Args:
        config: a run's, resolved.

    Raises:
        ConfigError: naming the setting.
    """
    _check_keys(config)
    _check_groups(config)
    _check_words(config)
    _check_numbers(config)


def _check_keys(config: Mapping[str, Any]) -> None:
    """Refuse a setting that nothing reads; a table that others look values up in may be new."""
    tree = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    groups = [group for entry in tree.pop("defaults") if isinstance(entry, dict) for group in entry]
    known = [key for key in (*tree, *groups, "loop") if key.isidentifier() and key != "hydra"]
    for key, value in config.items():
        if key not in known and not isinstance(value, Mapping):
            raise ConfigError(
                f"Unknown key {key}; valid here: {', '.join(known)}.{nearest(key, known)}"
            )


def _check_groups(config: Mapping[str, Any]) -> None:
    for group, example in GROUPS.items():
        if not isinstance(config.get(group), Mapping):
            raise ConfigError(
                f"Expected {group} to hold settings of its own; {_found(config, group)}. Set what "
                f"is below it, as in {example}."
            )


def _check_words(config: Mapping[str, Any]) -> None:
    for name, kind in WORDS.items():
        if not isinstance(config.get(name), str) or not config[name]:
            raise ConfigError(f"Expected {name} to be {kind}; {_found(config, name)}. Set {name}.")
    if "mode" not in config["wandb"]:
        raise ConfigError(f"Expected wandb.mode, one of {', '.join(MODES)}; it was taken out.")
    require_word("wandb.mode", config["wandb"]["mode"], MODES)


def _check_numbers(config: Mapping[str, Any]) -> None:
    """Refuse a seed or an optimizer's numbers; others are looked at by who reads them."""
    seed = config.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(
            f"Expected seed to be a whole number >= 0; {_found(config, 'seed')}. Set seed."
        )
    for name, value in config["optimizer"].items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"Expected optimizer.{name} to be finite; got {value}.")
    rate = config["optimizer"].get("lr")
    if isinstance(rate, str | bool):
        raise ConfigError(f"Expected optimizer.lr to be a number; got {rate}. Set optimizer.lr.")


def _found(config: Mapping[str, Any], name: str) -> str:
    if name not in config:
        return "it was taken out"
    value = config[name]
    return f"got {name}={'null' if value is None else value}"
