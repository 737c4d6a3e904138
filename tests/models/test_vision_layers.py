"""Layers of timm and torchvision that take a rule of torch's, and the layout of their images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp import cli, kernels
from dpexp.grad_sample.rules import layer_grads_of, parameters_with_a_rule
from dpexp.models import vision_layers
from dpexp.types import ConfigError
from tests.grad_sample.test_rules import assert_rule_holds, per_example_by_torch_func, random_like
from tests.marks import long
from tests.test_per_example import Largest

timm = pytest.importorskip("timm")
BY_FUNC = (per_example_by_torch_func,)
IMAGES = ["task=digits", "method=dpsgd", "profile=embedded", "model.pretrained=false"]


def registered(layer):
    vision_layers.register(layer)
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    assert own and own <= set(parameters_with_a_rule(layer))
    return layer


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    *[st.tuples(st.integers(1, 4), st.integers(1, 4))] * 2,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_a_convolution_that_pads_as_it_goes(
    groups, kernel, stride, image, dilation, each, has_bias, seed
):
    kind = timm.layers.Conv2dSame
    layer = kind(2 * groups, each * groups, kernel, stride, 0, dilation, groups, has_bias)
    x = random_like(torch.empty(2, 2 * groups, *image), seed)
    assert_rule_holds(registered(layer), x, seed, references=BY_FUNC)


NORMS = {
    "LayerNorm": lambda: timm.layers.LayerNorm(6),
    "LayerNorm2d": lambda: timm.layers.LayerNorm2d(4),
    "torchvision": lambda: layer_norm_of_torchvision(4),
    "GroupNorm": lambda: timm.layers.GroupNorm(4, 2),
    "GroupNorm1": lambda: timm.layers.GroupNorm1(4),
    "Linear": lambda: timm.layers.linear.Linear(6, 3),
}


def layer_norm_of_torchvision(channels):
    from torchvision.models.convnext import LayerNorm2d

    return LayerNorm2d(channels)


@pytest.mark.parametrize("name", NORMS)
def test_other_layers(name):
    x = random_like(torch.empty(3, 4, 5, 6), 1)
    assert_rule_holds(registered(NORMS[name]()), x, 2, references=BY_FUNC)


def test_rows_of_an_example_add_up_as_those_of_torchs_layer():
    x, dh = random_like(torch.empty(6, 6), 1), random_like(torch.empty(6, 6), 2)
    for kind, torchs in ((timm.layers.LayerNorm, nn.LayerNorm(6)),):
        layer = registered(kind(6, eps=torchs.eps))
        got, expected = (layer_grads_of("", each, x, dh, 2) for each in (layer, torchs))
        for name in ("weight", "bias"):
            each = (grads.gradient(name).materialize() for grads in (got, expected))
            torch.testing.assert_close(*each)


def test_a_norm_by_another_library_has_no_rule(monkeypatch):
    layer = timm.layers.LayerNorm(6)
    layer._fast_norm = True
    vision_layers.register(layer)
    assert not parameters_with_a_rule(layer)


@pytest.mark.parametrize("outputs", [1, 3])
def test_carriers_of_channels_that_do_not_meet_take_less_room_than_their_images(outputs):
    """A thin convolution a channel would hold rank images of each."""
    layer = nn.Conv2d(32, 32 * outputs, 3, padding=1, groups=32, bias=False)
    x = torch.randn(4, 32, 12, 12, generator=torch.Generator().manual_seed(0))
    grads = layer_grads_of("", layer, x, torch.randn(layer(x).shape))
    with Largest() as largest:
        grads.left(torch.randn(9, 9)).measured()
        grads.right(torch.randn(32 * outputs, 9)).measured()
    assert largest.numbers <= outputs * x.numel() * 14**2 / 12**2  # padded


def built(*words):
    return cli.build_parts(cli.compose([*IMAGES, *words]), torch.device("cpu")).model


@pytest.mark.parametrize("model", ["model=timm name=resnet18", "model=wrn10_1"])
def test_another_layout_is_refused_before_any_run_is_looked_up(model):
    """It is no part of an id, so that the run in the layout of before was shown for it."""
    words = [*IMAGES[:3], *model.split(), "model.channels_last=maybe", "eps=8"]
    with pytest.raises(ConfigError, match="model.channels_last to be true, .* got maybe"):
        cli.compose(words)


@pytest.mark.parametrize(
    "words",
    [
        long(("model=timm", "name=efficientnet_lite0", "model.resize=32", "model.fix=freeze")),
        ("model=torchvision", "name=mobilenet_v2", "model.resize=32", "model.fix=freeze"),
    ],
    ids=["timm", "torchvision"],
)
def test_a_librarys_network_keeps_its_images_channels_last_where_that_is_faster(words):
    laid_out, outputs = {}, {}
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for layout in ("auto", "true", "false"):
        torch.manual_seed(0)
        model, seen = built(*words, f"model.channels_last={layout}").eval(), []
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.groups > 1:
                module.register_forward_hook(lambda _, args, out, seen=seen: seen.append(out))
        outputs[layout] = model(x).detach()
        last = torch.channels_last
        laid_out[layout] = {
            each.is_contiguous(memory_format=last) for each in seen if each.shape[2:].numel() > 1
        }
    assert laid_out["true"] == {True} and laid_out["false"] == {False}
    assert laid_out["auto"] == {kernels.compiled() is not None}
    torch.testing.assert_close(outputs["true"], outputs["false"], rtol=1e-3, atol=1e-4)
