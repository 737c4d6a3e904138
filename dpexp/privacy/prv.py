"""The privacy loss of a Poisson-subsampled Gaussian, composed on a grid.

Gopi, Lee and Wutschitz 2021 (arXiv:2106.02848): the loss of one step is put on a grid, the law of
its grid points is moved to the exact mean, and n of them are summed by a Fourier transform.

P is the mixture (1 - q) N(0, sigma^2) + q N(1, sigma^2), Q is N(0, sigma^2), and the loss is
Y = log(P(x) / Q(x)) at x drawn from P. This is the worse of the two directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr

WIDE = 40.0
"""Standard deviations beyond which a Gaussian has no mass in float64."""

NODES = 20
"""Gauss-Legendre nodes of a panel of the mean's integral (ours)."""

MOST_PANELS = 2**18
"""Most panels; noise that would need more is too little for any epsilon of use (ours)."""

LOWEST = -1.0
"""Least loss that epsilon is looked for at: a bound is at least 0 (ours)."""

HIGHEST = 600.0
"""Largest one, whose exponential is within float64 (ours)."""


@dataclass(frozen=True)
class Loss:
    """The loss of one step, on a grid.

    Attributes:
        probabilities: of the grid points, [size]; size is even.
        mesh: distance of the points, > 0.
        zero: index of the point that stands for 0, up to `shift`.
        shift: added to every point, so that the mean is the exact one.
    """

    probabilities: np.ndarray
    mesh: float
    zero: int
    shift: float

    @cached_property
    def _spectrum(self) -> np.ndarray:
        return np.fft.rfft(self.probabilities)

    def composed(self, steps: int) -> Composed:
        """Return the law of the sum of as many independent losses, >= 1.

        Sums that leave the grid come back at its other end; it has to be wide enough.
        """
        size = len(self.probabilities)
        summed = np.fft.irfft(_power(self._spectrum, steps), size)
        summed = np.roll(summed, -(steps - 1) * self.zero)
        points = (np.arange(size) - self.zero) * self.mesh + steps * self.shift
        return Composed(summed, points)


@dataclass(frozen=True)
class Composed:
    """The law of a run's loss.

    Attributes:
        probabilities: of the points, [size]; some may be below 0 by rounding.
        points: ascending, [size].
    """

    probabilities: np.ndarray
    points: np.ndarray

    @cached_property
    def _tails(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tails' masses under P and Q and -delta, at points that epsilon may be at."""
        start, end = np.searchsorted(self.points, (LOWEST, HIGHEST))
        points, mass = self.points[start:], self.probabilities[start:]
        under_p = np.cumsum(mass[::-1])[::-1]
        under_q = np.cumsum((mass * np.exp(-points))[::-1])[::-1]
        few = slice(0, end - start)
        minus_delta = np.exp(points[few]) * under_q[few] - under_p[few]
        return under_p[few], under_q[few], minus_delta

    def epsilon(self, delta: float) -> float:
        """Return epsilon at this delta; 0 if it is below `LOWEST`.

        Raises:
            ValueError: if rounding is no longer small beside delta, or the grid is too narrow.
        """
        if delta <= 0:
            return math.inf
        if np.finfo(np.longdouble).eps * len(self.points) > delta:
            raise ValueError(f"delta={delta:g} is of the size of rounding on this grid")
        under_p, under_q, minus_delta = self._tails
        index = int(np.searchsorted(minus_delta, -delta))
        if index == len(minus_delta):
            raise ValueError("the grid ends below epsilon")
        return 0.0 if index == 0 else math.log((under_p[index] - delta) / under_q[index])


def loss(q: float, sigma: float, half_width: float, mesh: float) -> Loss:
    """Return the loss of one step, given that it lies on the grid.

    Args:
        q: sampling probability in (0, 1].
        sigma: effective noise multiplier, > 0.
        half_width: of the grid around 0, > 0.
        mesh: distance of the points, > 0.

    Raises:
        ValueError: if the noise is too little, or the grid too coarse for the loss.
    """
    zero = math.ceil(half_width / mesh)
    size = _even_and_fast(2 * zero + 2)
    edges = (np.arange(size + 1) - zero - 0.5) * mesh
    ends = np.array([-zero * mesh, (size - 1 - zero) * mesh])
    lowest, highest = cdf(ends, q, sigma)
    inside = (cdf(np.clip(edges, *ends), q, sigma) - lowest) / (highest - lowest)
    probabilities = np.diff(inside)
    mean = _mean(q, sigma, *_drawn(ends, q, sigma)) / (highest - lowest)
    points = (np.arange(size) - zero) * mesh
    shift = float(mean - points @ probabilities)
    if not abs(shift) < mesh / 2:
        raise ValueError("the grid's mean is not that of the loss")
    return Loss(probabilities, mesh, zero, shift)


def cdf(t: Any, q: float, sigma: float) -> Any:
    """Return the probability that the loss is at most t (its Proposition B.4)."""
    x = _drawn(np.asarray(t, dtype=float), q, sigma)
    return (1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma)


def _drawn(t: np.ndarray, q: float, sigma: float) -> np.ndarray:
    """Return the x at which the loss is t; -infinity where it is more everywhere."""
    with np.errstate(all="ignore"):
        high = t + np.log1p((q - 1) * np.exp(-np.maximum(t, 0.0))) - math.log(q)
        low = np.log1p(np.expm1(np.minimum(t, 0.0)) / q)
    return sigma**2 * np.where(t > 0, high, np.where(np.isnan(low), -np.inf, low)) + 0.5


def _mean(q: float, sigma: float, low: float, high: float) -> float:
    """Return the integral of Y P(x) over x in [low, high], by Gauss-Legendre panel by panel.

    Y has a branch point at a distance of pi sigma^2 from the real line, so panels are as narrow.
    """
    low, high = max(low, -WIDE * sigma), min(high, 1 + WIDE * sigma)
    panels = math.ceil((high - low) / min(sigma / 2, 2 * sigma**2))
    if not 0 < panels <= MOST_PANELS:
        raise ValueError(f"sigma={sigma:g} is too little noise")
    nodes, weights = _legendre()
    half = (high - low) / panels / 2
    x = (low + half * (2 * np.arange(panels)[:, None] + 1)) + half * nodes
    u = (2 * x - 1) / (2 * sigma**2)
    if q == 1:
        y = u
    else:
        near = np.log1p(q * np.expm1(np.minimum(u, 1.0)))
        y = np.where(u < 1, near, np.logaddexp(math.log1p(-q), math.log(q) + u))
    density = (1 - q) * np.exp(-((x / sigma) ** 2) / 2) + q * np.exp(-(((x - 1) / sigma) ** 2) / 2)
    return float(half * ((y * density) @ weights).sum() / (sigma * math.sqrt(2 * math.pi)))


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(NODES)


def _power(numbers: np.ndarray, exponent: int) -> np.ndarray:
    """Return numbers to a whole power >= 1 by squaring, faster than numpy's for complex ones."""
    result = None
    while exponent:
        if exponent & 1:
            result = numbers if result is None else result * numbers
        exponent >>= 1
        if exponent:
            numbers = numbers * numbers
    assert result is not None
    return result


def _even_and_fast(least: int) -> int:
    """Return the least even number from there on that has no prime factor above 5 but few.

    A Fourier transform of other lengths takes several times longer.
    """
    power = 1 << max(1, (least - 1).bit_length())  # the power of two from there on
    sizes = (power * part // 16 for part in (9, 10, 12, 15, 16) if power >= 32)
    return min((size for size in sizes if size >= least), default=power)
