"""Epsilon of a Poisson-subsampled Laplace mechanism: pure differential privacy, delta = 0.

Laplace noise of scale b on a vector of l1 sensitivity s is s / b private (Dwork et al. 2006). On a
subsample of probability q that is ln(1 + q (e^{s/b} - 1)) (Li, Qardaji and Su 2012, Theorem 1),
and the steps of a run add up. sigma is b / s, as the effective multiplier of Gaussian noise is.

Two accountants. "pure" uses these formulas. "pld" uses neither: it takes a step's largest privacy
loss from the densities of the noise and the mixture, which is what composes at delta = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-9
"""Fraction by which noise exceeds the formulas' result, so that rounding breaks no bound."""

LARGE = 500.0
"""For x above this, 1 is negligible beside e^x; up to twice this, e^x is finite in float64."""


def amplified(epsilon: float, q: float) -> float:
    """Return a step's epsilon on a subsample, from its epsilon on all data."""
    if epsilon > LARGE:
        return epsilon + math.log(q)
    return math.log1p(q * math.expm1(epsilon))


def unamplified(epsilon: float, q: float) -> float:
    """Invert `amplified`."""
    if epsilon > LARGE:
        return epsilon - math.log(q)
    return math.log1p(math.expm1(epsilon) / q)


def pure_epsilon(q: float, sigma: float, factors: Sequence[float]) -> float:
    """Return the sum of the steps' epsilons.

    Args:
        q: sampling probability in (0, 1].
        sigma: noise scale over l1 sensitivity; 0 gives infinity.
        factors: one per step; a step's noise is sigma over its factor.
    """
    if sigma <= 0:
        return math.inf if len(factors) else 0.0
    return math.fsum(amplified(factor / sigma, q) for factor in factors)


def pld_epsilon(q: float, sigma: float, steps: int) -> float:
    """Return the sum of the steps' largest privacy losses, computed from the densities.

    Args:
        q: sampling probability in (0, 1].
        sigma: noise scale over l1 sensitivity; 0 gives infinity.
        steps: how many steps compose, >= 0.
    """
    if steps == 0:
        return 0.0
    if sigma <= 0:
        return math.inf
    # Outside [0, 1] both densities decay alike, so no loss is larger there.
    place = np.linspace(-0.5, 1.5, 201)
    absent, present = -np.abs(place) / sigma, -np.abs(place - 1) / sigma
    mixture = np.logaddexp(math.log1p(-q) + absent, math.log(q) + present) if q < 1 else present
    return steps * float(np.abs(mixture - absent).max())


def calibrate_laplace(q: float, step_epsilon: float) -> float:
    """Return the least sigma at which a step with sampling probability q costs step_epsilon."""
    return (1 + ROUNDING) / unamplified(step_epsilon, q)
