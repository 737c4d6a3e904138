"""What every method promises of a step, on real digits."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest

from dpexp import cli
from dpexp.attacks.soundness import LATER, TOLERANCE, check
from dpexp.grad_sample import Tape
from dpexp.privacy.stated import statement_of
from dpexp.training.gradient import PrivateGradient
from dpexp.training.losses import BatchLosses
from dpexp.training.train import make_mechanism, named_parameters
from tests.contract.cases import (
    FAMILY,
    FOLDERS,
    KIN,
    METHODS,
    case,
    in_short,
    of_each_family,
)
from tests.marks import few
from tests.runs import total_of
from tests.steps import ALONE, CPU, Setting, composed, distance, flat, sums_of

every_method = pytest.mark.parametrize("method", in_short(METHODS))
each_family = pytest.mark.parametrize("method", of_each_family(METHODS))

# What is summed


def blocks_alone(setting, index):
    """Return one example's block of each key: a batch of one, and nothing clipped."""
    model, inner, per_example = setting.model, setting.parts.method, {}
    state, names = setting.method.given, inner.trainable(setting.model)
    if inner.is_forward_only:
        weights = {name: model.get_parameter(name) for name in names}
        one = setting.examples.batch(index[None])
        per_example = inner.per_example_scalars(
            state, BatchLosses(model, weights, setting.parts.task.loss, one)
        )
        return {key: total_of(grads, None) for key, grads in per_example.items()}
    with Tape(
        model,
        names,
        lambda layer, layer_grads: per_example.update(
            inner.per_example_grads(state, layer, layer_grads)
        ),
    ) as tape:
        batch = setting.examples.batch(index[None])
        tape.expect(1)
        F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum").backward()
        tape.check_complete()
    return {key: total_of(grads, None) for key, grads in per_example.items()}


def gradient_alone(setting, index):
    """Return one example's gradient by autograd, without any hook."""
    names = [name for name, _ in setting.model.named_parameters()]
    batch = setting.examples.batch(index[None])
    loss = F.cross_entropy(setting.model(batch.inputs), batch.targets)
    gradients = torch.autograd.grad(loss, list(setting.model.parameters()))
    return dict(zip(names, gradients, strict=True))


def clipped(blocks, releases):
    """Clip one example's blocks as each release says, literally."""
    made = {}
    for release in releases:
        own = {key: block for key, block in blocks.items() if key.release == release.name}
        if release.clip == "coordinates":
            made |= {k: b.clamp(-release.clip_norm, release.clip_norm) for k, b in own.items()}
        else:
            norm = float(flat(own).norm())
            made |= {k: b * min(1.0, release.clip_norm / norm) for k, b in own.items()}
    return made


@every_method
def test_a_sum_is_that_of_every_examples_blocks_clipped_one_by_one(method):
    setting = Setting(composed(method) | {"batch_size": 20}, torch.float64)
    outcome = setting.step(micro_batch=13, noise=False)
    drawn, releases = setting.mechanism.sample(0), setting.mechanism.releases
    assert outcome.examples == len(drawn) > 13
    assert setting.method.summed.keys() == setting.method.release_shapes(setting.state).keys()
    expected = {key: torch.zeros_like(total) for key, total in setting.method.summed.items()}
    for index in drawn:
        for key, block in clipped(blocks_alone(setting, index), releases).items():
            expected[key] += block
    # Clipped, an example leaves a share of its energy to rounding: 2^-39 in float64.
    assert distance(setting.method.summed, expected) < 1e-11


@pytest.mark.parametrize("method", of_each_family([m for m in METHODS if case(m).is_gradient]))
def test_a_whole_block_is_the_gradient_times_what_no_example_decides(method):
    setting = Setting(composed(method), torch.float64)
    setting.step(noise=False)
    factors = {}
    for index in setting.mechanism.sample(0)[:3]:
        gradients = gradient_alone(setting, index)
        for key, block in blocks_alone(setting, index).items():
            gradient = gradients[key.parameter]
            if key.part == "full" and block.shape == gradient.shape:
                if not gradient.any():  # an adapter's first side, before the second has moved
                    assert not block.any()
                    continue
                factor = float((block * gradient).sum() / gradient.square().sum())
                torch.testing.assert_close(block, factor * gradient, rtol=1e-9, atol=1e-12)
                factors.setdefault(key, []).append(factor)
    assert factors
    for found in factors.values():
        assert found == pytest.approx([found[0]] * 3, rel=1e-9) and found[0] > 0


