"""How several releases of a step add up to one mechanism."""

from __future__ import annotations

import math

from dpexp.types import Release, joint_sensitivity


def _own_cost(releases: tuple[Release, ...]) -> float:
    """Return the sum of (sensitivity / noise multiplier)^2 of releases with noise of their own."""
    own = [(r.sensitivity, r.noise_multiplier) for r in releases if r.noise_multiplier is not None]
    return sum((sensitivity / multiplier) ** 2 for sensitivity, multiplier in own)


def effective_multiplier(noise_multiplier: float, releases: tuple[Release, ...]) -> float:
    """Return the multiplier of the one mechanism that all releases of a step amount to.

    Args:
        noise_multiplier: of the releases that share their noise, >= 0.
        releases: of the step. Gaussian ones add up as the squares of sensitivity over multiplier.
    """
    shared, own = noise_multiplier / joint_sensitivity(releases), _own_cost(releases)
    return shared if own == 0 or shared == 0 else 1 / math.sqrt(shared**-2 + own)


def shared_multiplier(effective: float, releases: tuple[Release, ...]) -> float:
    """Return the noise multiplier that `effective_multiplier` maps to an effective one.

    Args:
        effective: > 0.
        releases: of a step.

    Raises:
        ValueError: if the releases with noise of their own spend more by themselves.
    """
    own, share = _own_cost(releases), effective
    if own > 0:
        left = effective**-2 - own
        if left <= 0:
            raise ValueError("the releases with noise of their own leave nothing of the budget")
        share = 1 / math.sqrt(left)
    return share * joint_sensitivity(releases)
