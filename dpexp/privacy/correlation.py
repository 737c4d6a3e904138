"""Noise that is correlated across steps: a banded matrix in front of a run's sums.

Weights after t steps of gradient descent hold the sum of t gradients. Noise that later steps take
back in part leaves less of itself in that sum than fresh noise at every step does. Of one release,
with z_t fresh Gaussian noise and coefficients c of |c| = 1 (Choquette-Choo et al. 2023, arXiv
2306.08153; McKenna 2024, arXiv 2405.15913; banded Toeplitz matrices):

    w_t <- (z_t - sum_(1 <= i < b) c_i w_(t-i)) / c_0
    released at step t: the clipped sum + w_t

So what leaves in a run is C^(-1) (C sums + z), C the lower triangular Toeplitz matrix with c in its
first column: post-processing of C sums + z, a Gaussian mechanism.

Sensitivity: each example is of one of b groups, drawn once and independently of all others. Steps
draw from groups in turn: step t from group t mod b, each of its examples with probability b q.
Rows of C that hold an example's gradient of step t are t to t + b - 1, none of which hold its next
possible one, of step t + b. So its draws are that many independent Poisson-subsampled Gaussian
mechanisms, each of sensitivity |c| = 1 clip norm: after T steps at most ceil(T / b) of probability
b q (2306.08153, Theorem 4). b = 1 is DP-SGD.

Neighbours are data sets with one example more or less, as elsewhere: since groups are drawn example
by example, the others' groups do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpexp.privacy.noise import add_noise_
from dpexp.types import ConfigError, Key, Release, require_word

AUTO = "auto"

DIGITS = 6
"""Decimals of coefficients before |c| is made 1 (ours), so that machines agree about them."""

LARGEST = 1e100
"""Variance from which on a factorisation is not looked at (ours)."""

MOST_BANDS = 64
"""Largest number of bands that `auto` tries (ours); each keeps a copy of the release."""

Past = list[list[Tensor]]
"""w_(t-1), w_(t-2), ... of a run, each the blocks of a step in their order, in float64."""


@dataclass(frozen=True)
class Correlation:
    """A factorisation, as a run uses it.

    Attributes:
        coefficients: c_0 > 0 to c_(b-1), of l2 norm 1.
    """

    coefficients: tuple[float, ...]

    @property
    def bands(self) -> int:
        """Return b."""
        return len(self.coefficients)

    def participations(self, steps: int) -> int:
        """Return how many of so many steps may draw one example."""
        return math.ceil(steps / self.bands)


@dataclass(frozen=True)
class Banded:
    """The choice of a run: `noise=correlated noise.bands=8`.

    Attributes:
        bands: b, >= 1, at most N over the batch size; "auto" takes the power of two for which the
            noise in the weights is least (`banded`).
    """

    bands: int | str = AUTO

    def __post_init__(self) -> None:
        """Check the setting.

        Raises:
            ConfigError: for another value.
        """
        if isinstance(self.bands, str):
            require_word("noise.bands", self.bands, (AUTO,))
            return
        is_number = isinstance(self.bands, int | float) and not isinstance(self.bands, bool)
        if not (is_number and 1 <= self.bands < math.inf and self.bands == int(self.bands)):
            raise ConfigError(
                f"Expected noise.bands to be {AUTO} or a whole number from 1 on; got {self.bands}."
                " Set noise.bands."
            )


def inverse(coefficients: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` entries of the first column of C^(-1): a power series 1 / c(x)."""
    from scipy.signal import lfilter  # takes half a second, which most commands do not need

    impulse = np.zeros(count)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], coefficients, impulse))


def variance(coefficients: Sequence[float], steps: int) -> float:
    """Return the mean, over steps, of the variance of w_0 + ... + w_t, for z of variance 1.

    It is |A C^(-1)|_F^2 / T, A the matrix of prefix sums (2306.08153, Section 2). Fresh noise of
    variance 1 has (T + 1) / 2.
    """
    sums = np.cumsum(inverse(coefficients, steps))
    return float(sums**2 @ _weights(steps))


def _weights(steps: int) -> np.ndarray:
    """Return how often each of T entries of a Toeplitz column stands in the matrix, over T."""
    return np.arange(steps, 0, -1) / steps


