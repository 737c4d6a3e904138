"""Epsilon from privacy loss distributions by connected dots, to check what was calibrated.

Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022 (arXiv:2207.04380), in Google's dp-accounting:
other code and another discretisation than calibration's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scipy.special import log_ndtr, ndtr

GRID = 5e-3
"""Step of the grid over target / sqrt(steps); what the grid adds to epsilon is below 0.02 %, and a
run on it takes 0.02 to 3.4 s (one core)."""

COARSEST = 1e-2
"""Step of the grid at most, where budgets are so large that it would not resolve one step."""

HOPELESS = 10
"""Times the target: where one mechanism alone exceeds that, nothing is composed."""

POINTS = 5000
"""Of the grid for Laplace noise, from a step's budget down to 0."""

NEARLY_ZERO = 1e-12
"""Delta at which a step of Laplace noise is read: at 0 itself rounding can give infinity."""


@dataclass(frozen=True)
class Part:
    """Some equal Gaussian mechanisms among those that a run composes.

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
    """Bound the epsilon of subsampled Gaussian mechanisms, composed.

    Args:
        parts: all that is composed.
        delta: in (0, 1).
        target: about the answer, > 0; the grid is as fine as that asks for.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Far too little noise would ask for a grid that no memory holds.
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
    return float(total.get_epsilon_for_delta(delta))


def _grid(parts: tuple[Part, ...], target: float) -> float:
    steps = sum(part.count for part in parts)
    return min(GRID * target / math.sqrt(steps), COARSEST)


def points(parts: tuple[Part, ...], target: float) -> float:
    """Bound how many points the grid of any one of these Gaussian mechanisms has."""
    # Losses lie within 1 / (2 sigma^2) and nine standard deviations, 1 / sigma each, of 0.
    widest = max(2 * (0.5 / part.sigma**2 + 9 / part.sigma) for part in parts)
    return min(widest, 4 * HOPELESS * target + 100) / _grid(parts, target)


def _delta_of_one(part: Part, epsilon: float) -> float:
    """Return the delta of one of a part's mechanisms, an example removed (Balle and Wang 2018)."""
    inner = epsilon + math.log1p(-(1 - part.q) * math.exp(-epsilon)) - math.log(part.q)
    mu = 1 / part.sigma
    other = math.exp(inner + float(log_ndtr(-mu / 2 - inner / mu)))
    return part.q * (float(ndtr(mu / 2 - inner / mu)) - other)


@lru_cache(maxsize=512)
def laplace_epsilon(part: Part, target: float) -> float:
    """Add up the steps' largest privacy losses, which at delta = 0 is what composes.

    Args:
        part: its sigma is the noise's scale over l1 sensitivity.
        target: > 0; a point of the grid, so that losses are not rounded beyond it.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = target / part.count / POINTS
    step = pld.from_laplace_mechanism(
        part.sigma,
        sampling_prob=part.q,
        value_discretization_interval=grid,
        use_connect_dots=True,
    )
    return part.count * float(step.get_epsilon_for_delta(NEARLY_ZERO))
