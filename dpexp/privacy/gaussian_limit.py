"""A closed form from which the search for a noise multiplier starts: the Gaussian limit.

By the central limit theorem many subsampled Gaussians are one Gaussian mechanism with

    mu = q sqrt(T (exp(1 / sigma^2) - 1))

(Bu, Dong, Long and Su 2020, arXiv:1911.11607, Corollary 5.4), whose delta is known in closed form
(Balle and Wang 2018, arXiv:1805.06530, Theorem 8). It bounds nothing: an accountant has to confirm
what is found.
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr


def limit_multiplier(q: float, steps: int, delta: float, epsilon: float) -> float:
    """Return the effective multiplier that has this epsilon in the limit of many steps.

    Args:
        q: sampling probability in (0, 1].
        steps: how many steps compose, >= 1.
        delta: in (0, 1).
        epsilon: > 0.
    """
    low, high = 1e-12, 1e6  # delta rises with mu
    for _ in range(80):
        middle = math.sqrt(low * high)
        if _delta(middle, epsilon) > delta:
            high = middle
        else:
            low = middle
    return 1 / math.sqrt(math.log1p(low**2 / (q**2 * steps)))


def _delta(mu: float, epsilon: float) -> float:
    """Return the delta of a Gaussian mechanism of sensitivity mu and unit noise."""
    other = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return float(ndtr(mu / 2 - epsilon / mu)) - math.exp(min(other, 0.0))
