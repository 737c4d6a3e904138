"""Noise multipliers by the papers' own accountants, to compare with ours.

No run is calibrated by these. They show how much of a difference from a paper's numbers is due to
tighter accounting alone.

Source: rgp, Section 5 (a moments accountant); gep, Appendix D, Lemmas D.2 to D.4 and Equation 5,
and the authors' code, which doubles the subsampled RDP of one release for two releases; Mironov
2017, arXiv:1702.07476, Proposition 3, for the conversion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from dpexp.privacy.certificate import CONFIDENT_GNMAX, NO_GUARANTEE
from dpexp.privacy.whole_orders import whole_orders_rdp

BY_MOMENTS = ("rgp", "gep")
"""Papers with this accountant. lsg's is numerical, like ours; compressive's privacy is pure."""

ORDERS = range(2, 513)
"""Integer orders, as for moments; up to 512 is ours. gep's released code uses tenths from 2 to
31.9. That changes its multipliers by at most 1.3 %, except at ε = 0.5 (6.42 in place of 5.61) and
at 0.1, which those orders do not reach."""

PRECISION = 1e-4
"""Fraction by which a multiplier may exceed the least one (ours)."""

MOST, LEAST = 1e6, 0.01
"""Search range of multipliers (ours)."""


def moments_epsilon(
    q: float, sigma: float, steps: int, delta: float, *, num_releases: int = 1
) -> float:
    """Return epsilon as the papers' code does: RDP at integer orders, then Mironov's conversion.

    It is no bound with several releases a step. They share a subsample, but the code adds their RDP
    as if each had its own.

    Args:
        q: sampling probability in (0, 1].
        sigma: each release's noise over its own sensitivity, > 0.
        steps: how many steps compose, >= 1.
        delta: in (0, 1).
        num_releases: vectors released per step, >= 1; 2 for gep.
    """
    rdp = num_releases * steps * whole_orders_rdp(q, sigma, ORDERS)
    return float(np.min(rdp + math.log(1 / delta) / (np.array(ORDERS) - 1)))


@lru_cache(maxsize=2**10)
def moments_multiplier(
    q: float, steps: int, delta: float, epsilon: float, *, num_releases: int = 1
) -> float:
    """Return the least noise multiplier whose `moments_epsilon` fits a budget.

    Args:
        q: sampling probability in (0, 1].
        steps: how many steps compose, >= 1.
        delta: in (0, 1).
        epsilon: the budget, > 0.
        num_releases: see `moments_epsilon`.

    Returns:
        Each release's noise over its own sensitivity, as `noise_multiplier` in a certificate; at
        most `PRECISION` above the least, and never below `LEAST`. Infinity if `MOST` is too little.
    """
    if moments_epsilon(q, MOST, steps, delta, num_releases=num_releases) > epsilon:
        return math.inf
    low, high = LEAST, MOST
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        if moments_epsilon(q, middle, steps, delta, num_releases=num_releases) > epsilon:
            low = middle
        else:
            high = middle
    return high


def papers_multiplier(paper: str, certificate: Mapping[str, Any]) -> float | None:
    """Return the noise multiplier by a paper's accountant for a run's setting.

    Args:
        paper: "rgp", "gep" or another.
        certificate: the run's, as in privacy.json.

    Returns:
        To compare with the certificate's noise_multiplier. None if the paper's accountant is not a
        moments accountant, or the run's Gaussian noise was not calibrated to a budget.
    """
    if paper not in BY_MOMENTS or certificate.get("mechanism") == CONFIDENT_GNMAX:
        return None
    releases, epsilon = certificate.get("releases", ()), certificate.get("target_epsilon")
    if any(word in certificate.get("deviations", ()) for word in NO_GUARANTEE) or not epsilon:
        return None
    if not releases or any(release.get("noise") != "gaussian" for release in releases):
        return None
    if "correlation" in certificate:  # which no paper of these has
        return None
    q, steps, delta = (certificate[key] for key in ("q", "planned_steps", "delta"))
    return moments_multiplier(q, steps, delta, epsilon, num_releases=len(releases))
