"""What is known in closed form of Gaussian mechanisms: exact epsilons, and a limit to start from.

A Gaussian mechanism of sensitivity mu and unit noise has

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)

(Balle and Wang 2018, arXiv:1805.06530, Theorem 8). T steps on the whole batch are one with
mu = sqrt(T) / sigma. One step on a Poisson sample has

    delta(epsilon) = q delta'(log(1 + (exp(epsilon) - 1) / q))

where delta' is that of mu = 1 / sigma: with an example the outcome is drawn from a mixture,
(1 - q) N(0, sigma^2) + q N(1, sigma^2), and its excess over exp(epsilon) N(0, sigma^2) is q times
that of N(1, sigma^2) over a multiple of N(0, sigma^2). The other direction has less.

By the central limit theorem many subsampled Gaussians are one Gaussian mechanism with

    mu = q sqrt(T (exp(1 / sigma^2) - 1))

(Bu, Dong, Long and Su 2020, arXiv:1911.11607, Corollary 5.4). This bounds nothing: an accountant
has to confirm what is found.
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtr

ROUNDING = 2.0**-50
"""Relative error of a term of delta, and absolute error of a logarithm as a fraction of its parts:
a few units in the last place of float64 (ours)."""

HALVINGS = 200
"""Most halvings of a bracket; it has no number left between its ends after fewer (ours)."""


def is_closed(q: float, steps: int) -> bool:
    """Return whether `closed_epsilon` knows the epsilon of as many steps at this sampling rate."""
    return q == 1 or steps == 1


def closed_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """Return the exact epsilon of one step, or of steps on the whole batch, rounded up.

    Args:
        q: sampling probability in (0, 1]; 1 if there are several steps.
        sigma: effective noise multiplier, > 0.
        steps: how many steps compose, >= 1.
        delta: in (0, 1).

    Returns:
        epsilon >= 0; infinity where float64 does not resolve delta.
    """
    assert is_closed(q, steps)
    mu = math.sqrt(steps) / sigma

    def fits(epsilon: float) -> bool:
        found, error = gaussian_delta(mu, _of_the_drawn(epsilon, q))
        return q * (found + error) <= delta

    if fits(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if not high < math.inf:
            return math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _of_the_drawn(epsilon: float, q: float) -> float:
    """Return log(1 + (exp(epsilon) - 1) / q), the epsilon of a step that draws the example."""
    if epsilon < 1:
        return math.log1p(math.expm1(epsilon) / q)
    return epsilon + math.log1p(-(1 - q) * math.exp(-epsilon)) - math.log(q)


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
        if gaussian_delta(middle, epsilon)[0] > delta:
            high = middle
        else:
            low = middle
    return 1 / math.sqrt(math.log1p(low**2 / (q**2 * steps)))


def gaussian_delta(mu: float, epsilon: float) -> tuple[float, float]:
    """Return the delta of sensitivity mu and unit noise, and a bound on its rounding error.

    Args:
        mu: > 0.
        epsilon: >= 0.
    """
    tail = float(log_ndtr(-mu / 2 - epsilon / mu))
    first = float(ndtr(mu / 2 - epsilon / mu))
    second = math.exp(min(epsilon + tail, 0.0))
    return first - second, ROUNDING * (first + second * (1 + epsilon - tail))
