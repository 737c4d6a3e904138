"""What noisy votes cost, against another accountant, numerical integration and a transcription."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest, norm

from dpexp.pate.votes import CHECK, VOTES, build_votes
from dpexp.privacy import PrivacyError, verify
from dpexp.privacy.gnmax import (
    calibrate_votes,
    data_dependent_epsilon,
    data_dependent_rdp,
    effective_multiplier,
    log_flip_of_check,
    log_flip_of_votes,
    votes_epsilon,
)
from dpexp.privacy.noise import add_noise_
from dpexp.privacy.rdp import ORDERS
from dpexp.types import ConfigError, Key

PRIVACY = {"eps": 8.0, "delta": 1e-5, "noise": True, "clip": True, "sampling": "poisson"}


def make(privacy=PRIVACY, **options):
    defaults = {
        "dataset_size": 1000,
        "num_classes": 3,
        "threshold": 30.0,
        "check_ratio": 3.0,
        "max_checks": 40,
        "max_answers": 20,
        "seed": 0,
    }
    return build_votes(privacy, **defaults | options)


# Without looking at the votes


@given(
    check_std=st.floats(5, 300),
    vote_std=st.floats(5, 100),
    max_checks=st.integers(1, 5000),
    max_answers=st.integers(1, 3000),
)
def test_the_price_is_that_of_all_checks_and_answers(check_std, vote_std, max_checks, max_answers):
    """Papernot et al. 2018, Proposition 8: sensitivities 1 and sqrt(2)."""
    accountant = RdpAccountant(ORDERS)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(check_std), max_checks))
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(vote_std / math.sqrt(2)), max_answers))
    multiplier = effective_multiplier(check_std, vote_std, max_checks, max_answers)
    ours = votes_epsilon(multiplier, 1e-5)["rdp"]
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("delta", [1e-4, 1e-6])
@pytest.mark.parametrize("target", [0.3, 2, 8, 20])
def test_calibrated_noise_is_the_least_that_fits(target, delta):
    multiplier = calibrate_votes(target, delta)
    assert 0.999999 * target < votes_epsilon(multiplier, delta)["rdp"] <= target
    for epsilon in votes_epsilon(multiplier, delta).values():  # no less than the exact Gaussian's
        mu = 1 / multiplier
        exact = norm.cdf(mu / 2 - epsilon / mu)
        exact -= math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert exact <= delta


def test_a_budget_that_no_noise_reaches_is_refused():
    with pytest.raises(ConfigError, match="No noise is shown to give epsilon 0.001"):
        calibrate_votes(1e-3, 1e-300)


# Given the votes


def literal_theorem_6(q, sigma, order):
    """Papernot et al. 2018, Theorem 6 with the orders of Proposition 10, one number at a time."""
    independent = order / sigma**2
    if sigma * math.sqrt(math.log(1 / q)) <= 1:
        return independent
    mu2 = sigma * math.sqrt(math.log(1 / q))
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    limit = math.exp((mu2 - 1) * eps2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2
    if order > mu1 or q > limit or q * math.exp(eps2) >= 1:
        return independent
    a = (1 - q) / (1 - (q * math.exp(eps2)) ** ((mu2 - 1) / mu2))
    b = math.exp(eps1) / q ** (1 / (mu1 - 1))
    bound = math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)
    return min(bound, independent)


def test_the_data_dependent_bound_is_theorem_6():
    helped = 0
    for sigma in (3.0, 10.0, 40.0):
        logs = -np.geomspace(1e-3, 100, 30)
        got = data_dependent_rdp(logs, sigma)
        for k, log_q in enumerate(logs):
            for j in range(0, len(ORDERS), 7):
                if ORDERS[j] > 60:
                    continue  # the transcription overflows
                expected = literal_theorem_6(math.exp(log_q), sigma, ORDERS[j])
                assert got[k, j] == pytest.approx(expected, rel=1e-6, abs=1e-13)
                helped += expected < 0.5 * ORDERS[j] / sigma**2
    assert helped > 100  # or this test shows nothing


def winners(histogram, std):
    """Return the probability that each class wins under the noise, by integration."""

    def density(x, k):
        others = [norm.cdf((x - h) / std) for j, h in enumerate(histogram) if j != k]
        return norm.pdf((x - histogram[k]) / std) / std * math.prod(others)

    low, high = min(histogram) - 9 * std, max(histogram) + 9 * std
    return np.array(
        [quad(density, low, high, args=(k,), epsabs=1e-13, limit=400)[0] for k in range(3)]
    )


@pytest.mark.parametrize(
    ("histogram", "std"),
    [((30, 8, 2), 5.0), ((30, 8, 2), 3.0), ((50, 0, 0), 8.0), ((14, 13, 13), 4.0)],
)
def test_the_data_dependent_bound_holds_for_every_neighbouring_histogram(histogram, std):
    votes = np.array(histogram)
    here = winners(votes, std)
    log_flip = log_flip_of_votes(votes[None], std)
    assert math.exp(log_flip[0]) >= 1 - here.max() - 1e-12
    bound = data_dependent_rdp(log_flip, std)[0]
    for loses in range(3):
        for gains in range(3):
            if loses == gains or votes[loses] == 0:
                continue
            moved = votes.copy()
            moved[loses], moved[gains] = moved[loses] - 1, moved[gains] + 1
            there = winners(moved, std)
            for j, order in enumerate(ORDERS):
                if not 1.5 <= order <= 12:
                    continue  # beyond, the integrals' own error shows
                terms = here**order * np.maximum(there, 1e-300) ** (1 - order)
                assert math.log(terms.sum()) / (order - 1) <= bound[j] + 1e-6


@given(largest=st.floats(0, 250), threshold=st.floats(0, 300), std=st.floats(1, 200))
def test_a_checks_less_likely_outcome(largest, threshold, std):
    passes = norm.sf(threshold, loc=largest, scale=std)
    got = log_flip_of_check(np.array([largest]), threshold, std)[0]
    assert math.exp(got) == pytest.approx(min(passes, 1 - passes), rel=1e-6, abs=1e-12)


def test_agreeing_teachers_cost_less_and_never_more_than_the_bound_without_votes():
    rng = np.random.default_rng(0)
    epsilons = []
    for share in (0.95, 0.7, 0.4):
        votes = rng.multinomial(250, [share, *[(1 - share) / 9] * 9], size=300)
        epsilons.append(data_dependent_epsilon(votes, votes[:100], 150.0, 150.0, 40.0, 1e-5))
    worst = votes_epsilon(effective_multiplier(150.0, 40.0, 300, 100), 1e-5)["rdp"]
    assert epsilons == sorted(epsilons) and epsilons[0] < 0.6 * worst
    assert epsilons[-1] <= worst * (1 + 1e-9)


# The noise


@pytest.mark.parametrize("release", [CHECK, VOTES])
def test_noise_has_the_standard_deviation_that_the_certificate_states(release):
    mechanism = make(num_classes=10)
    stated = {r["name"]: r for r in certificate(mechanism)["releases"]}[release]
    key, size = Key(release, "query"), stated["dimension"]
    drawn = []
    for query in range(3000 // size):
        noise = torch.zeros(size, dtype=torch.float64)
        gen = mechanism.noise_generator(release, query)
        add_noise_({key: noise}, mechanism.releases, mechanism.noise_multiplier, gen)
        assert int((noise != 0).sum()) == size
        drawn += (noise / stated["noise_std"]).tolist()
    assert kstest(drawn, "norm").pvalue > 1e-3
    for wrong in (0.8, 1.25):  # the test itself must be able to tell
        assert kstest(np.array(drawn) / wrong, "norm").pvalue < 1e-6


def certificate(mechanism, asked=30, answered=12, **draws):
    votes = np.tile([40, 5, 5], (asked, 1))
    counted = {CHECK: asked, VOTES: answered} if mechanism.noise else {CHECK: 0, VOTES: 0}
    return mechanism.certificate(
        asked=votes,
        answered=votes[:answered],
        draws=counted | draws,
        trainable={"head.weight": 3},
        frozen={},
        public={"name": "test-half", "examples": 180},
        remarks=[],
    )


# The certificate


def test_a_certificate_states_what_was_asked_and_verifies():
    told = certificate(make())
    verify(told)
    check, votes = told["releases"]
    assert (check["sensitivity"], votes["sensitivity"]) == (1, pytest.approx(math.sqrt(2)))
    assert (check["at_most"], votes["at_most"], told["steps"], told["answers"]) == (40, 20, 30, 12)
    assert check["noise_std"] == pytest.approx(3 * votes["noise_std"])
    assert told["noise_draws"] == 42
    assert 7.999 < told["epsilon"]["rdp"] <= 8 and told["epsilon"]["prv"] < 8
    assert told["data_dependent_epsilon"]["rdp"] < told["epsilon"]["rdp"]
    assert "not private" in told["data_dependent_epsilon"]["note"]


def test_a_certificate_of_less_noise_than_the_budget_needs_is_refused():
    made = make()
    verify(certificate(made))
    with pytest.raises(PrivacyError, match="above the target 8"):
        verify(certificate(replace(made, noise_multiplier=0.9 * made.noise_multiplier)))


def weakened(told):
    told["releases"][1]["noise_std"] *= 0.99


def widened(told):
    told["releases"][0]["at_most"] += 1


def overrun(told):
    told["answers"] = told["releases"][1]["drawn"] = 21
    told["noise_draws"] = 51


def silent(told):
    told["releases"][0]["drawn"] -= 1


def miscounted(told):
    told["noise_draws"] -= 1


def flattered(told):
    told["epsilon"]["rdp"] = 7.0


def tightened(told):
    told["target_epsilon"] = 7.9


def halved(told):
    told["releases"].pop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (weakened, "above the target 8"),
        (widened, "above the target 8"),
        (overrun, "at most 20 are accounted for"),
        (silent, "drawn 29 times for 30"),
        (miscounted, "noise_draws"),
        (flattered, "below the recomputed"),
        (tightened, "above the target 7.9"),
        (halved, "malformed"),
    ],
)
def test_a_certificate_that_was_changed_is_refused(change, said):
    told = certificate(make())
    change(told)
    with pytest.raises(PrivacyError, match=said):
        verify(told)


def test_without_noise_no_epsilon_is_stated():
    told = certificate(make(PRIVACY | {"noise": False, "eps": None}))
    verify(told)
    assert told["epsilon"] == {"rdp": None} and told["data_dependent_epsilon"]["rdp"] is None
    assert told["noise_draws"] == 0 and "no privacy" in told["deviations"][0]
    told["epsilon"]["rdp"] = 8.0
    with pytest.raises(PrivacyError, match="Expected no epsilon"):
        verify(told)
