"""The frozen mechanism, its certificate, and the claims that are refused."""

import dataclasses
import json
import math
import warnings

import pytest
import torch

from dpexp.pate.votes import build_votes
from dpexp.privacy import PrivacyError, build, num_steps, verify
from dpexp.privacy import certificate as words
from dpexp.privacy.calibration import confirm
from dpexp.privacy.certificate import bands_of
from dpexp.privacy.pld import Part, gaussian_epsilon
from dpexp.privacy.releases import effective_multiplier, shared_multiplier
from dpexp.privacy.seeds import new_secret
from dpexp.types import ConfigError, Release

PRIVACY = {"eps": 8.0, "delta": 1e-4, "noise": True, "clip": True, "sampling": "poisson"}
SIZES = {"dataset_size": 1437, "batch_size": 64, "num_steps": 100}
ONE = (Release("gradient", 1000, 1.0),)
PAIR = (Release("embedding", 50, 5.0), Release("residual", 950, 2.0))


def make(releases=ONE, seed=0, sizes=SIZES, **privacy):
    return build(PRIVACY | privacy, releases=releases, seed=seed, **sizes)


def certify(mechanism, steps=100, noise_draws=100, **rest):
    certificate = mechanism.certificate(
        steps=steps, noise_draws=noise_draws, trainable={"head.weight": 640}, frozen={}, **rest
    )
    return json.loads(json.dumps(certificate, allow_nan=False))


def test_an_honest_certificate_passes():
    mechanism = make()
    certificate = certify(mechanism)
    verify(certificate)
    assert certificate["epsilon"]["prv"] <= 8.0 < certificate["epsilon"]["rdp"]
    assert certificate["trainable"] == {"head.weight": 640}
    assert certificate["deviations"] == [] and certificate["replayable"]
    verify(certify(mechanism, steps=50, noise_draws=50))


def test_two_releases_of_a_step_cost_root_two_and_one_draw():
    one, pair = make(), make(PAIR)
    assert pair.noise_multiplier == pytest.approx(math.sqrt(2) * one.noise_multiplier)
    certificate = certify(pair)
    verify(certificate)
    assert [release["dimension"] for release in certificate["releases"]] == [50, 950]


def test_a_certificate_with_too_little_noise_on_a_count_is_refused():
    count = Release("count", 1, 1.0, 0.5, clip="count", noise_multiplier=10.0)
    certificate = certify(make((PAIR[0], count)))
    verify(certificate)
    certificate["releases"][1]["noise_multiplier"] = 1.0
    with pytest.raises(PrivacyError, match="above the target"):
        verify(certificate)


def test_noise_that_reaches_further_than_its_bands_is_refused():
    correlation = {"bands": 2, "coefficients": [0.8, 0.48, 0.36]}
    with pytest.raises(PrivacyError, match="at most 2 coefficients"):
        bands_of(correlation)
    assert bands_of({**correlation, "bands": 3}) == 3


@pytest.mark.parametrize("own", [[], [(0.5, 0.5)], [(0.5, 10.0), (1.0, 3.0)]])
def test_costs_of_a_steps_releases_add_up_as_squares_whosever_their_noise_is(own):
    beside = [Release("count", 1, 1.0, s, clip="count", noise_multiplier=z) for s, z in own]
    found = effective_multiplier(1.0, (*PAIR, *beside))
    cost = sum((s / z) ** 2 for s, z in [(1.0, 1.0), (1.0, 1.0), *own])
    assert found == pytest.approx(cost**-0.5, rel=1e-12)
    assert shared_multiplier(found, (*PAIR, *beside)) == pytest.approx(1.0, rel=1e-12)
    assert effective_multiplier(0.0, (*PAIR, *beside)) == 0


