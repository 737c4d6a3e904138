"""Epsilon from privacy loss distributions by connected dots, to check the calibration.

Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022 (arXiv:2207.04380), in Google's dp-accounting:
its code and its discretisation are independent of calibration's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scipy.special import log_ndtr, ndtr

GRID = 5e-3
"""Grid step over target / sqrt(steps). The grid adds less than 0.02 % to epsilon, and a run takes
0.02 to 3.4 s (one core)."""

COARSEST = 1e-2
"""Largest grid step, for budgets so large that the grid would not resolve one step."""

HOPELESS = 10
"""Multiple of the target; nothing is composed if one mechanism alone exceeds it."""

POINTS = 5000
"""Grid points for Laplace noise, from a step's budget down to 0."""

MOST_COMPOSED = 10**8
"""Largest number of composed mechanisms, and of grid points (ours): more would take all memory."""

NEARLY_ZERO, SHARE = 1e-12, 1e-8
"""Delta at which a step's Laplace epsilon is evaluated: this, and no more than this share of that
epsilon, which is smaller there by twice the share. At 0 rounding can give infinity."""


@dataclass(frozen=True)
class Part:
    """A number of equal mechanisms among those that a run composes.

    Attributes:
        q: sampling probability in (0, 1].
        sigma: noise over sensitivity, > 0.
        count: how many, >= 1.
    """

    q: float
    sigma: float
    count: int


@lru_cache(maxsize=512)
def gaussian_epsilon(parts: tuple[Part, ...], delta: float, target: float) -> float:
    """Return a bound on the epsilon of composed subsampled Gaussian mechanisms.

    Args:
        parts: all mechanisms.
        delta: in (0, 1).
        target: approximate result, > 0; it determines the grid.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Far too little noise would need a grid larger than memory.
    if any(_delta_of_one(part, HOPELESS * target) > delta for part in parts):
        return math.inf
    grid = _grid(parts, target)
    total: Any = None
    for part in parts:
        one = pld.from_gaussian_mechanism(
            part.sigma,
            sampling_prob=part.q,
            value_discretization_interval=grid,
            use_connect_dots=True,
        )
        composed = one.self_compose(part.count)
        total = composed if total is None else total.compose(composed)
    return max(float(total.get_epsilon_for_delta(delta)), 0.0)


def _grid(parts: tuple[Part, ...], target: float) -> float:
    steps = sum(part.count for part in parts)
    return min(GRID * target / math.sqrt(steps), COARSEST)


def points(parts: tuple[Part, ...], target: float) -> float:
    """Return a bound on the grid points of any one of these Gaussian mechanisms."""
    # Losses are within 1 / (2 sigma^2) plus nine standard deviations, 1 / sigma each, of 0.
    widest = max(2 * (0.5 / part.sigma + 9) / part.sigma for part in parts)
    return min(widest, 4 * HOPELESS * target + 100) / _grid(parts, target)


def is_composable(parts: tuple[Part, ...], target: float) -> bool:
    """Return whether `gaussian_epsilon` has the memory for these mechanisms."""
    steps = sum(part.count for part in parts)
    return steps <= MOST_COMPOSED and points(parts, target) <= MOST_COMPOSED


def _delta_of_one(part: Part, epsilon: float) -> float:
    """Return the delta of one of a part's mechanisms, removing an example (Balle and Wang 2018)."""
    inner = epsilon + math.log1p(-(1 - part.q) * math.exp(-epsilon)) - math.log(part.q)
    mu = 1 / part.sigma
    other = math.exp(inner + float(log_ndtr(-mu / 2 - inner / mu)))
    return part.q * (float(ndtr(mu / 2 - inner / mu)) - other)


@lru_cache(maxsize=512)
def laplace_epsilon(part: Part, target: float) -> float:
    """Return the sum of the steps' largest privacy losses, which is epsilon at delta = 0.

    Args:
        part: its sigma is the noise's scale over l1 sensitivity.
        target: > 0; a grid point, so that losses are not rounded beyond it.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = target / part.count / POINTS
    step = pld.from_laplace_mechanism(
        part.sigma,
        sampling_prob=part.q,
        value_discretization_interval=grid,
        use_connect_dots=True,
    )
    delta = min(NEARLY_ZERO, SHARE * target / part.count)
    return part.count * max(float(step.get_epsilon_for_delta(delta)), 0.0)
