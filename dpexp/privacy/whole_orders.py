"""Renyi differential privacy of the subsampled Gaussian at whole orders.

Source: Mironov, Talwar and Zhang 2019, arXiv:1908.10530, Section 3.3, whose whole orders are the
moments of Abadi et al. 2016, Theorem 2.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp


def whole_orders_rdp(q: float, sigma: float, orders: range) -> np.ndarray:
    """Return the RDP of one step of the subsampled Gaussian.

    Args:
        q: sampling probability in (0, 1].
        sigma: noise over sensitivity, > 0.
        orders: whole ones, rising, each >= 2.

    Returns:
        [orders], >= 0.
    """
    order = np.array(orders, dtype=float)
    if q == 1:
        return order / (2 * sigma**2)
    k = np.arange(orders[-1] + 1.0)
    return logsumexp(_terms(q, orders) + (k * k - k) / (2 * sigma**2), axis=1) / (order - 1)


@lru_cache(maxsize=16)
def _terms(q: float, orders: range) -> np.ndarray:
    """Return log(C(a, k) (1 - q)^(a - k) q^k), [orders, largest order + 1]."""
    order, k = np.array(orders, dtype=float)[:, None], np.arange(orders[-1] + 1.0)
    rest = np.maximum(order - k, 0)
    choices = gammaln(order + 1) - gammaln(k + 1) - gammaln(rest + 1)
    terms = choices + k * math.log(q) + rest * math.log1p(-q)
    return np.where(k <= order, terms, -np.inf)
