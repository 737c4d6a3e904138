"""Canaries: clipped like any example, heard as loudly as they took part, and silent when absent."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpexp import cli
from dpexp.attacks.audit import toss
from dpexp.attacks.canaries import TOO_LONG, Canaried
from dpexp.attacks.canaries_tipped import Tipped
from dpexp.attacks.directions import Coordinates, Dense, Spikes
from dpexp.attacks.mislabelled import Thinned, choose, mislabel, scores
from dpexp.distributed.ranks import Ranks
from dpexp.privacy import build, whole_batch
from dpexp.privacy.bound import slack_of
from dpexp.privacy.sampling import poisson
from dpexp.privacy.seeds import generator
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.marks import pairs_long
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.texts import texts

ALONE = Ranks(0, 1, torch.device("cpu"))
SMALL = ["task=digits", "profile=embedded", "model=cnn", "model.channels=[4,8]", "model.kernel=3"]
METHODS = {
    "dpsgd": [],
    "sparse_dpsgd": [],
    "dp_powersgd": ["method.rank=2"],
    "dp_grape": ["method.rank=2", "method.moments=adam"],
    "dp_zo": ["method.directions=10"],
    "rgp": ["method.rank=2"],
    "lsg": ["method.rank=2"],
    "gep": ["method.m=20", "method.k=8", "method.residual_clip=0.5"],
    "bgep": ["method.m=20", "method.k=8"],
}
NUM_RELEASES = {"gep": 2}
BATCH = 40


def parts_of(method, *words):
    torch.manual_seed(0)
    return cli.build_parts(cli.compose([f"method={method}", *SMALL, *words]), ALONE.device)


def canaried(method, included, **settings):
    chosen = {"kind": "dirac", "sampling_prob": 1.0, "clip_norm": 1.0, "batch_size": BATCH}
    return Canaried(method, included=torch.as_tensor(included), seed=0, **{**chosen, **settings})


def steps(parts, method, mechanism, num_steps=1, examples=None):
    """Take steps without updating the model; give their outcomes."""
    outcomes = []
    state = method.start(parts.model)
    task = parts.task
    examples = task.train if examples is None else examples
    with PrivateGradient(
        parts.model, method, mechanism, ALONE, 25, task.public, task.loss
    ) as gradient:
        for step in range(num_steps):
            outcomes.append(gradient(state, examples, step))
            state = outcomes[-1].state
    return outcomes


def silent(parts, clip_norm=1.0):
    """A mechanism that takes the first examples whole and adds no noise."""
    state = parts.method.start(parts.model)
    return whole_batch(BATCH, parts.method.releases(state, clip_norm))


# What a canary adds


def test_an_attempt_that_ran_out_of_memory_is_not_heard_twice():
    parts = parts_of("dpsgd")
    method, calls = canaried(parts.method, [True, False] * 5), []
    (whole,) = steps(parts, method, silent(parts))

    def run_out(_, __, output):
        calls.append(len(output))
        if calls == [25, 15]:  # the second micro-batch of the first attempt
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GB. GPU 0")

    parts.model.register_forward_hook(run_out)
    (pieces,) = steps(parts, method, silent(parts))
    assert calls == [25, 15, 12, 12, 12, 4] and pieces.has_halved
    # Sums in float32, added in another order; heard twice, they are up to 0.77 off.
    torch.testing.assert_close(pieces.state["scores"], whole.state["scores"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("method", "kind"),
    pairs_long(
        *(METHODS, ["dirac", "random"]),
        short=lambda method, kind: kind == "dirac" or method in ("dpsgd", "rgp", "gep"),
    ),
)
def test_a_canary_far_too_long_adds_its_direction_clipped_in_every_release(method, kind):
    """Among 40 real examples; heard without noise, it is there once a release, or not at all."""
    parts = parts_of(method, *METHODS[method])
    for who in (None, 0, 3):
        present = [place == who for place in range(5)]
        watched = canaried(parts.method, present, kind=kind)
        (outcome,) = steps(parts, watched, silent(parts))
        heard = outcome.state["scores"]
        # Of the clip norm, what float32 leaves to rounding is not heard.
        of_one = NUM_RELEASES.get(method, 1) / (1 + slack_of(torch.float32))
        expected = of_one * torch.tensor(present, dtype=torch.float64)
        if kind == "dirac":  # float32 sums of 40 gradients of norm up to 1
            torch.testing.assert_close(heard, expected, atol=1e-4, rtol=0)
        elif who is not None:
            assert float(heard[who]) == pytest.approx(float(expected[who]), abs=1e-4)
        assert outcome.examples == BATCH + (who is not None)


def test_absent_texts_are_in_no_micro_batch_and_the_rest_keep_their_numbers():
    some = texts("bert", (9, 4, 7, 2, 5, 9))
    present = torch.tensor([True, False, True, True, False, True])
    thinned, drawn = Thinned(some, present), torch.tensor([5, 4, 3, 1, 0])
    pieces = list(thinned.micro_batches(drawn, 1))
    assert sorted(torch.cat(pieces).tolist()) == [0, 3, 5] and len(thinned) == 6
    for piece in pieces:
        assert torch.equal(thinned.batch(piece).inputs, some.batch(piece).inputs)
    assert list(thinned.micro_batches(torch.tensor([1, 4]), 1)) == []


class Apart(Ranks):
    """A rank that is never added to the others."""

    def reduce(self, tensors):
        """Leave the sums as this rank has them."""

    def broadcast(self, tensors):
        """Leave them, and what was prepared."""


def test_of_several_ranks_the_first_alone_adds_the_canary():
    parts = parts_of("dpsgd")
    watched, task, examples = canaried(parts.method, [True]), parts.task, []
    for rank in (0, 1):
        ranks, state = Apart(rank, 2, ALONE.device), watched.start(parts.model)
        with PrivateGradient(
            parts.model, watched, silent(parts), ranks, 25, task.public, task.loss
        ) as gradient:
            examples.append(gradient(state, task.train, 0).examples)
    assert examples == [BATCH // 2 + 1, BATCH // 2]


def test_without_clipping_the_whole_length_would_be_heard():
    """So that a broken clip cannot hide behind the score."""
    parts = parts_of("dpsgd")
    mechanism = replace(silent(parts), clip=False)
    (outcome,) = steps(parts, canaried(parts.method, [True]), mechanism)
    assert float(outcome.state["scores"]) == pytest.approx(TOO_LONG, rel=1e-4)


def test_a_canary_moves_nothing_but_its_coordinate():
    parts = parts_of("dpsgd")
    (alone,) = steps(parts, parts.method, silent(parts))
    (joined,) = steps(parts, canaried(parts.method, [True]), silent(parts))
    differences = [joined.gradients[name] - alone.gradients[name] for name in alone.gradients]
    moved = torch.cat([each.flatten() for each in differences])
    assert int((moved.abs() > 1e-6).sum()) == 1
    assert float(moved.abs().max()) == pytest.approx(
        1 / BATCH / (1 + slack_of(torch.float32)), rel=1e-4
    )


# Absent canaries


def test_canaries_that_never_join_leave_every_bit_as_it_was():
    parts = parts_of("rgp", *METHODS["rgp"], "eps=8")
    state = parts.method.start(parts.model)
    mechanism = build(
        {"eps": 8.0, "delta": 1e-4, "noise": True, "clip": True, "sampling": "poisson"},
        dataset_size=1437,
        batch_size=60,
        num_steps=4,
        releases=parts.method.releases(state, 1.0),
        seed=3,
    )
    plain = steps(parts, parts.method, mechanism, 4)
    for settings in ({"included": [False] * 6}, {"included": [True] * 6, "sampling_prob": 0.0}):
        watched = canaried(parts.method, settings.pop("included"), **settings)
        for one, other in zip(plain, steps(parts, watched, mechanism, 4), strict=True):
            assert one.examples == other.examples and one.loss == other.loss
            for name, gradient in one.gradients.items():
                assert torch.equal(gradient, other.gradients[name]), name


# Coins


def test_coins_are_fair_and_of_their_own():
    tosses = torch.stack([toss(seed, 1000) for seed in range(100)]).double()
    assert float(tosses.mean()) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(100_000))
    between = np.corrcoef(tosses.numpy())[np.triu_indices(100, 1)]
    assert abs(between.mean()) < 4 / math.sqrt(1000 * len(between))
    drawn = torch.zeros(1000, dtype=torch.float64)
    drawn[poisson(0, 0, 1000, 0.5)] = 1
    assert abs(np.corrcoef(tosses[0], drawn)[0, 1]) < 4 / math.sqrt(1000)


def test_canaries_join_steps_independently_with_the_runs_probability():
    parts = parts_of("dpsgd")
    watched = canaried(parts.method, [True] * 500 + [False] * 500, sampling_prob=0.2)
    state, joined = watched.start(parts.model), torch.zeros(40, 1000)
    for step in range(40):
        sampled = watched.prepare(parts.model, {**state, "step": step}, None, None)["sampled"]
        joined[step, sampled] = 1
    assert joined[:, 500:].sum() == 0
    rate = joined[:, :500].mean()
    assert float(rate) == pytest.approx(0.2, abs=4 * 0.4 / math.sqrt(20_000))
    # Counts by step and by canary are as spread as independent coins make them.
    for counts, tosses in ((joined[:, :500].sum(1), 500), (joined[:, :500].sum(0), 40)):
        expected, error = tosses * 0.16, 4 * tosses * 0.16 * math.sqrt(2 / len(counts))
        assert float(counts.var()) == pytest.approx(expected, abs=error)


# Directions


def test_coordinates_are_distinct_while_there_are_enough_and_shared_evenly_beyond():
    gen, like = generator(0, "test", 0), torch.zeros(1)
    few = Coordinates.draw(50, 50, gen, like)
    assert sorted(few.places.tolist()) == list(range(50)) and set(few.signs.tolist()) == {-1, 1}
    many = Coordinates.draw(120, 50, gen, like).places.bincount()
    assert many.min() == 2 and many.max() == 3


@pytest.mark.parametrize("kind", [Coordinates, Dense])
def test_a_direction_cut_into_blocks_is_the_direction(kind):
    shapes, vector = [(2, 3), (4,), (1, 2, 2)], torch.randn(14)
    directions = kind.draw(8, 14, generator(0, "test", 1), vector)
    who, start, blocks = torch.tensor([6, 0, 3]), 0, []
    for shape in shapes:
        grads = directions.grads(who, start, shape, torch.full((3,), 5.0))
        each, total = grads.materialize(), torch.zeros(shape)
        weights = torch.tensor([0.5, 1.0, 2.0])
        grads.add_to(total, weights)
        torch.testing.assert_close(total, torch.tensordot(weights, each, 1))
        squares = each.flatten(1).double().square().sum(1)
        bounds = grads.norms_squared()
        assert ((bounds >= squares) & (bounds <= squares * (1 + 2e-4) + 1e-30)).all()
        mask = torch.tensor([True, False, True])
        torch.testing.assert_close(grads.select(mask).materialize(), each[mask])
        blocks.append(each.flatten(1))
        start += math.prod(shape)
    whole = torch.cat(blocks, 1)
    torch.testing.assert_close(whole.norm(dim=1), torch.full((3,), 5.0))
    torch.testing.assert_close(whole @ vector, 5 * directions.inner(vector)[who])


def test_a_spike_that_lies_elsewhere_is_nothing_here():
    spike = Spikes(torch.tensor([0.0, 2.0]), torch.tensor([0, 3]), (2, 2))
    assert spike.materialize().tolist() == [[[0, 0], [0, 0]], [[0, 0], [0, 2]]]


# Where coordinates are clipped


def test_a_canary_in_gradients_is_refused_where_coordinates_are_clipped():
    words = ["method=compressive", "task=digits", "profile=embedded"]
    parts = cli.build_parts(cli.compose(words), ALONE.device)
    with pytest.raises(ConfigError, match="audit.canaries=mislabelled"):
        canaried(parts.method, [True]).start(parts.model)


def test_one_canary_changes_all_entries_that_are_kept():
    """By all that the declared sensitivity allows, but for the trifle that lets it decide."""
    words = ["task=digits", "profile=embedded", "method.psi=none", "batch_size=8"]
    parts = cli.build_parts(cli.compose(["method=compressive", *words]), ALONE.device)
    (release,) = parts.method.releases(parts.method.start(parts.model), 0.1)
    mechanism, absent = whole_batch(8, (release,)), torch.zeros(1437, dtype=torch.bool)
    released = []
    for included in (False, True):
        method = Tipped(parts.method, included=included, clip_norm=0.1, batch_size=8)
        (outcome,) = steps(parts, method, mechanism, examples=Thinned(parts.task.train, absent))
        released.append(8 * torch.cat([g.flatten() for g in outcome.gradients.values()]))
        assert (released[-1] != 0).sum() == 5
        assert (float(outcome.state["scores"]) > 0) == included
    change = float((released[1] - released[0]).abs().sum())
    assert release.sensitivity * 0.1 * 0.9 < change <= release.sensitivity * 0.1 * (1 + 1e-6)


# Mislabelled examples


def test_mislabelled_examples_are_there_with_a_wrong_class_or_not_at_all():
    task = parts_of("dpsgd").task
    included = toss(1, 300)
    changed = mislabel(task, included, 1)
    assert len(changed.train) == changed.dataset_size == len(task.train)
    assert changed.fingerprint == task.fingerprint
    places, targets = choose(len(task.train), 300, 1), changed.train.targets
    assert len(places.unique()) == 300
    assert (targets[places] != task.train.targets[places]).all()
    others = torch.ones(len(targets), dtype=torch.bool)
    others[places] = False
    assert torch.equal(targets[others], task.train.targets[others])
    drawn = torch.arange(0, len(targets), 2)
    seen = torch.cat(list(changed.train.to("cpu").micro_batches(drawn, 50)))
    absent = set(places[~included].tolist())
    assert sorted(seen.tolist()) == [i for i in drawn.tolist() if i not in absent]
    assert list(changed.train.micro_batches(places[~included], 50)) == []
    wrong = (targets[places] - task.train.targets[places]) % 10
    counts = wrong.bincount(minlength=10)[1:].double()
    assert float(((counts - 300 / 9) ** 2 / (300 / 9)).sum()) < 26.1  # chi-square, 8 df, p = 0.001


def test_a_mislabelled_examples_score_is_minus_its_loss():
    parts = parts_of("dpsgd")
    changed = mislabel(parts.task, toss(1, 20), 1)
    found = scores(parts.model, changed.train, 20, 1, ALONE.device)
    place = choose(len(changed.train), 20, 1)[7:8]
    batch = changed.train.batch(place)
    loss = parts.task.loss(parts.model(batch.inputs), batch.targets).detach()
    assert float(found[7]) == pytest.approx(-float(loss), rel=1e-5)


def test_mislabelled_examples_need_classes_and_room():
    task = parts_of("dpsgd").task
    with pytest.raises(ConfigError, match=r"audit\.m <= 1437"):
        mislabel(task, toss(0, 1438), 0)
    words = ["method=dpsgd", "task=regression", "profile=embedded"]
    numbers = cli.build_parts(cli.compose(words), ALONE.device).task
    with pytest.raises(ConfigError, match="task of classes"):
        mislabel(numbers, toss(0, 10), 0)