def optimal(bands: int, steps: int) -> Correlation:
    """Return the coefficients of |c| = 1 for which `variance` is least.

    By L-BFGS from the square root of the prefix sums, cut to b bands (Fichtenberger, Henzinger and
    Upadhyay 2022, arXiv 2202.11205), which is the best at b = T but for a constant.

    Args:
        bands: b, >= 1.
        steps: T, >= 1.
    """
    from scipy.optimize import minimize

    bands = min(bands, steps)
    root = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))])
    weights = _weights(steps)

    def loss(rest: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log(variance |c|^2) and its gradient, of c = (1, rest)."""
        from scipy.signal import fftconvolve

        c = np.concatenate([[1.0], rest])
        with np.errstate(all="ignore"):  # of a line search that tries too much
            column = inverse(c, steps)
            sums = np.cumsum(column)
            total, square = float(sums**2 @ weights), float(c @ c)
        if not total < LARGEST:
            return math.log(LARGEST), np.zeros_like(rest)
        # d sums / d c_k = - x^k sums(x) / c(x)
        spread = fftconvolve(sums, column)[:steps]
        pulled = fftconvolve(2 * weights * sums, spread[::-1])[steps - 1 : steps - 1 + bands]
        gradient = -pulled / total + 2 * c / square
        return math.log(total * square), gradient[1:]

    found = root
    if bands > 1:
        best = minimize(loss, root[1:], jac=True, method="L-BFGS-B", options={"maxiter": 1000})
        found = np.concatenate([[1.0], best.x])
    rounded = np.round(found, DIGITS)
    return Correlation(tuple((rounded / np.linalg.norm(rounded)).tolist()))


def banded(
    bands: int | str, probability: float, steps: int, multiplier: Callable[[float, int], float]
) -> Correlation:
    """Return the coefficients of a run.

    With "auto", b is the power of two with the least variance of the weights' noise: more bands
    correlate more, and sample each example from fewer steps with a larger probability, which asks
    for more noise (2306.08153, Section 4).

    Args:
        bands: b, or "auto".
        probability: q, the expected batch over N.
        steps: of the run.
        multiplier: returns the noise multiplier that the budget asks for, of a sampling probability
            and a number of compositions.

    Raises:
        ConfigError: for more bands than there are batches in the data, or steps.
    """
    most = max(1, min(math.floor(1 / probability + 1e-9), steps))
    if bands != AUTO:
        if int(bands) > most:
            raise ConfigError(
                f"Expected noise.bands of at most {most}: N over batch_size, and the number of "
                f"steps; got {bands}. Set noise.bands."
            )
        return optimal(int(bands), steps)
    best, least = None, math.inf
    for power in range(int(math.log2(min(most, MOST_BANDS))) + 1):
        b = 2**power
        found = optimal(b, steps)
        sigma = multiplier(min(1.0, b * probability), found.participations(steps))
        noise = sigma**2 * variance(found.coefficients, steps)
        if noise >= least:
            break
        best, least = found, noise
    assert best is not None  # b = 1 is always tried
    return best


@torch.no_grad()
def add_correlated_noise_(
    sums: Mapping[Key, Tensor],
    releases: Sequence[Release],
    noise_multiplier: float,
    gen: torch.Generator | None,
    correlation: Correlation,
    past: Past,
    dtype: torch.dtype | None = None,
) -> Past:
    """Add w_t to every block in place, and return the noise that later steps need.

    Args:
        sums: of this step, as in `add_noise_`.
        releases: of the step.
        noise_multiplier: of z_t.
        gen: z_t is drawn from it, as `add_noise_` draws.
        correlation: the coefficients.
        past: w_(t-1) and earlier; [] before the first step.
        dtype: of the drawn noise, as in `add_noise_`.

    Raises:
        ConfigError: if a block has another shape than before.
    """
    fresh = {key: torch.zeros_like(total, dtype=torch.float64) for key, total in sums.items()}
    drawn = dtype or next(iter(sums.values())).dtype
    add_noise_(fresh, releases, noise_multiplier, gen, drawn)
    shapes = [each.shape for each in fresh.values()]
    if any([each.shape for each in step] != shapes for step in past):
        raise ConfigError(
            "Expected releases of the same shapes at every step, beside noise=correlated; they "
            "have changed. Leave noise out."
        )
    first, *others = correlation.coefficients
    now = []
    for index, (total, noise) in enumerate(zip(sums.values(), fresh.values(), strict=True)):
        for coefficient, before in zip(others, past, strict=False):
            noise.sub_(before[index], alpha=coefficient)
        noise.div_(first)
        total.copy_(total.double().add_(noise))
        now.append(noise)
    return [now, *past][: correlation.bands - 1]
