"""Epsilons in closed form, beside integrals of the densities and other accountants."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpexp.privacy.accounting import TOLERANCE, calibrate, prv_epsilon
from dpexp.privacy.closed_form import closed_epsilon, is_closed
from dpexp.privacy.pld import Part, gaussian_epsilon
from dpexp.privacy.rdp import rdp_epsilon


def powers(low, high):
    """Draw what is spread evenly over its powers of ten."""
    return st.floats(low, high).map(lambda power: 10**power)


def integrated_delta(q, sigma, steps, epsilon):
    """Return the larger of both directions' deltas, as integrals of densities in float64."""
    mu = math.sqrt(steps) / sigma
    x = np.linspace(-12 - mu, 12 + 2 * mu, 400_001)
    without = np.exp(-(x**2) / 2)
    drawn = (1 - q) * without + q * np.exp(-((x - mu) ** 2) / 2)
    excess = [
        np.clip(one - math.exp(epsilon) * other, 0, None).sum() * (x[1] - x[0])
        for one, other in ((drawn, without), (without, drawn))
    ]
    return max(excess) / math.sqrt(2 * math.pi)


@settings(max_examples=25, deadline=None)
@example(q=1.0, sigma=3.0, steps=50, delta=1e-5)
@example(q=0.9, sigma=0.5, steps=1, delta=0.2)
@given(
    q=powers(-4, 0) | st.just(1.0),
    sigma=powers(-0.5, 1.5),
    steps=st.integers(1, 1000),
    delta=powers(-9, -1),
)
def test_a_closed_epsilon_has_its_delta_and_no_less_would_do(q, sigma, steps, delta):
    steps = steps if q == 1 else 1
    epsilon = closed_epsilon(q, sigma * math.sqrt(steps), steps, delta)
    assert integrated_delta(q, sigma * math.sqrt(steps), steps, epsilon) <= delta * (1 + 1e-4)
    if epsilon > 0:
        less = epsilon * (1 - 1e-3)
        assert integrated_delta(q, sigma * math.sqrt(steps), steps, less) > delta


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [(1.0, 40.0, 100, 1e-5), (1.0, 0.2, 1, 1e-9), (0.05, 0.6, 1, 1e-6), (0.5, 2.0, 1, 1e-3)],
)
def test_other_accountants_bound_a_closed_epsilon_from_above(q, sigma, steps, delta):
    exact = prv_epsilon(q, sigma, steps, delta)
    assert exact == closed_epsilon(q, sigma, steps, delta)
    assert exact < rdp_epsilon(q, sigma, steps, delta)
    assert exact <= gaussian_epsilon((Part(q, sigma, steps),), delta, exact) <= exact * 1.001


@settings(max_examples=15, deadline=None)
@example(q=1.0, steps=608_763, delta=1e-5, target=0.1)
@example(q=0.1, steps=1, delta=1e-5, target=8.0)  # a grid left 0.24 % of the budget unused
@given(
    q=powers(-3, 0) | st.just(1.0),
    steps=st.integers(1, 10_000),
    delta=powers(-10, -4),
    target=powers(-2, 2),
)
def test_noise_of_whole_batches_and_of_a_single_step_spends_the_budget(q, steps, delta, target):
    steps = steps if q == 1 else 1
    assert is_closed(q, steps)
    sigma, by = calibrate(q, steps, delta, target)
    assert by == "prv"
    found = prv_epsilon(q, sigma, steps, delta)
    assert target * (1 - TOLERANCE) <= found <= target
    assert integrated_delta(q, sigma, steps, found) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("power", range(-16, -10))
def test_rounding_never_makes_a_closed_epsilon_smaller(power):
    """Terms of 1/2 differ by as little as their rounding; recomputed with 60 digits."""
    with mpmath.workdps(60):
        for sigma in np.geomspace(1e2, 1e6, 30):
            delta = float(10.0**power)
            epsilon = mpmath.mpf(closed_epsilon(1.0, float(sigma), 1, delta))
            mu = 1 / mpmath.mpf(float(sigma))
            near, far = (mpmath.ncdf(sign * mu / 2 - epsilon / mu) for sign in (1, -1))
            assert near - mpmath.exp(epsilon) * far <= delta


def test_a_delta_above_the_sampling_rate_takes_no_epsilon():
    assert closed_epsilon(1e-3, 0.5, 1, 1e-2) == 0.0


def test_a_delta_within_rounding_of_0_has_no_closed_epsilon():
    assert closed_epsilon(1.0, 1.0, 1, 1e-300) < math.inf
    assert closed_epsilon(1.0, 1e-155, 1, 1e-5) == math.inf


def test_a_longer_run_s_first_step_shares_its_grid():
    """Its line of the ledger was written with it."""
    assert not is_closed(0.04, 500)
    alone = prv_epsilon(0.04, 1.0, 1, 1e-5)
    assert alone < prv_epsilon(0.04, 1.0, 1, 1e-5, 500) < alone + 0.02
