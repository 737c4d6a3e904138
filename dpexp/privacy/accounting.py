"""Epsilon of a Poisson-subsampled Gaussian, and the least noise that fits a budget.

Neighbouring data sets differ by one example added or removed. The effective multiplier sigma is the
noise's standard deviation over the joint l2 sensitivity of a step's releases; q is the sampling
probability.

Two accountants. PRV (Gopi, Lee and Wutschitz 2021, arXiv:2106.02848) convolves the privacy loss
numerically; its upper bound is reported, discretisation error included. Where the composed loss is
known in closed form, on whole batches and for a single step, that is used in place of a grid. RDP
(`dpexp.privacy.rdp`) is looser, but never fails.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from dpexp.privacy import closed_form, prv, rdp
from dpexp.privacy.closed_form import closed_epsilon, is_closed, limit_multiplier
from dpexp.privacy.opacus_rdp import opacus_rdp
from dpexp.privacy.rdp import rdp_epsilon, rdp_per_step
from dpexp.privacy.whole_orders import whole_orders_rdp
from dpexp.records.caches import Kept
from dpexp.types import ConfigError, counted
from dpexp.warned import told_if_long

RELATIVE_ERROR = 2e-3
"""Error allowed in PRV's epsilon, as a fraction of RDP's epsilon (ours)."""

TOLERANCE = 1e-3
"""A calibrated epsilon is below its target by at most this fraction (ours)."""

CLOSE = 5e-5
"""A calibrated epsilon is as near to the middle of these bounds, as a fraction, if it can be had:
the least multiplier then comes out alike from wherever it is searched for (ours)."""

MOST_FITS = 4
"""Multipliers within the tolerance after which the nearest is taken (ours)."""

COARSE = 20
"""How many times fewer points the grid has on which a search begins (ours)."""

MAX_GRID = 2**22
"""Largest number of grid points of a privacy loss; the error grows instead of the grid (ours)."""

MAX_RELATIVE_ERROR = 2e-2
"""PRV fails if its error exceeds this fraction of epsilon: it is no better than RDP then (ours)."""

MOST_NOISE = 1e6
"""Largest multiplier that calibration tries (ours)."""

HUGE = 1e9
"""Epsilon beyond which noise is not found for want of room in a float (ours)."""

LEAST_EPSILON = 1e-9
"""Least epsilon that is looked for: below, accountants tell it from 0 by their rounding alone
(ours)."""

CLOSED = 1e-12
"""A search whose bracket is as narrow, as a fraction, has no multiplier left to try (ours)."""

MAX_MISSING_MASS = 0.1
"""PRV fails if rounding takes more than this fraction of delta (ours)."""

ROUNDING = 2.0**-51
"""Fraction of the mass that rounding moves in a step: a Fourier transform's error of a few units in
the last place, which composition multiplies by the steps (ours)."""

WHOLE = range(2, 64)
"""Orders by which a grid's width is bounded, the whole ones of Opacus."""

TENTHS = [1 + x / 10 for x in range(1, 100)]
"""Its fractional orders, by which it is bounded where the least whole one is the best."""


class PRVFailed(RuntimeError):
    """PRV has no reliable answer for these numbers; use RDP."""


@dataclass(frozen=True)
class _Loss:
    """One step's privacy loss, on a grid wide enough for `max_steps` compositions."""

    on_grid: prv.Loss
    epsilon_error: float
    delta_error: float


@lru_cache(maxsize=4)
def _loss(q: float, sigma: float, max_steps: int, delta: float) -> _Loss:
    delta_error = delta / 1000  # as the PRV authors suggest
    rough = rdp_epsilon(q, sigma, max_steps, delta)
    error = RELATIVE_ERROR * rough
    half_width = _half_width(q, sigma, max_steps, error, delta_error)
    # Theorem 5.5 of the PRV paper: the mesh for the error allowed in `max_steps` compositions.
    mesh_per_error = 1 / math.sqrt(max_steps * math.log(12 / delta_error) / 2)
    error = max(error, 2 * half_width / mesh_per_error / MAX_GRID)
    if not error <= MAX_RELATIVE_ERROR * rough:
        raise PRVFailed(f"a grid of {MAX_GRID} points is too coarse for epsilon about {rough:.3g}")
    on_grid = prv.loss(q, sigma, half_width, error * mesh_per_error)
    return _Loss(on_grid, error, delta_error)


def _require_exact(steps: int, delta: float) -> None:
    if ROUNDING * steps > MAX_MISSING_MASS * delta:
        raise PRVFailed(f"rounding in {counted(steps, 'step')} is too much for delta={delta:g}")


def _coarse_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """Return about what `prv_epsilon` does, from a grid with `COARSE` times fewer points.

    It bounds nothing.
    """
    _require_exact(steps, delta)
    rough, _ = _spent(WHOLE, whole_orders_rdp(q, sigma, WHOLE) * steps, delta)
    mesh = COARSE * RELATIVE_ERROR * rough / math.sqrt(steps * math.log(12_000 / delta) / 2)
    width = _half_width(q, sigma, steps, 0.0, delta / 1000)
    return prv.loss(q, sigma, width, mesh).composed(steps).epsilon(delta) * (1 + RELATIVE_ERROR)