@each_family
def test_a_step_does_not_depend_on_the_micro_batch_size(method):
    """Nor on batches of one, which in float32 go through other convolution kernels (above)."""
    setting = Setting(composed(method))
    whole = setting.step(micro_batch=1000, noise=False)
    assert whole.examples > 13
    for micro_batch in (5, 13):
        parts = setting.step(micro_batch=micro_batch, noise=False)
        assert parts.gradients.keys() == whole.gradients.keys()
        assert distance(parts.gradients, whole.gradients) < 1e-6
        assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
        assert (parts.examples, parts.clipped) == (whole.examples, whole.clipped)


@pytest.mark.parametrize(
    "bad", [math.nan, pytest.param(math.inf, marks=() if FOLDERS else pytest.mark.long)]
)
@each_family
def test_a_pixel_that_is_not_finite_costs_its_example_alone(method, bad):
    parts = cli.build_parts(composed(method), CPU)
    model, train, public = parts.model.double(), parts.task.train, parts.task.public
    x, y = train.inputs[:9].clone(), train.targets[:9]
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    expected, _ = sums_of(model, parts.method, x[others], y[others], 1.0, 4, public)
    x[4, 0, 3, 3] = bad
    got, outcome = sums_of(model, parts.method, x, y, 1.0, 3, public)
    assert distance(got, expected) < 1e-12
    assert outcome.nonfinite == 1


# What one example may move

OTHERS = [  # other ways through methods of ours
    ("compressive", "method.psi=none"),
    ("dp_zo", "method.noise=laplace"),
    ("dpsgd", "task=regression", "model=linear"),
]
MORE = [
    ("rgp", "method.warm_up_steps=1"),
    ("rgp", "method.residual=false"),
    ("lsg", "method.mask=carriers"),
    ("dp_powersgd", "method.error_feedback=true"),
    ("compressive", "method.psi=none", "method.kappa=null", "method.bound=example"),
    ("bgep", "method.basis=random"),
    ("gep", "model=linear", "method.m=20", "method.k=10"),
    ("bgep", "model=linear", "method.m=20", "method.k=10", "method.every=2"),
    ("dpsgd", "task=sentiment", "model.dropout=0.3"),
]
EACH = [(method,) for method in METHODS]
ALIKE = (*KIN, "bgep", "bitfit", "linear", "rgp_core", "rgp_random")
"""Methods that sum as GEP, DP-SGD or RGP with public carriers does."""

IN_SHORT = [*((method,) for method in METHODS if method not in ALIKE), *OTHERS]
WAYS = EACH if FOLDERS else [*EACH, *OTHERS, *MORE]


@pytest.mark.parametrize(
    "words", few(map(pytest.param, WAYS), WAYS if FOLDERS else IN_SHORT), ids=" ".join
)
@pytest.mark.parametrize("steps", [4, pytest.param(LATER, marks=pytest.mark.long)])
def test_one_example_moves_a_release_by_no_more_than_is_declared_and_nothing_else_is_known(
    words, steps
):
    method, *more = words
    narrow = () if len(more) > 1 else case(method).narrow
    config = composed(method, *narrow, *more)
    parts, clip_norm = cli.build_parts(config, CPU), config["privacy"]["clip_norm"]
    found = check(parts, clip_norm, tries=2, climbs=5, steps=steps)
    assert found.findings == ()
    assert case(method).reach < found.worst.ratio <= 1 + TOLERANCE


@every_method
def test_declared_releases_hold_at_every_step_count_every_block_and_are_those_stated(method):
    config = composed(method, "privacy.clip_norm=0.5")
    setting = Setting(config)
    declared = setting.method.releases(setting.state, 0.5)
    state = setting.step().state
    assert setting.method.releases(state, 0.5) == declared
    blocks = setting.method.release_shapes(state)
    assert blocks == setting.method.release_shapes(setting.state)
    assert {k: tuple(total.shape) for k, total in setting.method.summed.items()} == blocks
    for release in declared:
        own = [b for key, b in setting.method.released.items() if key.release == release.name]
        assert release.dimension == sum(block.numel() for block in own) > 0
    assert {key.release for key in blocks} == {release.name for release in declared}
    statement, trained = statement_of(config), setting.method.trainable(setting.model)
    assert statement.is_known, "stated_releases is missing from the class itself"
    size = sum(setting.model.get_parameter(name).numel() for name in trained)
    for stated, release in zip(statement.releases(config, size), declared, strict=True):
        assert release.sensitivity == pytest.approx(stated.sensitivity)
        assert release.clip_norm == pytest.approx(stated.clip_norm)
        assert (release.noise, release.clip) == (stated.noise, stated.clip)
        assert stated.name in (None, release.name)
        assert stated.dimension in (None, release.dimension)


# Noise


