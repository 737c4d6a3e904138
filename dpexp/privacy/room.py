"""Whether what a step releases keeps its bits in the model's precision.

Clipped sums and their noise are rounded to the model's precision and divided by the batch size
there. Numbers below the least normal one lie on a coarse grid of their own, or are flushed to zero:
noise that reaches down there hides nothing between the grid's points. Those above the largest are
infinite, whoever took part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dpexp.privacy.mechanism import Mechanism
from dpexp.types import ConfigError

SPARE = 2.0**26
"""How far from either end of a precision's range the size of what is released must stay. Below:
fewer than one in 2^26 normal numbers is smaller than 2^-26 standard deviations, and all others are
normal numbers with all their bits. Above: a sum of 2^26 examples, and noise's far tail."""


def reach(dtype: torch.dtype) -> tuple[float, float]:
    """Return the least and the largest size that clip norms and noise may have.

    They are 2^-100 and 2^100 in float32, whose normal numbers are 2^-126 to 2^128. Norms are
    squared in float64, which a model in float64 must leave room for: there it is 2^-498 to 2^498.

    Args:
        dtype: the model's.
    """
    squared = math.sqrt(SPARE * torch.finfo(torch.float64).tiny)
    least = max(SPARE * torch.finfo(dtype).tiny, squared)
    return least, 1 / least


def require_room(mechanism: Mechanism, dtype: torch.dtype, config: Mapping[str, Any]) -> None:
    """Refuse a mechanism whose sums or noise would lose bits in the model's precision.

    Args:
        mechanism: of the run; what clipping or noise it has not is not looked at.
        dtype: the model's.
        config: of the run; the setting that a clip norm comes from is looked up in it.

    Raises:
        ConfigError: naming that setting.
    """
    least, largest = reach(dtype)
    for release in mechanism.releases:
        sizes = {"the clip norm": release.clip_norm} if mechanism.clip else {}
        if mechanism.noise:
            sizes["the noise"] = mechanism.noise_multiplier * release.clip_norm
        for what, size in sizes.items():
            for share, value in (("", size), (" / batch_size", size / mechanism.batch_size)):
                if least <= value <= largest:
                    continue
                setting = setting_of(release.clip_norm, config)
                precision = str(dtype).removeprefix("torch.")
                raise ConfigError(
                    f"Expected {what}{share} to lie between {least:.2g} and {largest:.2g}, where "
                    f"{precision} has all its bits; got {value:.3g}, by "
                    f"{setting}={release.clip_norm:g}. Set {setting}."
                )


def size_of_release(mechanism: Mechanism) -> float:
    """Return the size of one number of what a step releases: its noise, or else the clip norm.

    It is divided by the batch size; 1 without either, where nobody knows.
    """
    largest = max(release.clip_norm for release in mechanism.releases)
    if mechanism.noise:
        return mechanism.noise_multiplier * largest / mechanism.batch_size
    return largest / mechanism.batch_size if mechanism.clip else 1.0


def setting_of(clip_norm: float, config: Mapping[str, Any]) -> str:
    """Name the setting that a release's clip norm comes from.

    Args:
        clip_norm: as declared.
        config: of the run.

    Returns:
        `privacy.clip_norm` unless it has another value and one of the method's has this one.
    """
    if config["privacy"]["clip_norm"] != clip_norm:
        for key, value in config["method"].items():
            if not isinstance(value, bool) and value == clip_norm:
                return f"method.{key}"
    return "privacy.clip_norm"
