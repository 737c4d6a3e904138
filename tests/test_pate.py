"""PATE: who sees which example, what leaves, and what the student learns."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpexp import cli
from dpexp.data import Examples, Task
from dpexp.distributed.ranks import Ranks
from dpexp.models.cnn import CNN
from dpexp.pate import PATE, loop
from dpexp.pate.stages import ask, assign, ballots
from dpexp.pate.votes import build_votes
from dpexp.privacy.seeds import generator
from dpexp.types import ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
BASE = ["method=pate", "task=digits", "profile=embedded", "device=cpu"]
SMALL = [*BASE, "eps=8", "method.teachers=60", "method.teacher_steps=40"]
SMALL += ["method.answers=60", "method.student_steps=100"]


def tiny(**options):
    """Return settings whose teachers cost next to nothing."""
    defaults = {
        "teachers": 5,
        "teacher": partial(CNN, channels=(1, 2), kernel=1),
        "teacher_optimizer": partial(torch.optim.SGD, lr=0.5),
        "teacher_steps": 2,
        "teacher_batch": 4,
        "threshold": 0.0,
        "check_ratio": 3.0,
        "queries": 8,
        "answers": 8,
        "public": "test-half",
        "student_steps": 5,
        "student_batch": 4,
    }
    return PATE(**defaults | options)


def mechanism(noise=True, **options):
    defaults = {
        "dataset_size": 1000,
        "num_classes": 3,
        "threshold": 0.0,
        "check_ratio": 3.0,
        "max_checks": 8,
        "max_answers": 8,
        "seed": 0,
    }
    privacy = {"eps": 8, "delta": 1e-5, "noise": noise, "clip": True, "sampling": "poisson"}
    return build_votes(privacy, **defaults | options)


def examples(count, gen, classes=3):
    x = torch.randn(count, 1, 4, 4, generator=gen)
    return Examples(x, torch.randint(classes, (count,), generator=gen))


# Who sees what


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(0, 40), log_scale=st.floats(-3, 30))
def test_one_example_more_moves_one_teachers_vote_at_most(seed, count, log_scale):
    """The sensitivities that the accounting rests on: sqrt(2) of a histogram, 1 of its maximum."""
    gen = torch.Generator().manual_seed(seed)
    all_of_it, queries = examples(count + 1, gen), examples(8, gen)
    all_of_it.inputs[-1] *= 10**log_scale
    votes = []
    for train in (all_of_it.take(torch.arange(count)), all_of_it):
        task = Task(
            name="random",
            train=train,
            test=queries,
            public=None,
            num_classes=3,
            input_shape=(1, 4, 4),
            delta=1e-5,
            dataset_size=len(train),
            fingerprint="",
        )
        votes.append(sum(ballots(tiny(), mechanism(), task, queries, CPU, range(5))))
    assert votes[0].sum(1).eq(5).all() and votes[1].sum(1).ge(4).all()  # one may have diverged
    moved = votes[1] - votes[0]
    assert float(moved.norm(dim=1).max()) <= math.sqrt(2)
    assert float((votes[1].amax(1) - votes[0].amax(1)).abs().max()) <= 1


def test_an_examples_teacher_depends_on_no_other_example():
    for count in (1, 7, 500):
        assert torch.equal(assign(count, 20, root=3), assign(1000, 20, root=3)[:count])
    sizes = torch.bincount(assign(20_000, 20, root=3), minlength=20)
    assert 850 < int(sizes.min()) and int(sizes.max()) < 1150
    assert not torch.equal(assign(1000, 20, root=3), assign(1000, 20, root=4))


def test_the_student_meets_public_inputs_alone_and_is_judged_by_others():
    halves = []
    for seed in (0, 1):
        config = cli.compose([*SMALL, f"seed={seed}"])
        parts = cli.build_parts(config, CPU)
        _, queries, task = loop.make_mechanism(config, parts, ALONE)
        test = {image.numpy().tobytes() for image in parts.task.test.inputs}
        asked = {image.numpy().tobytes() for image in queries.inputs}
        left = {image.numpy().tobytes() for image in task.test.inputs}
        assert asked | left == test and not asked & left
        assert len(queries) == len(task.test) == len(parts.task.test) // 2
        halves.append((asked, queries.inputs))
    assert halves[0][0] == halves[1][0]  # all runs are judged by the same half
    assert not torch.equal(halves[0][1], halves[1][1])  # but ask in an order of their own


def test_a_public_set_of_the_tasks_own_leaves_the_test_set_whole():
    words = ["task=shapes", "method.public=task", "public=shapes", "method.queries=50"]
    config = cli.compose([*SMALL, *words])
    parts = cli.build_parts(config, CPU)
    _, queries, task = loop.make_mechanism(config, parts, ALONE)
    assert len(queries) == 50 and len(task.test) == len(parts.task.test) == 2000
    public = {image.numpy().tobytes() for image in parts.task.public.inputs}
    assert {image.numpy().tobytes() for image in queries.inputs} <= public


@pytest.mark.parametrize("task", ["digits", "shapes"])
def test_one_training_image_among_the_public_ones_is_refused_in_a_line(task):
    """Teachers may learn from it, and the student would have it without any noise."""
    config = cli.compose([*SMALL, f"task={task}"])
    parts = cli.build_parts(config, CPU)
    loop.make_mechanism(config, parts, ALONE)
    public, left = loop.split_public(parts.task, "test-half")
    for image, is_refused in ((public.inputs[0], True), (left.test.inputs[0], False)):
        train = parts.task.train
        inputs = torch.cat([train.inputs[:-1], image[None]])
        leaky = replace(parts, task=replace(parts.task, train=replace(train, inputs=inputs)))
        if not is_refused:
            loop.make_mechanism(config, leaky, ALONE)  # only its accuracy is of such an image
            continue
        with pytest.raises(ConfigError, match=r"1 of \d+ images of the test set's") as raised:
            loop.make_mechanism(config, leaky, ALONE)
        assert "\n" not in str(raised.value) and "method.public=task" in str(raised.value)


# What leaves


def literal_confident_gnmax(votes, threshold, check_std, vote_std, seed, max_answers):
    """Papernot et al. 2018, Algorithm 1, query by query, until as many are answered as may be."""
    answers = {}
    for query, n in enumerate(votes.tolist()):
        if len(answers) == max_answers:
            return query, answers
        first = torch.randn((), generator=generator(seed, "noise/check", query), dtype=torch.double)
        if max(n) + check_std * float(first) >= threshold:
            gen = generator(seed, "noise/votes", query)
            second = torch.randn(len(n), generator=gen, dtype=torch.double).tolist()
            noisy = [n_j + vote_std * z_j for n_j, z_j in zip(n, second, strict=True)]
            answers[query] = noisy.index(max(noisy))
    return len(votes), answers


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("max_answers", [200, 30])
def test_queries_are_answered_by_algorithm_1(noise, max_answers):
    gen = torch.Generator().manual_seed(0)
    votes = torch.randint(0, 30, (200, 4), generator=gen).double()
    options = {"threshold": 25.0, "max_checks": 200, "max_answers": max_answers, "num_classes": 4}
    noisy = mechanism(noise, seed=5, **options)
    got = ask(votes, noisy)
    stds = (noisy.check_std, noisy.noise_multiplier)
    asked, answers = literal_confident_gnmax(votes, 25.0, *stds, 5, max_answers)
    assert got.asked == asked
    assert dict(zip(got.answered.tolist(), got.labels.tolist(), strict=True)) == answers
    assert 20 < len(answers) < 180 and (asked < 200) == (max_answers == 30)
    expected = (asked, len(answers)) if noise else (0, 0)
    assert tuple(got.draws.values()) == expected


@pytest.mark.parametrize("what", ["check", "label"])
def test_outcomes_come_as_often_as_the_declared_noise_makes_them(what):
    """A binomial test that rejects 0.8 and 1.25 times the scale."""
    count, gap = 4000, 20.0
    noisy = mechanism(max_checks=count, max_answers=count, threshold=0.0, num_classes=2)
    histogram = torch.tensor([gap, 0.0], dtype=torch.float64)
    if what == "check":
        noisy = replace(noisy, threshold=gap + noisy.check_std)
        std, distance = noisy.check_std, -noisy.check_std
    else:
        noisy = replace(noisy, threshold=-1e9, noise_multiplier=gap)
        std, distance = math.sqrt(2) * gap, gap
    got = ask(histogram.repeat(count, 1), noisy)
    hits = len(got.labels) if what == "check" else int((got.labels == 0).sum())

    def deviates(scale):
        chance = norm.cdf(distance / (std * scale))
        return abs(hits - count * chance) / math.sqrt(count * chance * (1 - chance))

    assert deviates(1.0) < 3.5
    assert min(deviates(0.8), deviates(1.25)) > 5


def test_the_caps_hold_whatever_the_votes():
    votes = torch.tensor([[40.0, 0.0, 0.0]], dtype=torch.float64).repeat(8, 1)
    for max_checks, max_answers in ((8, 3), (3, 3), (8, 8)):
        got = ask(votes, mechanism(max_checks=max_checks, max_answers=max_answers, threshold=-1e9))
        assert (got.asked, len(got.labels)) == (max_answers, max_answers)
    none = ask(votes, mechanism(threshold=1e9))
    assert (none.asked, len(none.labels)) == (8, 0)


def test_several_processes_are_refused_with_what_helps_under_torchrun_too():
    """There ranks=1 changes nothing: torchrun says how many processes there are."""
    config = cli.compose(["method=pate", "task=digits", "profile=embedded", "model=linear"])
    parts = cli.build_parts(config, torch.device("cpu"))
    with pytest.raises(ConfigError, match="Set ranks=1, and start it without torchrun"):
        loop.make_mechanism(config, parts, Ranks(0, 2, torch.device("cpu")))