def _half_width(q: float, sigma: float, max_steps: int, error: float, delta_error: float) -> float:
    """Return a bound on the loss of `max_steps` steps and of one (Remark 5.6 of the PRV paper).

    That of Opacus's `compute_safe_domain_size`, or where few orders are below the best a little
    more, since fractional orders are then left out: they take longer than the rest of PRV.
    """
    parts = ((max_steps, delta_error / 4), (1, delta_error / (8 * max_steps)))
    per_step = whole_orders_rdp(q, sigma, WHOLE)
    whole = [_spent(WHOLE, per_step * steps, delta) for steps, delta in parts]
    if min(order for _, order in whole) == WHOLE[0]:
        whole = [
            (min(bound, _least_spent(q, sigma, *part, round(order))), order)
            for part, (bound, order) in zip(parts, whole, strict=True)
        ]
    return max(*(bound for bound, _ in whole), error) + 3


def _least_spent(q: float, sigma: float, steps: int, delta: float, best: int) -> float:
    """Return the least epsilon by RDP at `TENTHS` about the best whole order; few are looked at.

    It falls and then rises with the order. If it did not, this would be a wider bound.
    """
    orders = [order for order in TENTHS if abs(order - best) < 1] or [float(best)]

    def spent(index: int) -> float:
        rdp = rdp_per_step(q, sigma, orders[index])
        return _spent([orders[index]], np.array([rdp * steps]), delta)[0]

    low, high = 0, len(orders) - 1
    while low < high:
        middle = (low + high) // 2
        if spent(middle) <= spent(middle + 1):
            high = middle
        else:
            low = middle + 1
    return spent(low)


