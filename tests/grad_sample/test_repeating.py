"""Modules without a rule that are refused: they come to something else when they are run again."""

import pytest
import torch
from torch import nn

from dpexp.types import ConfigError
from tests.grad_sample.test_modules import LAYERS, D, N, Net, Scale, T, drawn, taken

pytestmark = pytest.mark.filterwarnings("ignore")


class Pooled(nn.Module):
    """Pools windows of an example, as many as it is told of."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D))

    def forward(self, h, k):
        return (h * self.weight).tanh().reshape(len(h) // k, k, -1, D).sum(1)


def test_rows_that_were_not_tried_are_refused():
    """Whose they are is not seen by their number: examples' gradients might be mixed."""
    for make, n in ((LAYERS["rows of tokens"], 3), (LAYERS["rows of windows without a rule"], 3)):
        model, x, y = drawn(make, n)
        with pytest.raises(ConfigError, match="to see one row an example"):
            taken(model, x, y, [name for name, _ in model.named_parameters()])


def test_inputs_with_more_rows_than_outputs_are_refused_and_not_taken_for_all_examples():
    model, x, y = drawn(
        lambda: Net(Pooled(), lambda layer, h: layer(h.reshape(len(h) * 2, 2, D), 2))
    )
    with pytest.raises(ConfigError, match="to come to the same when it is run again"):
        taken(model, x, y, ["layer.weight"])


class Odd(Scale):
    """Comes to something else at times."""

    def __init__(self, how):
        super().__init__()
        self.how, self.calls, self.generator = how, 0, torch.Generator().manual_seed(0)

    def forward(self, h):
        self.calls += 1
        by_calls = self.how == "calls" and self.calls > 1
        own = torch.rand(1, generator=self.generator).item() if self.how == "generator" else 1.0
        return super().forward(h) * (own + by_calls)


@pytest.mark.parametrize("how", ["generator", "calls"])
def test_a_module_that_comes_to_something_else_again_is_refused(how):
    model, x, y = drawn(lambda: Net(Odd(how)))
    with pytest.raises(ConfigError, match="to come to the same when it is run again"):
        taken(model, x, y, ["layer.weight"])


def test_what_a_module_keeps_is_as_its_own_forward_pass_left_it():
    class Keeping(Scale):
        def forward(self, h):
            self.seen = super().forward(h)
            return self.seen

    model, x, y = drawn(lambda: Net(Keeping()))
    taken(model, x, y, ["layer.weight"])
    assert model.layer.seen.shape == (N, T, D)
