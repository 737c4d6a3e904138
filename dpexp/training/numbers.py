"""Checks of a config's numbers; they import no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpexp.types import ConfigError, setting_at

AUTO = "auto"
"""The micro_batch that is chosen by trying."""

POSITIVE: dict[str, Any] = {
    "batch_size": int,
    "micro_batch": int,
    "epochs": (int, float),
    "eval_every": (int, float),
    "privacy.clip_norm": (int, float),
}
"""Settings that must be positive numbers, with their types."""


def check_numbers(config: Mapping[str, Any]) -> None:
    """Check that settings are positive numbers, and whole ones for counts.

    Raises:
        ConfigError: naming the first invalid setting.
    """
    for place, kind in POSITIVE.items():
        value = setting_at(config, place)
        words = ", or auto" if place == "micro_batch" else ""
        if words and value == AUTO:
            continue
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
            raise ConfigError(
                f"Expected {place} to be a {'whole ' if kind is int else ''}number > 0{words}; "
                f"got {place}={value}. Set {place}."
            )


def check_checkpoint(settings: Mapping[str, Any]) -> None:
    """Check the checkpoint intervals.

    Args:
        settings: seconds (>= 0) and steps (>= 1), each of which may be None.

    Raises:
        ConfigError: naming the first invalid setting.
    """
    for key, kind, least in (("seconds", int | float, 0), ("steps", int, 1)):
        value = settings[key]
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if value is not None and not (is_number and value >= least):
            raise ConfigError(
                f"Expected checkpoint.{key} to be null or a {'whole ' * (kind is int)}number "
                f">= {least}; got {value}. Set checkpoint.{key}."
            )
