"""Checks of a budget and of a batch's size, and the steps of a run: they import no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpexp.types import ConfigError, require_word
from dpexp.warned import warn_caller

SAMPLINGS = ("poisson", "shuffle")

MOST = 1e12
"""Upper limit on a run's steps (ours); smaller counts are exact in floating point."""


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


def check_privacy(privacy: Mapping[str, Any], dataset_size: int) -> None:
    """Check the privacy settings, and warn if delta is too large.

    Raises:
        ConfigError: naming the first invalid setting.
    """
    require_budget(privacy)
    noise, delta = privacy["noise"], privacy["delta"]
    if noise and delta >= 1 / dataset_size:
        warn_caller(
            f"delta={delta:g} is not below 1/N = {1 / dataset_size:.3g}: "
            "such a guarantee allows one example to be published. Set privacy.delta."
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


def num_steps(epochs: float, dataset_size: int, batch_size: int, sampling: str = "poisson") -> int:
    """Return the number of steps of a training run.

    Under Poisson sampling an epoch is 1/q steps, rounded up once at the end; shuffled epochs are
    whole permutations whose last batch may be short.

    Raises:
        ConfigError: if a number is not positive, the batch is larger than the data, or there are
            too many steps.
    """
    require(epochs > 0, f"Expected epochs > 0; got {epochs}. Set epochs.")
    require_sizes(dataset_size, batch_size)
    require(
        epochs * dataset_size / batch_size < MOST,
        f"Expected fewer than {MOST:.0e} steps; got epochs={epochs:g}. Set epochs.",
    )
    if sampling == "shuffle":
        return math.ceil(epochs * math.ceil(dataset_size / batch_size))
    return math.ceil(round(epochs * dataset_size / batch_size, 9))


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with this message unless something holds."""
    if not holds:
        raise ConfigError(message)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
