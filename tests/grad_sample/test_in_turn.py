"""Layers that are called on one example after another, by a loop or by torch.vmap."""

import pytest
import torch
from torch import nn

from dpexp.data.task import cross_entropy
from dpexp.grad_sample import Tape
from dpexp.training.probing import check_model
from dpexp.training.probing.draws import MIDDLE
from dpexp.training.probing.trial import Subject
from dpexp.types import Batch, ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import CPU, task_of

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

STEPS, WIDTH = 6, 8


def attention():
    layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    return layer, lambda e: layer(e, e, e, need_weights=False)[0]


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
    return layer, layer


def linear():
    layer = nn.Linear(WIDTH, WIDTH)
    return layer, layer


def as_it_is(call, x):
    return torch.stack([call(e) for e in x])


def of_one(call, x):
    return torch.cat([call(e[None]) for e in x])


def mapped(call, x):
    return torch.vmap(call)(x)


def in_turn_and_together(call, x):
    return as_it_is(call, x) + call(x)


LAYERS = pytest.mark.parametrize("made", [attention, encoder, linear])
CALLS = pytest.mark.parametrize(
    "how", [as_it_is, of_one, mapped, in_turn_and_together], ids=lambda how: how.__name__
)


class Calling(nn.Module):
    def __init__(self, made, how):
        super().__init__()
        self.layer, self.call = made()
        self.head, self.how = nn.Linear(WIDTH, 3), how

    def forward(self, x):
        return self.head(self.how(self.call, x).mean(1))


@LAYERS
@CALLS
def test_gradients_are_those_of_the_example_alone(made, how):
    model = Calling(made, how).double()
    names = [name for name, _ in model.named_parameters()]
    assert check_model(model, names, task_of((STEPS, WIDTH)), CPU) is None
    gen = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, STEPS, WIDTH, generator=gen).double(), torch.arange(5) % 3
    found = Subject(model, names, cross_entropy).trial(Batch(x, y), MIDDLE, range(5))
    for row in range(5):
        total = cross_entropy(model(x[[row]]), y[[row]])
        own = torch.autograd.grad(total, list(model.parameters()))
        for name, gradient in zip(names, own, strict=True):
            assert torch.allclose(found.each[row][name], gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("made", "how"), [(attention, as_it_is), (linear, mapped)])
def test_of_a_model_that_was_not_tried_it_is_said_what_is_amiss(made, how):
    """Not that the layer takes no part in the loss: it does."""
    model = Calling(made, how)
    names = [name for name, _ in model.named_parameters()]
    with Tape(model, names, lambda *_: None) as tape:
        tape.expect(4)
        with pytest.raises(ConfigError, match="on the first axis .* took them in turn"):
            tape.backward(model(torch.randn(4, STEPS, WIDTH)).sum())
