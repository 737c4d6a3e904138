"""One private step, from a Poisson draw to gradients: draws, noise, bases and ranks."""

import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.training.gradient import PrivateGradient
from dpexp.training.probing.stage import chance_kept
from tests.contract.cases import KIN, METHODS
from tests.marks import some_long
from tests.steps import (
    CPU,
    Setting,
    Wide,
    composed,
    distance,
    flat,
    rgp,
    sums_of,
)

PAPERS = ["dpsgd", "rgp", "rgp_random", "dp_powersgd", "lsg", "sparse_dpsgd"]

# Weights that a step replaces


class Twice(torch.nn.Module):
    """A layer that stands in two places."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = self.first
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.second(torch.tanh(self.first(x))))


def test_a_module_that_stands_in_two_places_has_its_own_weight_again_after_a_step():
    model, x, y = Twice().double(), torch.randn(6, 4).double(), torch.arange(6) % 3
    weight, value = model.first.weight, model.first.weight.detach().clone()
    released, _ = sums_of(model, rgp(2, residual=False), x, y, 1.0, 3)
    assert model.first.weight is weight is model.second.weight
    assert isinstance(weight, torch.nn.Parameter) and torch.equal(weight, value)
    again, _ = sums_of(model, rgp(2, residual=False), x, y, 1.0, 3)
    assert all(torch.equal(again[key], each) for key, each in released.items())


# Micro-batches


@pytest.mark.parametrize("method", some_long(PAPERS, ["lsg"]))
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


# Noise


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


# Dropout


def test_masks_of_dropout_follow_the_seed_or_the_secret():
    def masks(*words):
        setting, drawn = Setting(composed("dpsgd", *words)), []
        setting.model.register_forward_pre_hook(lambda *_: drawn.append(torch.rand(8).tolist()))
        setting.step(2)
        return drawn

    assert masks()[0] == masks()[0] != masks("seed=1")[0]
    secret = masks("noise=secret")[0]  # seed=0 as well
    assert secret != masks("noise=secret")[0] and secret != masks()[0]


@pytest.mark.parametrize("of_others", [random.random, np.random.rand, random.getrandbits])
def test_a_repeated_step_draws_what_it_drew_from_pythons_and_numpys_generators_too(of_others):
    """A kill may come between release and checkpoint: another sum would have the same noise."""

    def drawn(step, *words):
        setting, seen = Setting(composed("dpsgd", *words)), []
        given = (64,) if of_others is random.getrandbits else ()
        setting.model.register_forward_pre_hook(lambda *_: seen.append(of_others(*given)))
        setting.step(step)
        return seen[0]

    with chance_kept():
        assert drawn(2) == drawn(2) != drawn(3)
        assert drawn(2, "noise=secret") != drawn(2)


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
    assert alone.examples % 6  # so that shares are of unequal sizes, of two ranks or of three
    for size in (2, 3):
        for outcome in (shared := step_of_each_rank(size, config)):
            assert outcome.examples == alone.examples and outcome.noise_draws == 1
            assert distance(outcome.gradients, alone.gradients) < 1e-12
            assert torch.equal(flat(shared[0].gradients), flat(outcome.gradients))


MASKED = [(method, "method.mask=random") for method in ("lsg", "sparse_dpsgd")]


EVERY = [*((method,) for method in METHODS), *MASKED]
SHORT = [words for words in EVERY if words[0] not in KIN][::2]
SHORT = [words for words in SHORT if words[0] not in ("bgep", "rgp_core")]


@pytest.mark.parametrize("words", some_long(EVERY, SHORT), ids=" ".join)
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
