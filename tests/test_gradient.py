"""One private step, from a Poisson draw to gradients, with every method on real digits."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape
from dpexp.training import checkpoint
from dpexp.training.gradient import PrivateGradient
from tests.runs import total_of
from tests.steps import (
    CPU,
    METHODS,
    Setting,
    Wide,
    composed,
    distance,
    flat,
)

PAPERS = ["dpsgd", "rgp", "rgp_random", "dp_powersgd", "lsg", "sparse_dpsgd"]
WIDER = {
    "compressive": ["method.p=200"],
    "bgep": ["model=linear", "method.m=400", "method.k=400"],
    "rgp_core": ["method.rank=64"],
}
"""Settings that release more numbers a step, so that a sample of noise takes fewer steps."""

# Micro-batches


@pytest.mark.parametrize(
    ("dtype", "micro_batches", "changes", "bound"),
    [
        (torch.float32, (5, 13), {}, 1e-6),
        (torch.float32, (5, 13), {"noise": False}, 1e-6),
        # Batches of one go through other convolution kernels, which round otherwise: in float32
        # some processors' differ by more than 1e-6.
        (torch.float64, (1, 13), {"noise": False}, 1e-14),
    ],
    ids=["step", "sums", "sums in float64"],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_does_not_depend_on_the_micro_batch_size(
    method, dtype, micro_batches, changes, bound
):
    setting = Setting(composed(method), dtype)
    whole = setting.step(micro_batch=1000, **changes)
    assert whole.examples > 13
    for micro_batch in micro_batches:
        parts = setting.step(micro_batch=micro_batch, **changes)
        assert parts.gradients.keys() == whole.gradients.keys()
        assert distance(parts.gradients, whole.gradients) < bound
        assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
        assert (parts.examples, parts.clipped) == (whole.examples, whole.clipped)


@pytest.mark.parametrize("method", PAPERS)
def test_steps_on_end_do_not_depend_on_the_micro_batch_size(method):
    config = composed(method)
    if method == "rgp":
        config["method"]["warm_up_steps"] = 2  # so that bases of the update are among them
    ends = []
    for micro_batch in (7, 1000):
        setting = Setting(config, torch.float64)
        parameters = dict(setting.model.named_parameters())
        state = setting.state
        for step in range(4):
            outcome = setting.step(step, micro_batch, state)
            state = outcome.state
            with torch.no_grad():
                for name, gradient in outcome.gradients.items():
                    parameters[name] -= 0.1 * gradient
        ends.append({name: parameter.detach() for name, parameter in parameters.items()})
    assert distance(*ends) < 1e-12


# Draws


def clipped_one_by_one(setting, indices, clip_norm):
    """Sum clipped gradients from batches of one: obviously correct, but slow."""
    named = dict(setting.model.named_parameters())
    total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    for index in indices.split(1):
        batch = setting.examples.batch(index)
        loss = F.cross_entropy(setting.model(batch.inputs), batch.targets)
        gradients = torch.autograd.grad(loss, list(named.values()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for sum_, gradient in zip(total.values(), gradients, strict=True):
            sum_ += gradient * min(1.0, clip_norm / float(norm))
    return total


@pytest.mark.parametrize("clip_norm", [1.0, 1000.0], ids=["all clipped", "none clipped"])
def test_a_draw_larger_than_expected_is_used_whole_and_divided_by_the_expected_size(clip_norm):
    config = composed("dpsgd", "batch_size=12", f"privacy.clip_norm={clip_norm}")
    setting = Setting(config, torch.float64)
    step = setting.find_step(lambda drawn: drawn >= 18)
    drawn = setting.mechanism.sample(step)
    outcome = setting.step(step, noise=False)
    expected = {name: g / 12 for name, g in clipped_one_by_one(setting, drawn, clip_norm).items()}
    assert outcome.examples == len(drawn) >= 18
    assert outcome.clipped == (len(drawn) if clip_norm == 1.0 else 0)
    # Clipped, an example leaves a share of its energy to rounding: 2^-39 in float64.
    most = 1e-11 if outcome.clipped else 1e-12
    assert distance(outcome.gradients, expected) < most


def draw(release, like, gen):
    """Draw noise of scale one as the release declares it."""
    if release.noise == "gaussian":
        return torch.randn(like.shape, generator=gen)
    plus, minus = torch.empty(2, *like.shape, dtype=torch.float64).exponential_(generator=gen)
    return (plus - minus).float()


@pytest.mark.parametrize("method", METHODS)
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


# Noise


@pytest.mark.parametrize("method", METHODS)
def test_every_released_coordinate_gets_the_declared_noise_once_and_nothing_else_does(method):
    setting = Setting(composed(method, *WIDER.get(method, [])), torch.float64)
    mechanism = setting.mechanism
    dimension = sum(release.dimension for release in mechanism.releases)
    scale = {r.name: mechanism.noise_multiplier * r.clip_norm for r in mechanism.releases}
    drawn = []
    for step in range(math.ceil(20_000 / dimension)):
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


def test_noise_scales_with_the_clip_norm():
    added = []
    for clip_norm in (0.5, 2.0):
        setting = Setting(composed("dpsgd", f"privacy.clip_norm={clip_norm}"), torch.float64)
        step = setting.find_step(lambda drawn: drawn < 25)
        setting.step(step)
        noisy = flat(setting.method.released)
        setting.step(step, noise=False)
        added.append(noisy - flat(setting.method.released))
    torch.testing.assert_close(added[1], 4 * added[0])


def test_different_steps_and_seeds_draw_different_noise():
    draws = []
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        setting = Setting(composed("linear", "batch_size=4", f"seed={seed}"), torch.float64)
        setting.step(step)
        noisy = flat(setting.method.released)
        setting.step(step, noise=False)
        draws.append(noisy - flat(setting.method.released))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(float(torch.corrcoef(torch.stack([draws[a], draws[b]]))[0, 1])) < 0.15


# Bases


@pytest.mark.parametrize("method", ["rgp", "rgp_random"])
def test_bases_do_not_depend_on_private_data(method):
    config = composed(method)
    if method == "rgp":
        config["method"]["warm_up_steps"] = 1  # the second step's bases are of the update
    setting = Setting(config, torch.float64)
    parameters = dict(setting.model.named_parameters())
    bases = []
    train = setting.parts.task.train
    for data in (train, Examples(1 - train.inputs, 9 - train.targets, train.mean, train.std)):
        setting.examples = Wide(data)
        saved = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        outcome = setting.step(0)
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in parameters.values():  # the same released update for both
                parameter += 0.01 * torch.randn_like(parameter)
        later = setting.step(1, state=outcome.state)
        setting.model.load_state_dict(saved)
        bases.append((outcome.gradients, outcome.state, later.state))
    assert distance(bases[0][0], bases[1][0]) > 1e-3  # the data do differ
    for one, other in zip(bases[0][1:], bases[1][1:], strict=True):
        for side in ("left", "right"):
            assert one[side].keys() == one["shapes"].keys()
            for name in one[side]:
                assert torch.equal(one[side][name], other[side][name])
    first, later = bases[0][1:]
    for name in first["left"]:  # and they are found, or drawn, afresh at every step
        assert not torch.equal(first["left"][name], later["left"][name])


# What every method promises


@pytest.mark.parametrize("method", METHODS)
def test_carriers_sum_to_the_declared_blocks(method):
    setting = Setting(composed(method))
    model, inner = setting.model, setting.parts.method
    setting.step()
    state = setting.method.given  # as `prepare` made it
    carried = {}
    with Tape(
        model,
        inner.trainable(model),
        lambda layer, tap: carried.update(inner.carry(state, layer, tap)),
    ) as tape:
        batch = setting.examples.batch(torch.arange(3))
        tape.expect(3)
        F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum").backward()
        tape.check_complete()
    shapes = {key: tuple(shape) for key, shape in inner.blocks(state).items()}
    assert carried.keys() == shapes.keys()
    for key, carrier in carried.items():
        assert carrier.squared_norms().shape == (3,)
        for weights in (None, torch.ones(3)):
            assert tuple(total_of(carrier, weights).shape) == shapes[key]
        kept = carrier.keep(torch.tensor([True, False, True]))
        assert kept.squared_norms().shape == (2,)


@pytest.mark.parametrize("method", METHODS)
def test_declared_releases_hold_at_every_step_and_count_every_block(method):
    setting = Setting(composed(method))
    declared = setting.method.releases(setting.state, 0.5)
    state = setting.step().state
    assert setting.method.releases(state, 0.5) == declared
    blocks = setting.method.blocks(state)
    assert blocks == setting.method.blocks(setting.state)
    for release in declared:
        own = [b for key, b in setting.method.released.items() if key.release == release.name]
        assert release.dimension == sum(block.numel() for block in own) > 0
        assert release.clip_norm == 0.5 or release.name == "residual"  # clipped apart, in gep
        assert release.sensitivity == 1.0 or release.noise == "laplace"
    assert {key.release for key in blocks} == {release.name for release in declared}


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides_a_step(method):
    first, second = (Setting(composed(method)).step(2) for _ in range(2))
    other = Setting(composed(method, "seed=1")).step(2)
    assert torch.equal(flat(first.gradients), flat(second.gradients))
    assert not torch.equal(flat(first.gradients), flat(other.gradients))


def test_masks_of_dropout_follow_the_seed_or_the_secret():
    def masks(*words):
        setting, drawn = Setting(composed("dpsgd", *words)), []
        setting.model.register_forward_pre_hook(lambda *_: drawn.append(torch.rand(8).tolist()))
        setting.step(2)
        return drawn

    assert masks()[0] == masks()[0] != masks("seed=1")[0]
    secret = masks("noise=secret")[0]  # seed=0 as well
    assert secret != masks("noise=secret")[0] and secret != masks()[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_state_that_was_saved_and_loaded_goes_on_alike(method, tmp_path):
    setting = Setting(composed(method))
    state = setting.step(0).state
    checkpoint.save(tmp_path / "state.pt", state)
    loaded = checkpoint.load(tmp_path / "state.pt")
    one, other = setting.step(1, state=state), setting.step(1, state=loaded)
    assert torch.equal(flat(one.gradients), flat(other.gradients))


# Several ranks


class Meeting(Ranks):
    """Ranks that are threads of this process and meet at a barrier to add up."""

    def all_reduce(self, tensors):
        self.meet(tensors, lambda one, those: one.copy_(sum(those)))

    def reduce(self, tensors):
        def add(one, those):
            one.copy_(sum(those)) if self.is_first else one.fill_(math.nan)  # of no use to anyone

        self.meet(tensors, add)

    def broadcast(self, tensors):
        self.meet(tensors, lambda one, those: one.copy_(those[0]))

    def meet(self, tensors, change):
        for tensor in tensors:
            self.table[self.rank] = tensor
            self.barrier.wait()
            those = [self.table[rank].clone() for rank in range(self.size)]
            self.barrier.wait()  # everyone has read before anyone writes
            change(tensor, those)


def step_of_each_rank(size, config, asked=None):
    barrier, table = threading.Barrier(size, timeout=60), {}
    built = [Setting(config, torch.float64) for _ in range(size)]

    def step(rank):
        setting, ranks = built[rank], Meeting(rank, size, CPU)
        threading.current_thread().rank = rank
        vars(ranks).update(barrier=barrier, table=table)
        with PrivateGradient(
            setting.model, setting.method, setting.mechanism, ranks, 40, setting.public
        ) as gradient:
            return gradient(setting.state, setting.examples, 0, rank == asked)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(step, range(size)))


def test_ranks_share_one_draw_of_noise_and_take_the_same_step():
    config = composed("dpsgd", "model=linear")
    (alone,) = step_of_each_rank(1, config)
    for outcome in (shared := step_of_each_rank(2, config)):
        assert outcome.examples == alone.examples and outcome.noise_draws == 1
        assert distance(outcome.gradients, alone.gradients) < 1e-12
    assert torch.equal(flat(shared[0].gradients), flat(shared[1].gradients))


MASKED = [(method, "method.mask=random") for method in ("lsg", "sparse_dpsgd")]


@pytest.mark.parametrize("words", [*((method,) for method in METHODS), *MASKED], ids=" ".join)
def test_where_gpus_draw_other_numbers_from_one_seed_the_first_rank_s_hold(words, monkeypatch):
    """As GPUs of two kinds do: torch deals a seed's numbers out by how many a GPU takes at once."""
    config = composed(*words)
    alone = step_of_each_rank(1, config)[0]

    def unlike(draw):
        def drawn(*args, **kwargs):
            numbers = draw(*args, **kwargs)
            is_like_all = "device" not in kwargs or threading.current_thread().rank == 0
            return numbers if is_like_all else numbers.flip(0)

        return drawn

    for name in ("randn", "rand", "randint"):
        monkeypatch.setattr(torch, name, unlike(getattr(torch, name)))
    for outcome in (shared := step_of_each_rank(2, config)):
        assert distance(outcome.gradients, alone.gradients) < 1e-9
    assert torch.equal(flat(shared[0].gradients), flat(shared[1].gradients))


def test_what_one_rank_is_asked_all_hear_of_at_the_same_step():
    config = composed("dpsgd", "model=linear")
    for asked, heard in ((1, True), (None, False)):
        outcomes = step_of_each_rank(3, config, asked)
        assert [outcome.is_asked_to_stop for outcome in outcomes] == [heard] * 3
