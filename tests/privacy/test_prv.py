"""The loss on a grid against literal integrals and sums, and against Opacus."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis import prv as opacus
from scipy.integrate import quad
from scipy.stats import norm

from dpexp.privacy import prv
from dpexp.privacy.accounting import _half_width
from dpexp.privacy.closed_form import limit_multiplier

LAWS = [(0.02, 1.4), (0.25, 0.7), (0.9, 3.0), (1.0, 5.0), (1e-3, 0.45)]


def drawn_loss(x, q, sigma):
    return math.log(1 - q + q * math.exp((2 * x - 1) / (2 * sigma**2)))


@pytest.mark.parametrize(("q", "sigma"), LAWS)
def test_the_distribution_function_is_that_of_the_loss_as_it_is_drawn(q, sigma):
    for x in (-2 * sigma, 0.0, 0.5, 1.0, 1 + 3 * sigma):  # the loss rises with x
        below = (1 - q) * norm.cdf(x / sigma) + q * norm.cdf((x - 1) / sigma)
        assert prv.cdf(drawn_loss(x, q, sigma), q, sigma) == pytest.approx(below, rel=1e-9)


@pytest.mark.parametrize(("q", "sigma"), LAWS)
def test_a_loss_on_a_grid_has_the_mean_of_the_exact_one(q, sigma):
    loss = prv.loss(q, sigma, 60.0, 1e-3)
    points = (np.arange(len(loss.probabilities)) - loss.zero) * loss.mesh + loss.shift

    def integrand(x):
        density = (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma)
        return drawn_loss(x, q, sigma) * density

    breaks = np.linspace(-12 * sigma, 1 + 12 * sigma, 60)
    exact = sum(quad(integrand, *ends, epsabs=1e-15)[0] for ends in pairwise(breaks))
    assert points @ loss.probabilities == pytest.approx(exact, rel=1e-9, abs=1e-13)
    assert loss.probabilities.sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7])
def test_sums_of_losses_have_the_law_of_repeated_convolution(steps):
    loss = prv.loss(0.3, 1.2, 20.0, 0.05)
    size, zero = len(loss.probabilities), loss.zero
    literal = loss.probabilities
    for _ in range(steps - 1):
        literal = np.convolve(literal, loss.probabilities)[zero : zero + size]
    composed = loss.composed(steps)
    np.testing.assert_allclose(composed.probabilities, literal, atol=1e-14)
    assert composed.points[zero] == pytest.approx(steps * loss.shift, abs=1e-14)


def test_epsilon_is_where_the_hockey_stick_divergence_is_delta():
    composed = prv.loss(0.2, 1.0, 30.0, 0.01).composed(12)
    for delta in (1e-1, 1e-3, 1e-6):
        epsilon = composed.epsilon(delta)
        above = composed.points > epsilon
        gap = 1 - np.exp(epsilon - composed.points[above])
        assert composed.probabilities[above] @ gap == pytest.approx(delta, rel=1e-9)


def test_what_a_grid_cannot_tell_is_refused():
    composed = prv.loss(0.5, 1.0, 6.0, 0.01).composed(3)
    assert composed.epsilon(0.0) == math.inf
    with pytest.raises(ValueError, match="rounding"):
        composed.epsilon(1e-19)
    with pytest.raises(ValueError, match="ends below"):
        prv.loss(1.0, 0.4, 3000.0, 0.05).composed(400).epsilon(1e-5)  # above 1000
    with pytest.raises(ValueError, match="too little noise"):
        prv.loss(0.5, 1e-5, 6.0, 0.01)


@settings(max_examples=10)
@given(
    q=st.floats(-2.5, 0).map(lambda power: 10**power),
    sigma=st.floats(0.45, 5),
    steps=st.integers(1, 100),  # q = 1 reaches epsilon 600 with more, where grids end
)
def test_a_composed_law_is_opacus(q, sigma, steps):
    """Its mean is integrated to some 1e-8 a step."""
    width = _half_width(q, sigma, steps, 0.0, 1e-9)
    mesh = width / 5_000
    law = opacus.PoissonSubsampledGaussianPRV(q, sigma)
    domain = opacus.Domain.create_aligned(-width, width, mesh)
    with np.errstate(all="ignore"):
        on_grid = opacus.TruncatedPrivacyRandomVariable(law, domain.t_min, domain.t_max)
        step = opacus.discretize(on_grid, domain)
        theirs = opacus.compose_heterogeneous([step], [steps])
        ours = prv.loss(q, sigma, width, mesh).composed(steps)
        for delta in (1e-2, 1e-5):
            _, estimate, _ = theirs.compute_epsilon(delta, 0.0, 0.0)
            assert max(0, ours.epsilon(delta)) == pytest.approx(
                max(0, estimate), rel=1e-5, abs=1e-5
            )


@pytest.mark.parametrize(("steps", "epsilon"), [(1, 0.5), (100, 2.0), (100, 8.0)])
def test_the_limit_has_the_delta_of_one_gaussian_mechanism(steps, epsilon):
    sigma = limit_multiplier(1.0, steps, 1e-5, epsilon)
    mu = math.sqrt(steps * math.expm1(sigma**-2))
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)
