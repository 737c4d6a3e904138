"""Checks of a budget and of a batch's size, by themselves: they import no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpexp.types import ConfigError, require_word

SAMPLINGS = ("poisson", "shuffle")


def require_budget(privacy: Mapping[str, Any]) -> None:
    """Refuse privacy settings that no data could make valid.

    Args:
        privacy: eps, delta, noise, clip and sampling, as `dpexp.privacy.build` takes them.

    Raises:
        ConfigError: naming the first invalid setting.
    """
    eps, delta, noise, clip = (privacy[key] for key in ("eps", "delta", "noise", "clip"))
    require_word("sampling", privacy["sampling"], SAMPLINGS)
    require(
        isinstance(noise, bool) or noise == "secret",
        f"Expected noise true, false, secret or correlated; got {noise}. Set noise (in a sweep of "
        "both, noise=correlated noise.bands=1,auto: one band is fresh noise).",
    )
    require(isinstance(clip, bool), f"Expected clip true or false; got {clip}. Set clip.")
    require(
        _is_number(delta) and 0 < delta < 1,
        f"Expected delta in (0, 1); got {delta}. Set privacy.delta.",
    )
    if noise or eps is not None:
        require(
            _is_number(eps) and 0 < eps < math.inf,
            f"Expected eps > 0; got {eps}. Set eps, or noise=false for a run without privacy.",
        )


def require_sizes(dataset_size: int, batch_size: int) -> None:
    """Refuse a batch that is empty or larger than the data.

    Raises:
        ConfigError: naming batch_size.
    """
    require(
        0 < batch_size <= dataset_size,
        f"Expected batch_size in [1, {dataset_size}], the number of training examples; "
        f"got batch_size={batch_size}. Set batch_size.",
    )


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with this message unless something holds."""
    if not holds:
        raise ConfigError(message)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
