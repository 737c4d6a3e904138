"""Noise correlated across steps: the best banded factorisation, its sensitivity and its sampler."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpexp.privacy.accounting import TOLERANCE, calibrate
from dpexp.privacy.calibration import build
from dpexp.privacy.certificate import LOST, PrivacyError, verify
from dpexp.privacy.correlation import (
    Banded,
    Correlation,
    add_correlated_noise_,
    banded,
    inverse,
    optimal,
    variance,
)
from dpexp.privacy.noise import add_noise_
from dpexp.privacy.pld import Part, gaussian_epsilon
from dpexp.privacy.seeds import generator
from dpexp.types import ConfigError, Key, Release

WHOLE = Release("gradient", 6, 1.0)
COUNT = Release("count", 1, 1.0, 0.5, clip="count", noise_multiplier=10.0)


def mechanism(size=2000, batch=100, steps=60, bands=4, eps=2.0, releases=(WHOLE,), **privacy):
    settings = {"eps": eps, "delta": 1e-5, "noise": True, "clip": True, "sampling": "poisson"}
    return build(
        settings | privacy,
        dataset_size=size,
        batch_size=batch,
        num_steps=steps,
        releases=releases,
        seed=3,
        correlation=None if bands is None else Banded(bands),
    )


def matrix(coefficients, steps):
    """Return C as it stands, [steps, steps]."""
    dense = np.zeros((steps, steps))
    for row in range(steps):
        for back, c in enumerate(coefficients[: row + 1]):
            dense[row, row - back] = c
    return dense


# The factorisation


@pytest.mark.parametrize("coefficients", [(1.0,), (0.8, 0.6), (0.6, 0.5, 0.4, 0.3, 0.2)])
def test_inverse_and_variance_are_those_of_the_whole_matrices(coefficients):
    steps = 40
    whole = np.linalg.inv(matrix(coefficients, steps))
    np.testing.assert_allclose(inverse(coefficients, steps), whole[:, 0], rtol=1e-9, atol=1e-12)
    prefix_sums = np.tril(np.ones((steps, steps)))
    expected = np.square(prefix_sums @ whole).sum() / steps
    assert variance(coefficients, steps) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "steps, bands, least",  # by jax-privacy 2.0.0's optimize_banded_toeplitz
    [(80, 2, 21.7478456), (250, 8, 20.2715670), (2000, 16, 72.8398813), (64, 64, 4.7482302)],
)
def test_the_coefficients_are_the_published_optimum(steps, bands, least):
    found = optimal(bands, steps)
    assert math.hypot(*found.coefficients) == pytest.approx(1, abs=1e-12)
    assert variance(found.coefficients, steps) == pytest.approx(least, rel=1e-7)


@pytest.mark.parametrize("steps, bands", [(1, 1), (1, 8), (2, 2), (3, 2), (17, 5), (500, 3)])
def test_no_neighbour_of_the_coefficients_is_better(steps, bands):
    found = np.array(optimal(bands, steps).coefficients)
    assert len(found) == min(bands, steps) and found[0] > 0
    least, rng = variance(found, steps), np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(20):
            other = found + size * rng.normal(size=len(found))
            other /= np.linalg.norm(other)
            assert not variance(other, steps) < least * (1 - 1e-7)


def test_auto_takes_the_bands_that_leave_the_weights_the_least_noise():
    steps, q, eps = 250, 0.02, 8.0

    def multiplier(probability, count):
        return calibrate(probability, count, 1e-5, eps)[0]

    def noise(bands):
        found = optimal(bands, steps)
        sigma = multiplier(bands * q, math.ceil(steps / bands))
        return sigma**2 * variance(found.coefficients, steps)

    tried = {bands: noise(bands) for bands in (1, 2, 4, 8, 16, 32)}
    found = banded("auto", q, steps, multiplier)
    assert found.bands == min(tried, key=tried.get) == 16
    assert tried[16] < 0.35 * tried[1]  # of its variance


# Noise


def test_what_leaves_is_the_sums_and_noise_that_c_makes_fresh_again():
    correlation, steps = optimal(4, 12), 12
    keys = [Key("gradient", "a"), Key("gradient", "b")]
    sums = torch.randn(steps, 2, 5, dtype=torch.float64, generator=generator(0, "public", 0))
    released, past = [], []
    for step in range(steps):
        blocks = {key: sums[step, k].clone() for k, key in enumerate(keys)}
        gen = generator(7, "noise", step)
        past = add_correlated_noise_(blocks, (WHOLE,), 1.5, gen, correlation, past)
        assert len(past) == min(step + 1, 3)
        released.append(torch.stack([*blocks.values()]))
    fresh = []
    for step in range(steps):
        blocks = {key: torch.zeros(5, dtype=torch.float64) for key in keys}
        add_noise_(blocks, (WHOLE,), 1.5, generator(7, "noise", step))
        fresh.append(torch.stack([*blocks.values()]))
    c = torch.from_numpy(matrix(correlation.coefficients, steps))
    left = torch.einsum("ts,skd->tkd", c, torch.stack(released))
    due = torch.einsum("ts,skd->tkd", c, sums) + torch.stack(fresh)
    torch.testing.assert_close(left, due, rtol=0, atol=1e-12)


def test_float32_sums_get_the_same_noise_rounded_once():
    correlation, released = optimal(3, 9), {}
    for dtype in (torch.float32, torch.float64):
        past = []
        for step in range(9):
            blocks = {Key("gradient", "a"): torch.zeros(1000, dtype=dtype)}
            gen = generator(7, "noise", step)
            past = add_correlated_noise_(
                blocks, (WHOLE,), 1.5, gen, correlation, past, torch.float32
            )
        released[dtype] = blocks[Key("gradient", "a")]
    assert torch.equal(released[torch.float32], released[torch.float64].float())


def test_later_noise_takes_earlier_noise_back_in_the_sum():
    correlation, steps = optimal(16, 64), 64
    total, past = torch.zeros(20_000, dtype=torch.float64), []
    for step in range(steps):
        blocks = {Key("gradient", "a"): torch.zeros(20_000, dtype=torch.float64)}
        gen = generator(1, "noise", step)
        past = add_correlated_noise_(blocks, (WHOLE,), 1.0, gen, correlation, past)
        total += blocks[Key("gradient", "a")]
    due = np.square(np.cumsum(inverse(correlation.coefficients, steps))).sum()
    assert float(total.square().mean()) == pytest.approx(due, rel=0.05)
    assert due < 0.15 * steps  # of fresh noise


def test_a_release_of_another_shape_is_refused():
    past = [[torch.zeros(3, dtype=torch.float64)]]
    with pytest.raises(ConfigError, match="same shapes at every step"):
        blocks = {Key("gradient", "a"): torch.zeros(4)}
        gen = generator(0, "noise", 1)
        add_correlated_noise_(blocks, (WHOLE,), 1.0, gen, optimal(2, 4), past)


# Who takes part, and how far it moves what leaves


def participants(found):
    """Return which examples each step draws, [steps, examples] of bool."""
    drawn = torch.zeros(found.num_steps, found.dataset_size, dtype=torch.bool)
    for step in range(found.num_steps):
        drawn[step, found.sample(step)] = True
    return drawn


@pytest.mark.parametrize("bands, batch", [(1, 300), (2, 1000), (3, 500), (8, 250), (5, 399)])
def test_no_example_moves_what_leaves_further_than_its_participations_say(bands, batch):
    """Whatever its gradients are: each draw is a mechanism of sensitivity 1 of its own."""
    found = mechanism(batch=batch, bands=bands, steps=24, eps=20.0)
    drawn = participants(found).numpy()
    c, rng = matrix(found.correlation.coefficients, 24), np.random.default_rng(0)
    for example in range(found.dataset_size):
        gradients = rng.normal(size=(24, 3))
        gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
        moved = float(np.square(c @ (gradients * drawn[:, example, None])).sum())
        taken = int(drawn[:, example].sum())
        assert moved <= taken * (1 + 1e-9)
    assert drawn.sum(0).max() <= math.ceil(24 / bands) == found.participations(24)


def test_groups_are_drawn_evenly_and_steps_draw_batches_of_the_size_that_is_said():
    found = mechanism(size=60_000, batch=1000, bands=6, steps=60)
    drawn = participants(found)
    groups = torch.stack([drawn[start::6].any(0) for start in range(6)])
    assert int(groups.sum(0).max()) == 1  # an example is of one group
    sizes = drawn.sum(1).double()
    assert abs(float(sizes.mean()) - 1000) < 4 * math.sqrt(1000 / 60)
    taken = drawn.sum(0).double()  # of 10 chances of probability 1/10 each
    assert found.participation_prob == pytest.approx(0.1)
    assert float(taken.mean()) == pytest.approx(1.0, abs=0.02)
    assert float(taken.var()) == pytest.approx(0.9, abs=0.02)


def test_one_band_samples_and_accounts_as_fresh_noise_does():
    correlated, fresh = mechanism(bands=1), mechanism(bands=None)
    assert all(torch.equal(correlated.sample(step), fresh.sample(step)) for step in range(5))
    assert correlated.epsilon(17) == fresh.epsilon(17)
    assert correlated.noise_multiplier == fresh.noise_multiplier


@pytest.mark.parametrize("bands", [2, 4, 7])
def test_epsilon_is_that_of_participations_by_another_accountant(bands):
    found = mechanism(bands=bands)
    assert found.participation_prob == pytest.approx(bands * 0.05)
    for steps in (1, bands, 2 * bands + 1, 60):
        count = math.ceil(steps / bands)
        part = Part(bands * 0.05, found.effective_noise_multiplier, count)
        theirs = gaussian_epsilon((part,), 1e-5, 2.0)
        assert theirs <= found.epsilon(steps) <= theirs * 1.01 + 1e-3
    assert 2.0 * (1 - TOLERANCE) <= found.epsilon(60) <= 2.0  # of as many steps as are spent


# Certificates


def certificate(**changed):
    found = mechanism()
    said = found.certificate(steps=60, noise_draws=60, trainable={"a": 6}, frozen={})
    said["correlation"] |= changed
    return said


def test_a_certificate_states_neighbours_and_participation_and_verifies():
    said = certificate()
    verify(said)
    assert said["neighbouring"] == "add or remove one example" and said["sampling"] == "cyclic"
    told = said["correlation"]
    assert (told["bands"], told["participations"]) == (4, 15)
    assert told["participation_prob"] == pytest.approx(0.2)
    assert "as many as there are bands" in told["participation"]


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"coefficients": [0.9, 0.9, 0.1, 0.1]}, "norm 1"),
        ({"coefficients": [0.4, 0.3]}, "of norm 0.5"),
        ({"coefficients": [0.5] * 5}, "at most 4 coefficients"),
        ({"coefficients": []}, "malformed|coefficients"),
        ({"coefficients": [0.0, 1.0]}, "above 0"),
        ({"bands": 30}, "bands times q"),
        ({"bands": 1, "coefficients": [1.0]}, "participation_prob 0.05"),
        ({"participations": 14}, "15 participations"),
        ({"bands": 5, "participation_prob": 0.25, "participations": 12}, "target|recomputed"),
    ],
)
def test_a_certificate_that_was_changed_does_not_verify(changed, says):
    with pytest.raises(PrivacyError, match=says):
        verify(certificate(**changed))


def test_a_certificate_of_lost_steps_does_not_verify():
    said = certificate() | {"lost_steps": 3}
    said["deviations"] = [*said["deviations"], LOST]
    with pytest.raises(PrivacyError, match="no run goes on"):
        verify(said)


def test_a_certificate_without_its_correlation_does_not_verify():
    said = certificate()
    del said["correlation"]
    with pytest.raises(PrivacyError, match="cyclic"):
        verify(said)


# Refusals


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"noise": "secret"}, "noise=correlated alone; got secret"),
        ({"noise": False}, "a run with noise beside noise=correlated; got noise=false"),
        ({"sampling": "shuffle"}, "sampling=poisson"),
        ({"releases": (replace(WHOLE, noise="laplace"),), "budget": "total"}, "Gaussian noise"),
        ({"releases": (WHOLE, COUNT)}, "gradients alone"),
        ({"bands": 21}, "noise.bands of at most 20"),
        ({"bands": 61, "batch": 10}, "noise.bands of at most 60"),
    ],
)
def test_what_correlated_noise_does_not_go_with_is_refused_in_one_line(changed, says):
    with pytest.raises(ConfigError, match=says) as refused:
        mechanism(**changed)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("bands", [0, -1, 1.5, True, "many", None, [2], math.inf, math.nan])
def test_bands_that_are_none_are_refused(bands):
    with pytest.raises(ConfigError, match=r"noise\.bands"):
        Banded(bands)


def test_a_correlation_knows_its_bands():
    assert Correlation((0.8, 0.6)).bands == 2 and Correlation((0.8, 0.6)).participations(5) == 3
