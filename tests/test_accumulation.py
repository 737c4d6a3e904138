"""A logical batch of many micro-batches takes the memory of one of few: counted by live tensors."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpexp.data import Examples
from dpexp.data.augmentation import CropFlip
from dpexp.privacy import whole_batch
from dpexp.privacy.clipping import PerLayer
from dpexp.training.gradient import PrivateGradient
from dpexp.training.judging import EVAL_BATCH, evaluate
from tests.contract.cases import FOLDERS, METHODS, case
from tests.live import Live
from tests.marks import few
from tests.steps import ALONE, CPU, Setting, composed

MICRO_BATCH = 100
FEW, MANY = 4 * MICRO_BATCH, 7 * MICRO_BATCH  # sums are in float64 from the third on
AN_EXAMPLE = 16  # bytes: its place in the set, and its loss or score
SOME = ["dpsgd", "rgp", "gep", "dp_zo", "compressive"]
"""Methods that sum in ways of their own."""


class Some:
    """The first examples of a set."""

    def __init__(self, examples, num):
        self.examples, self.num = examples, num

    def __len__(self):
        return self.num

    def __getattr__(self, name):
        return getattr(self.examples, name)


def alive(setting, num, **recipe):
    """Return the bytes alive after every micro-batch of a step on `num` examples, and the most."""
    mechanism = whole_batch(num, setting.method.releases(setting.state, 1.0), noise_multiplier=1.0)
    mechanism = replace(mechanism, clip=setting.mechanism.clip)
    examples, after = Some(setting.examples, num), []
    with (
        PrivateGradient(
            setting.model, setting.method, mechanism, ALONE, MICRO_BATCH, setting.public, **recipe
        ) as gradient,
        Live() as live,
    ):
        outcome = gradient(setting.state, examples, 0, on_part=lambda _: after.append(live.now))
    assert outcome.examples == num and len(after) == num // MICRO_BATCH
    return after, live.most


def assert_same(few, many):
    (after_few, most_of_few), (after_many, most_of_many) = few, many
    assert min(after_few) > 0
    assert max(after_many) - max(after_few) <= AN_EXAMPLE * (MANY - FEW)
    assert most_of_many - most_of_few <= AN_EXAMPLE * (MANY - FEW)


@pytest.mark.parametrize("method", METHODS if FOLDERS else few(METHODS, SOME))
def test_nothing_grows_with_the_number_of_micro_batches(method):
    setting = Setting(composed(method, *case(method).narrow))
    assert_same(alive(setting, FEW), alive(setting, MANY))


def test_views_and_a_bound_a_layer_grow_no_more():
    setting = Setting(composed("dpsgd", *case("dpsgd").narrow))
    views = CropFlip(multiplicity=2, padding=1)
    draws = views.draws(1, torch.Generator())  # of every example in the set, whoever is drawn
    few, many = (
        alive(setting, num, augmentation=views, clipping=PerLayer()) for num in (FEW, MANY)
    )
    own = draws.nbytes * (MANY - FEW)
    assert_same(few, ([each - own for each in many[0]], many[1] - own))


def test_an_evaluation_grows_by_the_scores_alone():
    model = nn.Linear(50, 10)
    most = []
    for times in (2, 6):
        num = times * EVAL_BATCH
        examples = Examples(torch.randn(num, 50), torch.randint(10, (num,)))
        with Live() as live:
            evaluate(model, examples, CPU)
        most.append(live.most)
    assert most[0] > 4 * 50 * EVAL_BATCH
    assert most[1] - most[0] <= AN_EXAMPLE * 4 * EVAL_BATCH
