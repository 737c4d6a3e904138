"""Trade-off curves: the least errors of any attacker against a mechanism.

A curve maps a true positive rate to the least false positive rate that allows it, for adding and
for removing one example. It is convex (Dong, Roth and Su 2022, arXiv 1905.02383).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpexp.privacy.closed_form import gaussian_delta

Curve = Callable[[float], float]

LOSS_ERROR = 1e-2
"""Absolute error of the composed privacy loss (ours); the relative error of a rate."""

MASS_ERROR = 1e-9
"""Probability of a privacy loss off the grid (ours)."""

POINTS = 4000
"""Number of points of a composed curve, evenly spaced in the logarithm of the rates (ours)."""


def gaussian(mu: float) -> Curve:
    """Return the curve of one Gaussian mechanism: sensitivity mu, noise of standard deviation 1."""
    return lambda rate: float(ndtr(ndtri(min(rate, 1.0)) - mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of that mechanism (Dong et al. 2022, Corollary 2.13).

    Args:
        mu: >= 0.
        delta: in (0, 1).
    """

    def excess(epsilon: float) -> float:
        return gaussian_delta(mu, epsilon)[0] - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    # The privacy loss is Gaussian about mu^2 / 2; beyond this bracket its tail is below delta.
    return float(brentq(excess, 0.0, mu**2 / 2 - mu * float(ndtri(delta / 2))))


def subsampled_gaussian(sampling_prob: float, sigma: float, num_steps: int) -> Curve:
    """Return the curve of a run: a Gaussian mechanism on Poisson samples, composed.

    The privacy loss is composed numerically, by Opacus's PRV accountant.

    Args:
        sampling_prob: q in (0, 1].
        sigma: effective noise multiplier, > 0.
        num_steps: >= 1.

    Raises:
        ValueError, RuntimeError: the accountant cannot handle the numbers.
    """
    if sampling_prob == 1:
        return gaussian(math.sqrt(num_steps) / sigma)
    from opacus.accountants.analysis import prv

    law = prv.PoissonSubsampledGaussianPRV(sampling_prob, sigma)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        half = float(prv.compute_safe_domain_size([law], [num_steps], LOSS_ERROR, MASS_ERROR))
        mesh = LOSS_ERROR / math.sqrt(num_steps * math.log(12 / MASS_ERROR) / 2)
        domain = prv.Domain.create_aligned(-half, half, mesh)
        truncated = prv.TruncatedPrivacyRandomVariable(law, domain.t_min, domain.t_max)
        loss = prv.compose_heterogeneous([prv.discretize(truncated, domain)], [num_steps])
        weights = np.clip(loss.pmf, 0, None)
        present = np.cumsum((weights / weights.sum())[::-1])  # P[loss > t], t falling
        absent = np.cumsum((weights * np.exp(-loss.domain.ts))[::-1])
    present, absent = np.clip(present, 0, 1), np.clip(absent, 0, 1)
    return _both_ways(present, absent)


def _both_ways(present: np.ndarray, absent: np.ndarray) -> Curve:
    """Return the lower convex hull of a curve's points and those with the two data sets swapped."""
    keep = _spread(present)
    present, absent = present[keep], absent[keep]
    true = np.concatenate([[0.0, 1.0], present, 1 - absent])
    false = np.concatenate([[0.0, 1.0], absent, 1 - present])
    order = np.lexsort((false, true))
    hull: list[tuple[float, float]] = []
    for x, y in zip(true[order].tolist(), false[order].tolist(), strict=True):
        while len(hull) > 1 and _turns_right(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    xs, ys = (np.array(column) for column in zip(*hull, strict=True))
    return lambda rate: float(np.interp(rate, xs, ys))


def _spread(rates: np.ndarray) -> np.ndarray:
    """Return indices of increasing rates that resolve both ends."""
    ends = np.logspace(-12, math.log10(0.5), POINTS // 2)
    return np.unique(
        np.clip(np.searchsorted(rates, np.concatenate([ends, 1 - ends])), 0, len(rates) - 1)
    )


def _turns_right(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) <= (b[1] - a[1]) * (c[0] - a[0])
