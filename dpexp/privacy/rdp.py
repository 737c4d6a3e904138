"""Epsilon of a Poisson-subsampled Gaussian by Renyi differential privacy (RDP).

Mironov, Talwar and Zhang 2019, arXiv:1908.10530; conversion by Balle et al. 2020, arXiv:1905.09982.
It is looser than `dpexp.privacy.prv`, but never fails; a step's is computed by Opacus.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dpexp.privacy.opacus_rdp import opacus_rdp

SLACK = 1e-9
"""Fraction by which rounding may make RDP decrease as the order increases (ours)."""

# Dense from 2 to 30, the optimum of most training runs; coarse up to 1024, for tiny budgets.
ORDERS = (
    *(1.0 + x / 20 for x in range(1, 40)),
    *(3.0 + x / 10 for x in range(70)),
    *range(10, 64),
    *(int(x) for x in np.unique(np.geomspace(64, 1024, 40).astype(int))),
)


@lru_cache(maxsize=2**14)
def rdp_per_step(q: float, sigma: float, order: float) -> float:
    """Return the RDP of one step, >= 0; infinity where the formula fails for this order.

    Args:
        q: sampling probability in (0, 1].
        sigma: effective noise multiplier, > 0.
        order: above 1.
    """
    compute_rdp = opacus_rdp().compute_rdp
    with np.errstate(all="ignore"):
        try:
            value = float(compute_rdp(q=q, noise_multiplier=sigma, steps=1, orders=float(order)))
        except (OverflowError, ValueError, ZeroDivisionError):
            return math.inf  # fractional orders overflow at small sigma: the order is not used
    return value if value >= 0 else math.inf


def rdp_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """Return an upper bound on epsilon by Renyi differential privacy, over a dense set of orders.

    Args:
        q: sampling probability in (0, 1].
        sigma: effective noise multiplier; 0 gives infinity.
        steps: how many steps compose, >= 0.
        delta: in (0, 1).
    """
    if steps == 0:
        return 0.0
    if sigma <= 0:
        return math.inf
    return _least(lambda order: rdp_per_step(q, sigma, order), steps, delta)


def rdp_epsilon_apart(q: float, sigmas: Sequence[float], steps: int, delta: float) -> float:
    """Return epsilon from the summed RDP of a step's releases, as if each had its own subsample.

    Releases of one step share its subsample, so this understates their joint cost; it is the
    arithmetic of gep's released code.

    Args:
        q: sampling probability in (0, 1].
        sigmas: effective noise multiplier of each release, > 0.
        steps: how many steps compose, >= 1.
        delta: in (0, 1).
    """

    def of_all(order: float) -> float:
        return sum(rdp_per_step(q, sigma, order) for sigma in sigmas)

    return _least(of_all, steps, delta)


def _least(per_step: Callable[[float], float], steps: int, delta: float) -> float:
    """Return the least epsilon over the orders, of each one's RDP per step."""
    costs, best = _costs(delta), math.inf
    finite: list[tuple[float, float]] = []  # orders and their RDP, both ascending

    def is_hopeless(index: int) -> bool:
        """Return whether an order cannot be the best, as RDP does not decrease with the order."""
        below = bisect_right(finite, (ORDERS[index], math.inf))
        least = finite[below - 1][1] if below else 0.0
        return _epsilon(least * steps, costs[index]) > best * (1 + SLACK)

    # Fractional orders take milliseconds each, so whole ones are first. Next are the neighbours of
    # the best one; most others are hopeless then.
    whole = [index for index, order in enumerate(ORDERS) if float(order).is_integer()]
    rest = [index for index, order in enumerate(ORDERS) if not float(order).is_integer()]
    best_order = ORDERS[whole[0]]
    for indices in (whole, rest):
        for index in sorted(indices, key=lambda index: abs(ORDERS[index] - best_order)):
            if is_hopeless(index):
                continue
            rdp = per_step(ORDERS[index])
            if rdp < math.inf:
                insort(finite, (ORDERS[index], rdp))
            epsilon = _epsilon(rdp * steps, costs[index])
            if epsilon < best:
                best, best_order = epsilon, ORDERS[index]
    return max(0.0, best)


@lru_cache(maxsize=16)
def _costs(delta: float) -> tuple[tuple[float, float], ...]:
    """Return the two terms that convert each order's RDP to epsilon at this delta."""
    orders = np.array(ORDERS)
    terms = np.log(delta * orders) / (orders - 1), np.log1p(-1 / orders)
    return tuple(zip(*(term.tolist() for term in terms), strict=True))


def _epsilon(rdp: float, costs: tuple[float, float]) -> float:
    return rdp - costs[0] + costs[1]
