"""Epsilon of Confident-GNMax: bounded without the votes and, more tightly, with them.

Papernot et al. 2018 (arXiv 1802.08908). Neighbouring data sets differ by one example added or
removed, which is one teacher's; its vote may change, so the histogram of votes moves by at most
sqrt(2) in l2, and its largest entry by at most 1. A query is checked (largest entry, noise of
standard deviation sigma_1, against a threshold) and, if it passes, answered (argmax of the
histogram with noise sigma_2). In Renyi divergence of order a

    a check costs    a / (2 sigma_1^2)
    an answer costs  a / sigma_2^2        Proposition 8

The number of answers depends on the votes, but never exceeds the cap, so the sum at the caps bounds
the run: composition may be adaptive under a cap (Feldman and Zrnic 2021, arXiv 2008.11193, for
Renyi divergence; Smith and Thakurta 2022, arXiv 2210.17520, for Gaussian mechanisms). The sum is
the cost of one Gaussian mechanism, which both accountants can compute.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.special import log_ndtr, logsumexp

from dpexp.privacy.accounting import PRVFailed, prv_epsilon
from dpexp.privacy.opacus_rdp import opacus_rdp
from dpexp.privacy.rdp import ORDERS, rdp_epsilon
from dpexp.types import ConfigError

CHECK_SENSITIVITY = 1.0
"""Sensitivity of the largest entry of a histogram of votes."""

VOTE_SENSITIVITY = math.sqrt(2)
"""Sensitivity of a histogram of votes in l2: one entry decreases, another increases."""

LEAST_LOG = -1e4
"""Least log-probability; raising a smaller one to it keeps the bound valid."""


def effective_multiplier(
    check_std: float, vote_std: float, max_checks: int, max_answers: int
) -> float:
    """Return the noise multiplier of one Gaussian mechanism with the cost of all queries.

    Args:
        check_std: sigma_1 > 0, in votes.
        vote_std: sigma_2 > 0, in votes.
        max_checks: how many queries may be asked.
        max_answers: how many may be answered.
    """
    checks = max_checks * (CHECK_SENSITIVITY / check_std) ** 2
    answers = max_answers * (VOTE_SENSITIVITY / vote_std) ** 2
    return 1 / math.sqrt(checks + answers)


def votes_epsilon(multiplier: float, delta: float) -> dict[str, float]:
    """Return bounds on epsilon for any votes: by RDP, and by PRV unless that fails."""
    epsilon = {"rdp": rdp_epsilon(1.0, multiplier, 1, delta)}
    try:
        return epsilon | {"prv": prv_epsilon(1.0, multiplier, 1, delta)}
    except PRVFailed:
        return epsilon


def calibrate_votes(target: float, delta: float) -> float:
    """Return the least effective multiplier whose RDP epsilon fits the target.

    Every order a allows sigma^2 = a / (2 (target - c)), where c is what the conversion to
    (epsilon, delta) adds at that order. The result is the least of them.

    Args:
        target: epsilon, > 0.
        delta: in (0, 1).

    Raises:
        ConfigError: if no order of RDP shows that noise is enough.

    Guarantees:
        rdp_epsilon(1, sigma, 1, delta) <= target.
    """
    orders = np.array(ORDERS)
    left = target + np.log(delta * orders) / (orders - 1) - np.log1p(-1 / orders)
    if not (left > 0).any():
        raise ConfigError(
            f"No noise is shown to give epsilon {target:g} at delta {delta:g}; ask for a larger "
            "eps."
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.where(left > 0, orders / 2 / left, np.inf)
    return math.sqrt(float(squares.min())) * (1 + 1e-9)  # the margin is for rounding


def log_flip_of_votes(histograms: np.ndarray, vote_std: float) -> np.ndarray:
    """Return bounds on the log-probability that noise makes another class win (Prop. 7), [n].

    Args:
        histograms: votes [n, classes].
        vote_std: sigma_2 > 0.
    """
    ranked = np.sort(histograms.astype(float), axis=1)
    gaps = ranked[:, -1:] - ranked[:, :-1]
    union = logsumexp(log_ndtr(-gaps / (math.sqrt(2) * vote_std)), axis=1)
    return np.minimum(union, math.log1p(-1 / histograms.shape[1]))  # the argmax is likeliest


def log_flip_of_check(largest: np.ndarray, threshold: float, check_std: float) -> np.ndarray:
    """Return the log-probability of the check's less likely outcome, [n].

    Args:
        largest: entry of each query's histogram, [n].
        threshold: in votes.
        check_std: sigma_1 > 0.
    """
    return log_ndtr(-np.abs(largest - threshold) / check_std)


def data_dependent_rdp(log_flip: np.ndarray, sigma: float) -> np.ndarray:
    """Return data-dependent bounds on the Renyi divergence (Theorem 6, Proposition 10).

    Args:
        log_flip: log of a bound on the probability of all outcomes but the likeliest, [n], < 0.
        sigma: sigma_2 for an answer; sqrt(2) sigma_1 for a check, which costs the same.

    Returns:
        [n, orders], at most the data-independent bound.
    """
    orders, log_q = np.array(ORDERS), np.maximum(log_flip, LEAST_LOG)[:, None]
    independent = orders / sigma**2
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mu2 = sigma * np.sqrt(-log_q)
        mu1 = mu2 + 1
        eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
        largest_log_q = (mu2 - 1) * eps2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1)))
        applies = (mu2 > 1) & (orders <= mu1) & (log_q <= largest_log_q) & (log_q < -eps2)
        log_stay = np.log1p(-np.exp(log_q))
        log_a = log_stay - np.log1p(-np.exp((log_q + eps2) * (1 - 1 / mu2)))
        log_b = eps1 - log_q / (mu1 - 1)
        bound = np.logaddexp(log_stay + (orders - 1) * log_a, log_q + (orders - 1) * log_b) / (
            orders - 1
        )
    return np.where(applies, np.clip(bound, 0, independent), independent)


def data_dependent_epsilon(
    asked: np.ndarray,
    answered: np.ndarray,
    threshold: float,
    check_std: float,
    vote_std: float,
    delta: float,
) -> float:
    """Return the data-dependent epsilon. It is not itself private, and no guarantee to publish.

    Args:
        asked: histograms of the queries that were checked, [n, classes].
        answered: of those that were answered, [m, classes].
        threshold: in votes.
        check_std: sigma_1 > 0.
        vote_std: sigma_2 > 0.
        delta: in (0, 1).
    """
    checks = log_flip_of_check(asked.max(1), threshold, check_std)
    rdp = data_dependent_rdp(checks, math.sqrt(2) * check_std).sum(0)
    rdp += data_dependent_rdp(log_flip_of_votes(answered, vote_std), vote_std).sum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the last; the bound still holds
        epsilon, _ = opacus_rdp().get_privacy_spent(orders=list(ORDERS), rdp=rdp, delta=delta)
    return max(0.0, float(epsilon))