@pytest.mark.parametrize(
    "forgery, message",
    [
        ({"noise_draws": 99}, "drawn at 99 steps where 100"),
        ({"noise_draws": 200}, "drawn at 200 steps where 100"),
        ({"lost_steps": 3}, "3 of 100 steps are said to be lost, and not so in words"),
        ({"deviations": [words.LOST]}, "0 of 100 steps are said to be lost"),
        ({"deviations": [words.LOST], "lost_steps": 101}, "101 of 100 steps"),
        ({"noise_multiplier": 0.5}, "above the target 8"),
        ({"noise_multiplier": math.nan}, "positive noise multiplier"),
        ({"steps": 200, "noise_draws": 200}, "above the target 8"),
        ({"q": 0.001}, "Expected q = batch_size / dataset_size"),
        ({"delta": 1e-9}, "above the target 8"),
        ({"releases": [{"sensitivity": 1.0}, {"sensitivity": 1.0}]}, "above the target 8"),
        ({"epsilon": {"prv": 1.0, "rdp": 8.9}}, "below the recomputed"),
        ({"calibrated_by": "none"}, "calibrated by prv or rdp"),
        ({"releases": []}, "incomplete or malformed"),
        ({"target_epsilon": None}, "incomplete or malformed"),
    ],
)
def test_a_false_certificate_is_refused(forgery, message):
    with pytest.raises(PrivacyError, match=message):
        verify(certify(make()) | forgery)


@pytest.mark.parametrize("off, word", [({"noise": False}, "noise"), ({"clip": False}, "clipping")])
def test_without_noise_or_clipping_there_is_no_epsilon(off, word):
    mechanism = make(**off)
    certificate = certify(mechanism, noise_draws=0 if word == "noise" else 100)
    verify(certificate)
    assert mechanism.epsilon(10) is None and not mechanism.is_private
    assert set(certificate["epsilon"].values()) == {None}
    assert certificate["deviations"] == [f"no {word}: no privacy"]
    assert "accounted_apart" not in certify(make(PAIR, **off))
    with pytest.raises(PrivacyError, match="Expected no epsilon"):
        verify(certificate | {"epsilon": {"prv": 8.0, "rdp": 8.0}})


def test_no_budget_is_needed_without_noise():
    mechanism = make(eps=None, noise=False, clip=False)
    assert mechanism.noise_multiplier == 0 and mechanism.target_epsilon is None


def test_shuffled_batches_are_labelled():
    certificate = certify(make(sampling="shuffle"))
    verify(certificate)
    assert "not a guarantee" in certificate["deviations"][0]


def test_rdp_calibration_is_labelled():
    sizes = {"dataset_size": 1_000_000, "batch_size": 100, "num_steps": 5_000_000}
    mechanism = make(sizes=sizes, eps=1.0, delta=1e-8)
    assert mechanism.calibrated_by == "rdp"
    certificate = certify(mechanism, 5_000_000, 5_000_000)
    verify(certificate)
    assert list(certificate["epsilon"]) == ["rdp"] and "RDP" in certificate["deviations"][0]
    assert mechanism.epsilon(10) == mechanism.epsilon(10, "rdp")


def test_secret_randomness_cannot_be_replayed_and_leaves_no_trace():
    one, other = make(noise="secret"), make(noise="secret")
    assert not torch.equal(one.sample(0), other.sample(0))
    assert one.noise_generator(0) is None  # the operating system's
    secret = new_secret()
    told, again = (dataclasses.replace(each, _secret=secret) for each in (one, other))
    assert torch.equal(told.sample(3), again.sample(3))
    certificate = certify(told)
    verify(certificate)
    assert not certificate["replayable"] and "cannot be replayed" in certificate["deviations"][0]
    assert str(secret) not in repr(told) + json.dumps(certificate)


def test_the_mechanism_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().noise_multiplier = 0.1


