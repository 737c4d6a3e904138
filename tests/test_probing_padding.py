"""Before the first step: some made-up examples end in zeros, as padded ones do."""

import pytest
import torch
from torch import nn

from dpexp.data import Examples
from dpexp.data.task import cross_entropy
from dpexp.training.probing.draws import MIDDLE
from dpexp.training.probing.made_up import make_up
from dpexp.training.probing.trial import Subject
from dpexp.types import Batch, ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import CPU, check, task_of

STEPS, WIDTH = 7, 5


class Padded(nn.Module):
    """Tells an example's length by the zeros at its end."""

    def __init__(self, takes_ids, forward):
        super().__init__()
        self.first = nn.Embedding(40, 8) if takes_ids else nn.Linear(WIDTH, 8)
        self.head, self.own = nn.Linear(8, 3), forward

    def forward(self, x):
        is_there = x != 0 if x.dim() == 2 else (x != 0).any(2)
        lengths = is_there.sum(1).clamp(min=1)
        return self.head(self.own(self.first, x, lengths))


def is_within(x, lengths):
    return (torch.arange(x.shape[1]) < lengths[:, None])[..., None].double()


def mean_of_all(first, x, lengths):
    """Depends on the longest example of the batch."""
    return first(x[:, : lengths.max()]).mean(1)


def share_of_longest(first, x, lengths):
    return first(x).mean(1) * (lengths / lengths.max())[:, None]


def mean_of_own(first, x, lengths):
    return (first(x) * is_within(x, lengths)).sum(1) / lengths[:, None]


def mean_of_own_without_the_rest(first, x, lengths):
    return mean_of_own(first, x[:, : lengths.max()], lengths)


def last(first, x, lengths):
    return first(x)[torch.arange(len(x)), lengths - 1]


def one_by_one(first, x, lengths):
    return torch.stack([first(e[:n]).mean(0) for e, n in zip(x, lengths, strict=True)])


def inputs_of(takes_ids):
    return Examples(
        torch.zeros((4, STEPS), dtype=torch.int64) if takes_ids else torch.zeros((4, STEPS, WIDTH)),
        torch.zeros(4).long(),
    )


KINDS = pytest.mark.parametrize("takes_ids", [True, False], ids=["ids", "floats"])


@KINDS
@pytest.mark.parametrize("forward", [mean_of_all, share_of_longest])
def test_what_a_longer_example_changes_is_refused(takes_ids, forward):
    task = task_of()
    task.train = inputs_of(takes_ids)
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(Padded(takes_ids, forward), task)


OF_OWN = [mean_of_own, mean_of_own_without_the_rest, last, one_by_one]


@KINDS
@pytest.mark.parametrize("forward", few(OF_OWN, OF_OWN[::3]))
def test_examples_of_several_lengths_have_the_gradients_that_they_have_alone(takes_ids, forward):
    model, task = Padded(takes_ids, forward).double(), task_of()
    task.train = inputs_of(takes_ids)
    assert check(model, task) is None
    gen = torch.Generator().manual_seed(0)
    shape = (6, STEPS) if takes_ids else (6, STEPS, WIDTH)
    x = torch.randint(1, 40, shape, generator=gen)
    x = x if takes_ids else x.double()
    for row, length in enumerate((1, 7, 4, 2, 7, 5)):
        x[row, length:] = 0
    y, names = torch.arange(6) % 3, [name for name, _ in model.named_parameters()]
    found = Subject(model, names, cross_entropy).trial(Batch(x, y), MIDDLE, range(6))
    for row in range(6):
        total = cross_entropy(model(x[[row]]), y[[row]])
        own = torch.autograd.grad(total, list(model.parameters()))
        for name, gradient in zip(names, own, strict=True):
            assert torch.allclose(found.each[row][name], gradient, rtol=0, atol=1e-12)


def crowd(train, model):
    task = task_of()
    task.train = train
    return make_up(task, model, CPU, torch.double).crowd.inputs


def test_there_are_some_along_each_axis_and_none_that_the_model_refuses():
    def refuses(first, x, lengths):
        if (lengths < STEPS).any():
            raise ValueError("padded")
        return mean_of_own(first, x, lengths)

    train = inputs_of(takes_ids=False)
    # The last axis is no length; five more are of whole numbers.
    assert len(crowd(train, Padded(False, refuses).double())) == 9 + 5 + 2
    made = crowd(train, Padded(False, mean_of_own).double())
    ends = {((row != 0).any(1).sum().item(), (row != 0).any(0).sum().item()) for row in made}
    assert ends == {(STEPS, WIDTH), (4, WIDTH), (1, WIDTH), (STEPS, 3), (STEPS, 1)}


def test_there_are_none_where_a_zero_of_the_data_is_none_of_the_batch():
    model, whole = nn.Sequential(nn.Flatten(), nn.Linear(STEPS * WIDTH, 3)).double(), 9 + 5
    pixels = Examples(torch.zeros((4, STEPS, WIDTH), dtype=torch.uint8), torch.zeros(4).long())
    shifted = Examples(torch.zeros((4, STEPS, WIDTH)), torch.zeros(4).long(), [0.5], [0.5])
    assert len(crowd(shifted, model)) == whole
    assert len(crowd(pixels, model)) == whole + 4, "a dark pixel is a zero"