def draw(release, like, gen):
    """Draw noise of scale one as the release declares it."""
    if release.noise == "gaussian":
        return torch.randn(like.shape, generator=gen)
    plus, minus = torch.empty(2, *like.shape, dtype=torch.float64).exponential_(generator=gen)
    return (plus - minus).float()


@every_method
def test_an_empty_draw_gives_a_step_of_noise_alone(method):
    setting = Setting(composed(method, "batch_size=4"))
    step = setting.find_step(lambda drawn: drawn == 0)
    outcome = setting.step(step)
    assert outcome.noise_draws == 1 and (outcome.examples, outcome.loss) == (0, 0.0)
    gen, scale = setting.mechanism.noise_generator(step), setting.mechanism.noise_multiplier
    releases = {release.name: release for release in setting.mechanism.releases}
    for key, block in setting.method.released.items():
        noise = scale * releases[key.release].clip_norm * draw(releases[key.release], block, gen)
        torch.testing.assert_close(block, noise / 4)
    shapes = {name: tuple(p.shape) for name, p in setting.model.named_parameters()}
    for name in setting.method.trainable(setting.model):
        assert tuple(outcome.gradients[name].shape) == shapes[name]
        assert outcome.gradients[name].isfinite().all()
    silent = setting.step(step, noise=False)
    assert flat(silent.gradients).abs().max() == 0
    assert silent.noise_draws == 0


# DP-ZO releases so few numbers a step that it is slow here; all have their noise above, too.
LONG = (*FAMILY, "dp_zo")


@pytest.mark.parametrize(
    "method", METHODS if FOLDERS else few(METHODS, [m for m in METHODS if m not in LONG])
)
def test_every_released_coordinate_gets_the_declared_noise_once_and_nothing_else_does(method):
    setting = Setting(composed(method, *case(method).wide), torch.float64)
    mechanism = setting.mechanism
    dimension = sum(release.dimension for release in mechanism.releases)
    scale = {r.name: mechanism.noise_multiplier * r.clip_norm for r in mechanism.releases}
    drawn = []
    for step in range(math.ceil(case(method).coordinates / dimension)):
        noisy = setting.step(step, micro_batch=13)  # several micro-batches, one draw of noise
        given, released = setting.method.given, setting.method.released
        setting.step(step, micro_batch=13, noise=False)
        silent = setting.method.released
        added = {key: (released[key] - silent[key]) / scale[key.release] for key in released}
        added = flat(added) * mechanism.batch_size
        assert int((added != 0).sum()) == len(added) == dimension
        drawn.append(added.numpy())
        # Nothing else leaves: the gradients are made of the release and of public state.
        made, _ = setting.method.reconstruct(given, released)
        assert set(made) == set(noisy.gradients) == set(setting.method.trainable(setting.model))
        for name, gradient in made.items():
            assert torch.equal(gradient, noisy.gradients[name])
    drawn = np.concatenate(drawn)
    law = {"gaussian": "norm", "laplace": "laplace"}[mechanism.releases[0].noise]
    assert kstest(drawn, law).pvalue > 1e-3
    for wrong in (0.8, 1.25):  # the test itself must be able to tell
        assert kstest(drawn / wrong, law).pvalue < 1e-6


# Parameters

FROZEN = ("conv2.weight", "conv1.bias", "head.bias")


@each_family
def test_every_parameter_is_privatised_or_frozen_by_name_and_what_was_frozen_stays_so(method):
    rank = ["method.rank=4"] if method.endswith("powersgd") else []
    config = composed(method, "model=cnn", *rank)
    whole, parts = (cli.build_parts(config, CPU) for _ in range(2))
    names = {name for name, _ in parts.model.named_parameters()}
    trainable, frozen = named_parameters(whole.model, whole.method)
    assert trainable and trainable.keys() | frozen.keys() == names
    assert not trainable.keys() & frozen.keys()
    for name, weight in parts.model.named_parameters():
        weight.requires_grad_(name not in FROZEN)
    expected = trainable.keys() - {*FROZEN}
    trainable, frozen = named_parameters(parts.model, parts.method)
    assert trainable.keys() == expected and frozen.keys() >= {*FROZEN} & names
    state, task = parts.method.start(parts.model), parts.task
    mechanism = make_mechanism(config, task.dataset_size, parts.method, state, ALONE)
    with PrivateGradient(parts.model, parts.method, mechanism, ALONE, 40, task.public) as gradient:
        assert set(parts.method.trainable(parts.model)) == expected  # also while all are
        outcome = gradient(state, task.train, 0)
    assert outcome.gradients.keys() == expected
    assert {n for n, p in parts.model.named_parameters() if not p.requires_grad} <= {*FROZEN}
