"""Laplace noise: its cost against an independent accountant and against the densities."""

import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st

from dpexp.privacy import PrivacyError, build, verify
from dpexp.privacy.laplace import (
    amplified,
    calibrate_laplace,
    pld_epsilon,
    pure_epsilon,
    unamplified,
)
from dpexp.types import ConfigError, Release

PRIVACY = {
    "eps": 8.0,
    "delta": 1e-5,
    "noise": True,
    "clip": True,
    "sampling": "poisson",
    "budget": "total",
}
SIZES = {"dataset_size": 1000, "batch_size": 200, "num_steps": 10}
RELEASES = (Release("measurements", 20, 0.5, 6.0, "laplace", "coordinates"),)


def make(releases=RELEASES, sizes=SIZES, **privacy):
    return build(PRIVACY | privacy, releases=releases, seed=0, **sizes)


def certify(mechanism, steps=10, noise_draws=10):
    certificate = mechanism.certificate(
        steps=steps, noise_draws=noise_draws, trainable={"head.weight": 50}, frozen={}
    )
    return json.loads(json.dumps(certificate, allow_nan=False))


# The accountants


@pytest.mark.parametrize("q", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("sigma", [0.2, 1.0, 5.0])
def test_epsilon_is_where_the_privacy_loss_distribution_ends(q, sigma):
    """Google's accountant: delta is 0 from the pure epsilon on, and not before."""
    step = 1e-4
    loss = privacy_loss_distribution.from_laplace_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=step, use_connect_dots=True
    ).self_compose(4)
    epsilon = pure_epsilon(q, sigma, [1.0] * 4)
    # Sums over the grid round to some 1e-12.
    assert loss.get_delta_for_epsilon(epsilon + 4 * step) < 1e-11
    assert loss.get_delta_for_epsilon(0.97 * epsilon) > 1e-9


@given(st.floats(1e-4, 1.0), st.floats(-3, 5), st.integers(1, 2000))
def test_the_two_accountants_agree(q, log_sigma, steps):
    sigma = 10**log_sigma
    pure = pure_epsilon(q, sigma, [1.0] * steps)
    assert pld_epsilon(q, sigma, steps) == pytest.approx(pure, rel=1e-6)


def test_no_vector_within_the_sensitivity_costs_more_than_it_says():
    """In several dimensions, on a grid: the log-ratio of a subsampled release's densities."""
    rng, q, sigma = np.random.default_rng(0), 0.3, 0.7
    epsilon, largest = pure_epsilon(q, sigma, [1.0]), 0.0
    for _ in range(50):
        shift = rng.laplace(size=3)
        shift /= abs(shift).sum()  # l1 sensitivity one
        place = np.concatenate([rng.normal(scale=2, size=(2000, 3)), 5 * np.sign(shift)[None]])
        absent = -abs(place).sum(1) / sigma
        present = -abs(place - shift).sum(1) / sigma
        loss = np.logaddexp(math.log(1 - q) + absent, math.log(q) + present) - absent
        largest = max(largest, abs(loss).max())
    assert 0.999 * epsilon < largest <= epsilon * (1 + 1e-9)


@given(st.floats(1e-6, 2000.0), st.floats(1e-4, 1.0))
def test_amplification_is_undone(epsilon, q):
    assert amplified(unamplified(epsilon, q), q) == pytest.approx(epsilon, rel=1e-9)
    assert amplified(epsilon, q) <= epsilon * (1 + 1e-12)


def test_full_batches_are_not_amplified_and_no_noise_costs_everything():
    assert pure_epsilon(1.0, 0.5, [1.0] * 3) == pytest.approx(6.0)
    assert pld_epsilon(1.0, 0.5, 3) == pytest.approx(6.0)
    assert pure_epsilon(0.5, 0.0, [1.0]) == math.inf == pld_epsilon(0.5, 0.0, 1)
    assert pure_epsilon(0.5, 0.0, []) == 0.0 == pld_epsilon(0.5, 1.0, 0)


@given(st.floats(1e-4, 1.0), st.floats(-4, 2), st.integers(1, 3000))
def test_calibration_meets_its_budget_from_below(q, log_epsilon, steps):
    total = 10**log_epsilon
    spent = pure_epsilon(q, calibrate_laplace(q, total / steps), [1.0] * steps)
    assert total * (1 - 1e-6) < spent <= total