def _spent(orders: Sequence[float], rdp: np.ndarray, delta: float) -> tuple[float, float]:
    """Return epsilon by RDP at these orders, and the best order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the last; the bound still holds
        epsilon, order = opacus_rdp().get_privacy_spent(orders=orders, rdp=rdp, delta=delta)
    return float(epsilon), float(order)


@lru_cache(maxsize=256)
def prv_epsilon(q: float, sigma: float, steps: int, delta: float, max_steps: int = 0) -> float:
    """Return an upper bound on epsilon, composing the privacy loss numerically.

    It is exact up to rounding where q is 1, and for one step of a run of one.

    Args:
        q: sampling probability in (0, 1].
        sigma: effective noise multiplier; 0 gives infinity.
        steps: how many steps compose, >= 0.
        delta: in (0, 1).
        max_steps: the run's number of steps; all its steps then share one grid, so that repeated
            calls are cheap.

    Raises:
        PRVFailed: if the numbers are beyond this accountant.
    """
    if steps == 0:
        return 0.0
    if sigma <= 0:
        return math.inf
    if is_closed(q, max(steps, max_steps)):
        exact = closed_epsilon(q, sigma, steps, delta)
        if not exact < math.inf:
            raise PRVFailed(f"delta={delta:g} is within rounding of 0")
        return exact
    _require_exact(steps, delta)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = _loss(q, sigma, max(steps, max_steps), delta)
            composed = loss.on_grid.composed(steps)
            # What rounding moves is counted as an infinite loss.
            missing = abs(float(composed.probabilities.sum()) - 1) + ROUNDING * steps
            if not missing <= MAX_MISSING_MASS * delta:
                raise PRVFailed(f"rounding lost {missing:.1g} of the mass, too much for {delta:g}")
            upper = composed.epsilon(delta - missing - loss.delta_error) + loss.epsilon_error
    except (RuntimeError, ValueError, ArithmeticError, IndexError, MemoryError) as error:
        raise PRVFailed(str(error)) from error
    if not upper < math.inf:
        raise PRVFailed(f"it bounds epsilon by {upper}")
    return max(upper, 0.0)  # where delta alone suffices, losses below 0 would do, too


@lru_cache(maxsize=256)
def calibrate(q: float, steps: int, delta: float, target: float) -> tuple[float, str]:
    """Return the least effective multiplier whose epsilon fits the target.

    The search starts from the Gaussian limit's closed form, goes over a coarse grid, and takes one
    or two evaluations on the fine one. Results are cached between runs; a cached one is checked
    before use, which takes one.

    Args:
        q: sampling probability in (0, 1].
        steps: how many steps compose, >= 1.
        delta: in (0, 1).
        target: epsilon, > 0.

    Returns:
        sigma, and the accountant that gave it: "prv", or "rdp" if PRV fails.

    Raises:
        ConfigError: if the accountants show of no noise that it is enough.

    Guarantees:
        (1 - TOLERANCE) * target <= epsilon(sigma) <= target under the named accountant.
    """
    kept, name = Kept("multipliers", _version()), f"{q!r} {steps} {delta!r} {target!r}"
    found = kept.get(name)
    with suppress(PRVFailed, ArithmeticError, TypeError, ValueError):
        sigma = float(found)
        least = target * (1 - TOLERANCE)
        if (
            0 < sigma <= MOST_NOISE
            and least <= prv_epsilon(q, sigma, steps, delta, steps) <= target
        ):
            return sigma, "prv"
    with told_if_long("finding the noise for this budget"):
        sigma, accountant = _found(q, steps, delta, target)
    if accountant == "prv":  # else PRV may have failed for lack of memory
        kept.put(name, sigma)
    return sigma, accountant


def _found(q: float, steps: int, delta: float, target: float) -> tuple[float, str]:
    """Return what `calibrate` does, without a look into its cache."""

    def by_rdp(sigma: float) -> float:
        return rdp_epsilon(q, sigma, steps, delta)

    def by_prv(sigma: float) -> float:
        return prv_epsilon(q, sigma, steps, delta, steps)

    def limit(epsilon: float) -> float:
        return limit_multiplier(q, steps, delta, epsilon)

    def by_coarse(sigma: float) -> float:
        return _coarse_epsilon(q, sigma, steps, delta)

    def guess(epsilon: float) -> float:
        if is_closed(q, steps):
            return limit(epsilon)
        with (
            suppress(PRVFailed, ValueError, ArithmeticError, MemoryError),
            np.errstate(all="ignore"),
        ):
            return _least(by_coarse, epsilon / (1 - TOLERANCE / 2), limit, 10)
        return limit(epsilon)

    try:
        return _least(by_prv, target, guess), "prv"
    except (PRVFailed, ArithmeticError):
        try:
            by_rdp_sigma = _least(by_rdp, target, limit)
        except ArithmeticError:
            other = "a smaller eps" if target > HUGE else "a larger eps or fewer epochs"
            raise ConfigError(
                f"No noise is shown to give epsilon {target:g} at delta {delta:g} over "
                f"{counted(steps, 'step')} of sampling probability {q:.3g}; ask for {other}."
            ) from None
        try:  # the limit may be far off, where PRV fails and a search from it goes astray
            return _least(by_prv, target, lambda _: by_rdp_sigma), "prv"
        except (PRVFailed, ArithmeticError):
            return by_rdp_sigma, "rdp"


@lru_cache(maxsize=1)
def _version() -> bytes:
    """Return a fingerprint of the code that determines a multiplier for a given budget."""
    versions = [f"{each} {version(each)}" for each in ("opacus", "numpy", "scipy")]
    files = (__file__, closed_form.__file__, prv.__file__, rdp.__file__)
    return "\n".join(versions).encode() + b"\n".join(Path(str(file)).read_bytes() for file in files)


def _least(
    epsilon: Callable[[float], float],
    target: float,
    guess: Callable[[float], float],
    tries: int = 60,
) -> float:
    """Return sigma with epsilon(sigma) just below target, by guarded secants in the logarithms.

    Args:
        epsilon: of a multiplier.
        target: > 0.
        guess: a multiplier for an epsilon, which may be wrong by about the same factor everywhere.
        tries: most evaluations.

    Raises:
        ArithmeticError: if no sigma up to a million fits.
    """
    if target < LEAST_EPSILON:
        raise ArithmeticError(f"epsilon {target:g} is within rounding of 0")
    aim = math.log(target * (1 - TOLERANCE / 2))
    sigma = min(guess(math.exp(aim)), MOST_NOISE)
    too_little, enough = 0.0, math.inf  # bracket: epsilon above and below the target
    seen: list[tuple[float, float]] = []
    fits: list[tuple[float, float]] = []  # within the tolerance: distance and sigma
    for _ in range(tries):
        value = epsilon(sigma)
        if target * (1 - TOLERANCE) <= value <= target:
            fits.append((abs(math.log(value) - aim), sigma))
            if fits[-1][0] <= CLOSE or len(fits) == MOST_FITS:
                return min(fits)[1]
        if value > math.exp(aim):
            too_little = max(too_little, sigma)
        else:
            enough = min(enough, sigma)
        if 0 < value < math.inf:
            seen.append((math.log(sigma), math.log(value)))
        if len(seen) == 1:  # as wrong as at first
            again = math.log(min(guess(math.exp(2 * aim - seen[0][1])), MOST_NOISE))
            sigma = math.exp(seen[0][0] + max(-1.4, min(1.4, again - seen[0][0])))
        else:
            sigma = _next(seen[-2:], aim, sigma)
        if not too_little < sigma < enough:
            sigma = (
                math.sqrt(too_little * enough)
                if 0 < too_little and enough < math.inf
                else too_little * 2 or enough / 2
            )
        if sigma > MOST_NOISE or enough <= too_little * (1 + CLOSED):
            break
    if fits:
        return min(fits)[1]
    raise ArithmeticError(f"no noise multiplier reaches epsilon {target:g}")


def _next(seen: list[tuple[float, float]], aim: float, sigma: float) -> float:
    if not seen:
        return sigma * 2
    (x, y) = seen[-1]
    slope = -1.5  # epsilon falls about as sigma^-1 to sigma^-2 around common budgets
    if len(seen) == 2 and x != seen[0][0]:
        slope = min((y - seen[0][1]) / (x - seen[0][0]), -0.1)
    # At most a factor of four: far from the solution the secant extrapolates badly.
    return math.exp(x + max(-1.4, min(1.4, (aim - y) / slope)))
