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

WORDS = ("results", "data_root", "model_root", "device")


def check(config: Mapping[str, Any]) -> None:
    """Refuse what no run can mean.

    Args:
        config: a run's, resolved.

    Raises:
        ConfigError: naming the setting.
    """
    for group, example in GROUPS.items():
        if not isinstance(config.get(group), Mapping):
            raise ConfigError(
                f"Expected {group} to hold settings of its own; {_found(config, group)}. Set what "
                f"is below it, as in {example}."
            )
    for name in WORDS:
        if not isinstance(config.get(name), str) or not config[name]:
            raise ConfigError(f"Expected {name} to be a word; {_found(config, name)}. Set {name}.")
    seed = config.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(
            f"Expected seed to be a whole number >= 0; {_found(config, 'seed')}. Set seed."
        )
    rate = config["optimizer"].get("lr")
    if isinstance(rate, float) and not math.isfinite(rate):
        raise ConfigError(f"Expected optimizer.lr to be finite; got {rate}. Set optimizer.lr.")
    if isinstance(rate, str | bool):
        raise ConfigError(f"Expected optimizer.lr to be a number; got {rate}. Set optimizer.lr.")
    require_word("wandb.mode", config["wandb"].get("mode"), MODES)


def _found(config: Mapping[str, Any], name: str) -> str:
    if name not in config:
        return "it was taken out"
    value = config[name]
    return f"got {name}={'null' if value is None else value}"