def test_sampling_and_noise_do_not_share_randomness():
    mechanism = make()
    coins = torch.rand(5, generator=mechanism.noise_generator(0))
    noise = torch.rand(5, generator=mechanism.noise_generator(1))
    assert not torch.equal(coins, noise)
    assert torch.equal(coins, torch.rand(5, generator=mechanism.noise_generator(0)))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"eps": 0}, "eps > 0; got 0"),
        ({"eps": -1.0}, "eps > 0; got -1"),
        ({"eps": math.nan}, "eps > 0; got nan"),
        ({"eps": None}, "eps > 0; got None"),
        ({"delta": 0.0}, r"delta in \(0, 1\)"),
        ({"delta": 1.0}, r"delta in \(0, 1\)"),
        ({"delta": None}, r"delta in \(0, 1\)"),
        ({"noise": "sekret"}, "noise true, false, secret or correlated"),
        ({"clip": "yes"}, "clip true or false"),
        ({"sampling": "poison"}, "Did you mean poisson"),
        ({"sizes": SIZES | {"batch_size": 2000}}, r"batch_size in \[1, 1437\]"),
        ({"sizes": SIZES | {"batch_size": 0}}, r"batch_size in \[1, 1437\]"),
        ({"sizes": SIZES | {"num_steps": 0}}, "at least one step"),
    ],
)
def test_a_users_mistake_is_one_clear_line(change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(**change)
    assert "\n" not in str(caught.value)


def test_a_large_delta_is_a_warning():
    with pytest.warns(UserWarning, match="not below 1/N"):
        make(delta=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(delta=1e-3, noise=False, eps=None)


def test_an_eps_without_noise_is_a_warning():
    with pytest.warns(UserWarning, match="eps=8 has no effect"):
        make(noise=False, eps=8.0)


def test_steps_are_counted_by_examples_seen():
    assert num_steps(20, 67_349, 2000) == 674
    assert num_steps(200, 50_000, 1000) == 10_000
    assert num_steps(20, 67_349, 2000, "shuffle") == 680
    assert num_steps(0.1, 1437, 64) == 3
    assert num_steps(0.14, 50_000, 1000) == 7  # though floating point has it a hair above
    for epochs, batch, message in [(0, 64, "epochs > 0"), (1, 0, "batch_size"), (1, 1438, "1437")]:
        with pytest.raises(ConfigError, match=message):
            num_steps(epochs, 1437, batch)


def test_what_is_accounted_as_poisson_is_drawn_by_coins():
    mechanism = make(sizes=SIZES | {"dataset_size": 400, "batch_size": 20})
    sizes = torch.tensor([float(len(mechanism.sample(step))) for step in range(500)])
    coins = 400 * 0.05 * 0.95  # variance of a binomial batch size; 0.25 is four standard errors
    assert 0.75 < float(sizes.var()) / coins < 1.25
    assert abs(float(sizes.mean()) - 20) < 4 * math.sqrt(coins / 500)


def test_a_delta_of_one_in_n_or_more_is_a_deviation():
    for delta, is_large in ((1 / 1437, True), (0.1, True), (0.99 / 1437, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            certificate = certify(make(delta=delta))
        assert (words.LARGE_DELTA in certificate["deviations"]) == is_large, delta
        verify(certificate)
    assert words.LARGE_DELTA not in make(delta=0.1, noise=False, eps=None).deviations


@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-13, 1e-14, 1e-15, 1e-16, 1e-30])
@pytest.mark.parametrize("num_steps", [1, 100, 20_000])
def test_a_delta_that_verification_cannot_resolve_is_refused_at_the_start(delta, num_steps):
    """Whatever is not refused verifies afterwards: by the very accountant that tables ask."""
    sizes = SIZES | {"num_steps": num_steps}
    try:
        mechanism = make(delta=delta, sizes=sizes)
    except ConfigError as error:
        assert "two accountants can resolve" in str(error) and "\n" not in str(error)
        assert delta < 1e-12
        return
    part = Part(64 / 1437, mechanism.noise_multiplier, num_steps)
    assert gaussian_epsilon((part,), delta, 8.0) <= 8.0
    assert not (delta <= 1e-15 and num_steps > 1)


@pytest.mark.parametrize("eps", [1e7, 1e9, 1e30, 1e100, 1e308])
def test_an_epsilon_that_verification_cannot_resolve_is_refused_at_the_start(eps):
    """Its run would train to the end, and its certificate be told of as differing."""
    with pytest.raises(ConfigError, match=r"Set a smaller eps, or noise=false|ask for a smaller"):
        make(eps=eps, sizes=SIZES | {"num_steps": 2})
    votes = {"num_classes": 10, "threshold": 1, "check_ratio": 4, "max_checks": 5, "seed": 0}
    with pytest.raises(ConfigError, match=r"Set a smaller eps, or noise=false"):
        build_votes(PRIVACY | {"eps": eps}, dataset_size=1437, max_answers=3, **votes)


def test_a_tiny_epsilon_that_verification_cannot_resolve_asks_for_a_larger_one():
    part = Part(1e-6, 0.5, 10**6)
    with pytest.raises(ConfigError, match=r"lacks the memory .* Set a larger eps or batch_size"):
        confirm((part,), 1e-5, 1e-3)


def test_an_epsilon_above_its_target_is_not_said_to_be_the_target(monkeypatch):
    certificate = certify(make())
    above = {certificate["calibrated_by"]: certificate["target_epsilon"] * (1 + 1e-8)}
    monkeypatch.setattr(words, "_recompute", lambda _: above)
    with pytest.raises(PrivacyError, match=r"is 8\.00001, above the target 8\.0\."):
        verify(certificate)
