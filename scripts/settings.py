"""What every run's settings must be like, whatever they are for; looked at before anything is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpexp.tracking import MODES
from dpexp.types import ConfigError, require_word

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

WORDS = {
    "results": "a folder",
    "data_root": "a folder",
    "model_root": "a folder",
    "device": "auto, cpu, cuda or cuda:N",
}


def check(config: Mapping[str, Any]) -> None:
    """Refuse what no run can mean.

    Args:
        config: a run's, resolved.

    Raises:
        ConfigError: naming the setting.
    """
    _check_groups(config)
    _check_words(config)
    _check_numbers(config)


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
