"""DP-LoRA's adapters that are in the weight a layer computes with: rules give their gradients."""

import pytest
import torch
from torch import nn

from dpexp.grad_sample import Tape
from dpexp.grad_sample.hooking import hooked_layers
from dpexp.methods.dp_lora import DPLoRA
from dpexp.models.adapters import adapter_parameters
from dpexp.models.standardized import GainedConv2d
from tests.methods import literal
from tests.steps import sums_of

CLIP_NORM = 0.7


class Twice(nn.Module):
    def __init__(self, groups=4):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups)

    def forward(self, x):
        return self.conv(torch.tanh(self.conv(x)))


class Padded(nn.Conv2d):
    """A subclass, whose type has no rule."""


def hooked():
    layer = nn.Conv2d(4, 4, 3, groups=2)
    layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
    return layer


LAYERS = {
    "plain": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(0, 1), dilation=2), True),
    "plain, padded by a word": (lambda: nn.Conv2d(4, 6, (4, 3), padding="same", bias=False), True),
    "plain, called twice": (lambda: Twice(groups=1), True),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2, padding=1), True),
    "depthwise": (lambda: nn.Conv2d(4, 4, 5, groups=4, padding=2), True),
    "several outputs a channel": (lambda: nn.Conv2d(4, 12, (3, 2), groups=4, bias=False), True),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), True),
    "standardised": (lambda: GainedConv2d(4, 6, 3), True),
    "called twice": (Twice, True),
    "scale and bias of a norm": (lambda: nn.LayerNorm((4, 7, 6)), True),
    "another padding": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), False),
    "no rule": (lambda: Padded(4, 6, 3), False),
    "a hook": (hooked, False),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("alpha", [2.0, 5.0])
def test_adapters_within_a_weight_have_autograds_gradients(kind, alpha):
    """Where the layer's type has a rule it gives them; they took torch.func, half of a step."""
    build, has_rule = LAYERS[kind]
    torch.manual_seed(3)
    model = nn.Sequential(build(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3)).double()
    x, y = torch.randn(5, 4, 7, 6, dtype=torch.float64), torch.arange(5) % 3
    model(x)
    method = DPLoRA(2, alpha, "*", "3")
    model = method.adapt(model)
    for name in adapter_parameters(model):
        nn.init.normal_(model.get_parameter(name), std=0.3)
    adapters = hooked_layers(model, adapter_parameters(model))
    assert [each.has_rule for each in adapters.values()] == [has_rule]
    trained = method.trainable(model)
    each = literal.gradients(model, x, y)
    clipped = literal.clip({name: each[name] for name in trained}, CLIP_NORM)
    got, _ = sums_of(model, method, x, y, CLIP_NORM, 2)
    assert {key.parameter for key in got} == {*trained}
    for key, total in got.items():
        torch.testing.assert_close(total, clipped[key.parameter].sum(0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("groups", [1, 4])
def test_views_of_an_example_add_up(groups):
    torch.manual_seed(4)
    convolution = nn.Conv2d(4, 4, 3, groups=groups)
    model = nn.Sequential(convolution, nn.Flatten(), nn.Linear(36, 2)).double()
    model = DPLoRA(2, 3.0, "*", "2").adapt(model)
    names = adapter_parameters(model)
    for name in names:
        nn.init.normal_(model.get_parameter(name), std=0.3)
    x = torch.randn(6, 4, 5, 5, dtype=torch.float64)  # two views of each of three examples
    found = {}

    def take(layer, grads):
        each = {own: grads.gradient(own).materialize() for own in grads.parameters}
        found.update({f"{layer}.{own}": one for own, one in each.items()})

    with Tape(model, names, take) as tape:
        tape.expect(6, views=2, shape=(4, 5, 5))
        tape.backward(model(x).square().sum())
    for name in names:
        for example, pair in enumerate(x.split(2)):
            loss = model(pair).square().sum()
            (each,) = torch.autograd.grad(loss, [model.get_parameter(name)])
            torch.testing.assert_close(found[name][example], each)
