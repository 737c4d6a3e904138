"""Refuse numbers of a config that float32, or a record, would not hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dpexp.training.schedules import LARGEST
from dpexp.types import ConfigError, setting_at

OPTIMIZERS = ("optimizer", "method.teacher_optimizer")

LEAST = 1 / LARGEST
"""Least factor for float32 numbers, e.g. a learning rate."""

SCALES = {
    "method.head_factor": (2.0**-24, 2.0**24),
    "method.head_scale": (2.0**-24, 2.0**24),  # a core's release of the head is divided by it
    "method.xi": (LEAST, LARGEST),
    "method.alpha": (LEAST, LARGEST),
    "clipping.gamma": (LEAST, LARGEST),
    "warm_start.lr": (LEAST, LARGEST),
    "warm_start.head_lr": (LEAST, LARGEST),
    "prompts.scale": (LEAST, LARGEST),
    "model.feature_norm": (LEAST, LARGEST),
    "model.head_std": (LEAST, LARGEST),
}
"""Factors, each with its least and largest value. A head's scale spans the bits that the range
of releases leaves on either side (`dpexp.privacy.float_range`)."""


def require_in_range(config: Mapping[str, Any]) -> None:
    """Refuse an invalid seed, infinite numbers, and factors out of the model precision's range.

    Other numbers are validated where they are read.

    Args:
        config: of a run, resolved.

    Raises:
        ConfigError: naming the setting and its range.
    """
    seed = config.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(
            f"Expected seed to be a whole number >= 0; {found_at(config, 'seed')}. Set seed."
        )
    for place, value in _numbers("", config):
        if not abs(value) <= sys.float_info.max:  # true of too large a whole number as well
            shown = value if isinstance(value, float) else "a whole number too large for a float"
            raise ConfigError(f"Expected {place} to be finite; got {shown}. Set {place}.")
        if isinstance(value, int) and abs(value) >= 2**63:  # which no record may hold
            raise ConfigError(
                f"Expected {place} to be a whole number below 2^63; got one of "
                f"{value.bit_length()} bits. Set {place}."
            )
    for group in OPTIMIZERS:
        node = setting_at(config, group)
        if isinstance(node, Mapping):
            _check_optimizer(group, node)
    for place, (least, largest) in SCALES.items():
        value = setting_at(config, place)
        if place == "method.xi" and value == setting_at(config, "privacy.clip_norm"):
            continue  # xi defaults to clip_norm, whose own check reports it
        # Numbers <= 0 are refused where they are read.
        if isinstance(value, int | float) and value > 0 and not least <= value <= largest:
            raise ConfigError(_outside(place, value, least, largest))


def _check_optimizer(group: str, node: Mapping[str, Any]) -> None:
    rate = node.get("lr")
    if "lr" in node and (rate is None or isinstance(rate, str | bool | list | dict)):
        found = "null" if rate is None else rate
        raise ConfigError(f"Expected {group}.lr to be a number; got {found}. Set {group}.lr.")
    for name, value in node.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if name == "lr" and value < 0:
            raise ConfigError(f"Expected {group}.lr > 0; got {value:g}. Set {group}.lr.")
        if name == "lr" and value < LEAST:
            raise ConfigError(
                f"Expected {group}.lr to be at least {LEAST:.2g}, or no step would move a weight; "
                f"got {value:g}. Set {group}.lr."
            )
        if name == "momentum" and value > 1:
            raise ConfigError(
                f"Expected {group}.momentum to be at most 1, or old steps would weigh more with "
                f"every new one; got {value:g}. Set {group}.momentum."
            )
        if abs(value) > LARGEST:
            raise ConfigError(
                f"Expected {group}.{name} to be at most {LARGEST:.2g}, so that float32 holds what "
                f"it multiplies; got {value:g}. Set {group}.{name}."
            )


def _outside(place: str, value: float, least: float, largest: float) -> str:
    return (
        f"Expected {place} to lie between {least:.2g} and {largest:.2g}, so that float32 keeps the "
        f"bits of what it multiplies; got {value:g}. Set {place}."
    )


def _numbers(place: str, node: Any) -> Iterator[tuple[str, float]]:
    """Yield a config's numbers with their keys, except in parts of neither dpexp nor torch."""
    if isinstance(node, int | float):
        yield place, node
    elif isinstance(node, Mapping):
        if not str(node.get("_target_", "dpexp.")).startswith(("dpexp.", "torch.")):
            return
        for key, value in node.items():
            yield from _numbers(f"{place}.{key}" if place else str(key), value)
    elif isinstance(node, list):
        for value in node:
            yield from _numbers(place, value)


def found_at(config: Mapping[str, Any], name: str) -> str:
    """Return what a config has as a setting, in words for a refusal."""
    if name not in config:
        return "it was taken out"
    value = config[name]
    return f"got {name}={'null' if value is None else value}"