# The mechanism


def test_eps_is_the_runs_or_each_steps():
    total, each = make(eps=2.0), make(eps=2.0, budget="per_step")
    assert (total.target_epsilon, each.target_epsilon) == (2.0, 20.0)
    assert total.epsilon(10) == pytest.approx(2.0) and each.epsilon(10) == pytest.approx(20.0)
    assert each.epsilon(1) == pytest.approx(2.0) == each.epsilon(1, "pld")
    assert total.delta == 0 and total.calibrated_by == "pure"


def test_noise_is_the_l1_sensitivity_over_a_steps_epsilon():
    full = {"dataset_size": 1000, "batch_size": 1000, "num_steps": 10}
    assert make(sizes=full, eps=5.0).noise_multiplier == pytest.approx(6.0 / 0.5)
    pair = (*RELEASES, Release("more", 5, 0.5, 4.0, "laplace", "coordinates"))
    assert make(pair, full, eps=5.0).noise_multiplier == pytest.approx(10.0 / 0.5)


@pytest.mark.parametrize("eps", [1e9, 1e30])
def test_an_epsilon_that_verification_cannot_resolve_is_refused_at_the_start(eps):
    """As under Gaussian noise; its run trained to the end, and its certificate differed."""
    with pytest.raises(ConfigError, match="Set a smaller eps, or noise=false"):
        make(eps=eps)
    verify(certify(make(eps=100.0)))


def test_the_certificate_of_two_releases_with_noise_for_their_root_of_squares_is_refused():
    """In l1 their sensitivities add up."""
    certificate = certify(make((*RELEASES, Release("more", 5, 0.5, 4.0, "laplace", "coordinates"))))
    verify(certificate)
    certificate["noise_multiplier"] *= math.hypot(6.0, 4.0) / (6.0 + 4.0)
    with pytest.raises(PrivacyError, match="above the target"):
        verify(certificate)


def test_less_noise_at_some_steps_is_costed():
    mechanism = make(sizes=SIZES | {"batch_size": 1000}, eps=5.0)
    assert mechanism.epsilon_at([1.0] * 10) == mechanism.epsilon(10)
    assert mechanism.epsilon_at([1.0, 3.0, 0.5]) == pytest.approx(0.5 * 4.5)
    assert make(noise=False, eps=None).epsilon_at([1.0]) is None


def test_an_honest_certificate_passes():
    certificate = certify(make())
    verify(certificate)
    verify(certify(make(budget="per_step")))
    verify(certify(make(), steps=4, noise_draws=4))
    assert set(certificate["epsilon"]) == {"pure", "pld"} and certificate["delta"] == 0
    assert certificate["releases"][0]["noise"] == "laplace"
    assert certificate["deviations"] == []


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    "forgery, message",
    [
        ({"noise_draws": 9}, "drawn at 9 steps where 10"),
        ({"noise_multiplier": 1.0}, "by pure is .* above the target 8"),
        ({"steps": 20, "noise_draws": 20}, "above the target 8"),
        ({"releases": [{"sensitivity": 12.0, "noise": "laplace"}]}, "above the target 8"),
        ({"batch_size": 400, "q": 0.4}, "above the target 8"),
        ({"epsilon": {"pure": 1.0, "pld": 8.0}}, "stated for pure .* below the recomputed"),
        ({"epsilon": {"pure": 8.0, "pld": 1.0}}, "stated for pld .* below the recomputed"),
        ({"calibrated_by": "prv"}, "calibrated by pure; got prv"),
        # Gaussian noise of that multiplier is another guarantee, with a delta.
        ({"releases": [{"sensitivity": 6.0}]}, "calibrated by prv or rdp; got pure"),
    ],
    ids=str,
)
def test_a_false_certificate_is_refused(forgery, message):
    with pytest.raises(PrivacyError, match=message):
        verify(certify(make()) | forgery)


def test_without_noise_there_is_no_epsilon():
    certificate = certify(make(noise=False, eps=None), noise_draws=0)
    verify(certificate)
    assert set(certificate["epsilon"].values()) == {None}


def test_a_budget_of_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.budget=per_stp\. Did you mean per_step\?"):
        make(budget="per_stp")
