"""Check that releases fit the range of the model's precision.

Clipped sums and their noise are rounded to the model's precision and then divided by the batch
size. Subnormal numbers are on a coarse grid or are flushed to zero, so noise of that size hides
nothing between the grid's points. Numbers above the largest become infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dpexp.privacy.mechanism import Mechanism
from dpexp.types import ConfigError

SPARE = 2.0**26
"""Margin at both ends of a precision's range. Below: fewer than one in 2^26 Gaussian values is
smaller than 2^-26 standard deviations, and all others keep full precision. Above: room for a sum of
2^26 examples and for the tail of the noise."""


def reach(dtype: torch.dtype) -> tuple[float, float]:
    """Return the least and the largest allowed size of clip norms and noise.

    They are 2^-100 and 2^100 in float32, whose normal numbers are 2^-126 to 2^128. In float64 they
    are 2^-498 and 2^498, as norms are squared in float64.

    Args:
        dtype: the model's.
    """
    squared = math.sqrt(SPARE * torch.finfo(torch.float64).tiny)
    least = max(SPARE * torch.finfo(dtype).tiny, squared)
    return least, 1 / least


def require_room(mechanism: Mechanism, dtype: torch.dtype, config: Mapping[str, Any]) -> None:
    """Check that a mechanism's sums and noise keep full bits in the model's precision.

    Args:
        mechanism: of the run.
        dtype: the model's.
        config: of the run, to find the setting of a clip norm.

    Raises:
        ConfigError: naming the setting of the clip norm.
    """
    least, largest = reach(dtype)
    for release in mechanism.releases:
        sizes = {"the clip norm": release.clip_norm} if mechanism.clip else {}
        if mechanism.noise:
            sizes["the noise"] = release.multiplier(mechanism.noise_multiplier) * release.clip_norm
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
    """Return the size of one entry of a release: of its noise, otherwise the clip norm.

    It is divided by the batch size. Without noise and clipping it is unknown, and 1 is returned.
    """
    largest = max(each.clip_norm for each in mechanism.releases if each.clip != "count")
    if mechanism.noise:
        return mechanism.noise_multiplier * largest / mechanism.batch_size
    return largest / mechanism.batch_size if mechanism.clip else 1.0


def setting_of(clip_norm: float, config: Mapping[str, Any]) -> str:
    """Return the name of the setting that a release's clip norm comes from.

    Args:
        clip_norm: of the release.
        config: of the run.

    Returns:
        "privacy.clip_norm", unless its value differs and one of the method's settings matches.
    """
    if config["privacy"]["clip_norm"] != clip_norm:
        for key, value in config["method"].items():
            if not isinstance(value, bool) and value == clip_norm:
                return f"method.{key}"
    return "privacy.clip_norm"
