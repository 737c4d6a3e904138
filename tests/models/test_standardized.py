"""Standardised weights: what they are, and every example's gradient through them."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis.strategies import booleans
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import dpexp
from dpexp import cli
from dpexp.grad_sample.per_example import MaterializedGrads, size_by_forming
from dpexp.grad_sample.repeated import repeated
from dpexp.grad_sample.rounding import TERMS, size_of_held
from dpexp.grad_sample.rules import layer_grads_of
from dpexp.methods.dp_lora import DPLoRA
from dpexp.models.adapters import adapter_parameters, merged
from dpexp.models.standardized import (
    GainedConv2d,
    StandardizedConv2d,
    of_standardized,
    standardize,
    standardized,
)
from dpexp.models.wrn_standardized import StandardizedWRN
from dpexp.types import ConfigError
from tests.grad_sample.test_rules import (
    assert_rule_holds,
    convolutions,
    per_example_by_torch_func,
    random_like,
    seeds,
    small,
)
from tests.marks import few
from tests.runs import CONFIGS, one_thread  # noqa: F401 (a fixture)
from tests.steps import CPU, rgp, sums_of

LAYERS = {
    "plain": lambda: StandardizedConv2d(3, 4, 3, padding=1, bias=False),
    "gain and bias": lambda: GainedConv2d(3, 4, 3, padding=1),
    "strided": lambda: GainedConv2d(2, 6, 3, stride=2, padding=1),
    "one by one": lambda: GainedConv2d(5, 2, 1, stride=2),
    "grouped": lambda: StandardizedConv2d(4, 6, 3, groups=2, padding="same"),
    "padded otherwise": lambda: StandardizedConv2d(3, 4, 3, padding=1, padding_mode="circular"),
}


def layer_of(kind, size=1.0):
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    with torch.no_grad():
        layer.weight.normal_(1.0).mul_(size)
        for name, each in layer.named_parameters():
            if name != "weight":
                each.normal_()
    return layer


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4, 0.0])  # 1e-4: s is at its least value
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "otherwise" not in kind])
def test_every_examples_gradient_is_torch_funcs(kind, size):
    layer = layer_of(kind, size)
    x = random_like(torch.empty(3, layer.in_channels, 5, 6), 1)
    assert_rule_holds(layer, x, 2, references=(per_example_by_torch_func,))


@settings(max_examples=50, deadline=None)
@given(convolutions(), small, seeds, booleans())
def test_any_convolution_may_standardise_its_weights(drawn, n, seed, has_gain):
    layer, image = drawn
    assume(layer.weight[0].numel() > 2)  # else nothing is left of a gradient but its rounding
    layer.__class__ = StandardizedConv2d
    if has_gain:  # whose gradient shares what it needs with the weight's
        layer.__class__ = GainedConv2d
        layer.gain = nn.Parameter(random_like(layer.weight[:, 0, 0, 0], 9))
    x = random_like(torch.empty(n, layer.in_channels, *image), seed)
    assert_rule_holds(layer, x, seed, references=(per_example_by_torch_func,))


def wide_layer():
    """Each kernel has 576 numbers, over which a projection's two inner products run."""
    torch.manual_seed(0)
    return StandardizedConv2d(64, 8, 3, padding=1, bias=False)


def seen_by_it():
    """Three examples' inputs and output gradients."""
    return torch.randn(3, 64, 8, 8), torch.randn(3, 8, 8, 8)


def test_a_wide_kernel_is_no_reason_to_sum_an_example_apart():
    """An example whose terms cancel is summed in float64. Long inner products are no such terms."""
    layer = wide_layer()
    grads = of_standardized(layer, *seen_by_it()).gradient("weight")
    formed, gram = (
        size(grads.x, grads.dh)
        for size in (partial(size_by_forming, grads.rule), grads.rule.size_by_gram)
    )
    torch.testing.assert_close(formed.energy, gram.energy, rtol=1e-3, atol=0)
    exact = grads.double().materialize().flatten(1).square().sum(1)
    for size in (formed, gram):
        assert (size.squares >= exact).all()


@pytest.mark.parametrize("form", [lambda grads: grads, lambda grads: repeated(grads, 3)])
def test_the_roundings_of_what_is_formed_are_in_its_bound(form):
    """The bound is above |G| by twice the roundings of its sums and of the projection's."""
    grads = form(of_standardized(wide_layer(), *seen_by_it()).gradient("weight"))
    terms = grads.rule.terms(grads.x, grads.dh)
    assert terms.roundings == 2 * 576 + 32
    norm = size_of_held(grads.materialize()).squares.sqrt()
    least = 2 * (TERMS + 2 * 576 + 32) * 2**-24 * terms.energy.sqrt()
    bound = size_by_forming(grads.rule, grads.x, grads.dh).squares.sqrt()
    assert (bound - norm >= 0.999 * least).all()


def test_a_sum_is_projected_in_float64_and_rounded_once():
    layer = wide_layer()
    x, dh = seen_by_it()
    rule = of_standardized(layer, x, dh).gradient("weight").rule
    added, total = torch.zeros(8, 64, 3, 3), torch.zeros(8, 64, 3, 3)
    rule.add_to(total, x, dh)
    rule.used.add_to(added, x, dh)
    exact = rule.projection.of(added.double().flatten(1)).view_as(added)
    assert torch.equal(total, exact.float())


def test_a_rows_weights_have_mean_zero_and_norm_one_or_less():
    layer = layer_of("plain").double()
    unit = standardized(layer.weight)[0].flatten(1)
    torch.testing.assert_close(unit.mean(1), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(4).double())
    literal = layer.weight - layer.weight.mean((1, 2, 3), keepdim=True)
    literal = literal / (27 * layer.weight.var((1, 2, 3), unbiased=False, keepdim=True)).sqrt()
    torch.testing.assert_close(standardized(layer.weight)[0], literal)
    assert standardized(1e-9 * layer.weight)[0].norm() < 1e-5  # no division by what is nearly zero


def net(name):
    torch.manual_seed(0)
    if name == "wrn16_4":
        return StandardizedWRN(10, 1, 4, False, 1, 10).double()
    words = ["method=dpsgd", "task=digits", f"model={name}", "model.weight_standardization=true"]
    words += ["model.depth=8"] if name == "resnet20" else []
    return cli.build_parts(cli.compose(words), CPU).model.double()


def gradients_of(model, x, y):
    """Every example's gradients by torch.func, by name."""
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights, x, y):
        return F.cross_entropy(functional_call(model, weights, x[None]), y[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)


@pytest.mark.parametrize("name", few(["wrn10_1", "resnet20", "wrn16_4"], ["wrn10_1"]))
def test_a_networks_clipped_sum_is_torch_funcs_and_so_are_its_carriers(name):
    model = net(name)
    x, y = random_like(torch.empty(4, 1, 8, 8), 3), torch.tensor([3, 1, 4, 1])
    grads = gradients_of(model, x, y)
    assert any(isinstance(each, StandardizedConv2d) for each in model.modules())
    assert not any(type(each) is nn.Conv2d for each in model.modules())
    norms = sum(each.flatten(1).square().sum(1) for each in grads.values()).sqrt()
    clip_norm = float(norms.median())
    weights = (clip_norm / norms).clamp(max=1)
    config = cli.compose(["method=dpsgd", "task=digits", "model=wrn10_1"])
    sums, _ = sums_of(model, cli.build_parts(config, CPU).method, x, y, clip_norm, 3)
    for key, total in sums.items():
        expected = torch.einsum("n,n...->...", weights, grads[key.parameter])
        torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-6 * clip_norm)
    # Unclipped: RGP's sums are the weights' gradients times its carriers.
    method = rgp(2, head_factor=1.0)
    sums, outcome = sums_of(model, method, x, y, 1e9, 3)
    carriers = {key: block for key, block in sums.items() if key.part != "full"}
    assert {key.part for key in carriers} == {"left", "right"}
    for key, block in carriers.items():
        total = grads[key.parameter].sum(0).flatten(1)
        left, right = (outcome.state[side][key.parameter] for side in ("left", "right"))
        expected = total @ right.T if key.part == "left" else left.T @ total
        torch.testing.assert_close(block.view_as(expected), expected, rtol=1e-5, atol=1e-6)


def test_an_adapter_is_of_the_weight_that_is_standardised():
    method = DPLoRA(2, 2.0, "*", "head")
    model = method.adapt(net("wrn10_1"))
    torch.manual_seed(1)
    for name in adapter_parameters(model):
        nn.init.normal_(model.get_parameter(name), std=0.2)
    x, y = random_like(torch.empty(3, 1, 8, 8), 3), torch.tensor([3, 1, 4])
    grads = gradients_of(model, x, y)
    sums, _ = sums_of(model, method, x, y, 1e9, 3)
    assert any(".parametrizations.weight.0.lora_B" in key.parameter for key in sums)
    for key, total in sums.items():
        torch.testing.assert_close(total, grads[key.parameter].sum(0), rtol=1e-9, atol=1e-11)
    whole = merged(model)
    torch.testing.assert_close(whole(x), model(x))
    assert {type(each) for each in whole.modules() if isinstance(each, nn.Conv2d)} == {
        StandardizedConv2d
    }


def test_a_run_is_trained_verified_and_named_for_it(tmp_path):
    words = ["method=lsg", "task=digits", "profile=embedded", "model=wrn10_1", "device=cpu"]
    words += ["model.stem_stride=2", "epochs=0.1", f"results={tmp_path}"]
    run = dpexp.run(*words, "model.weight_standardization=true")
    assert "weight_standardization=True" in run.config["model"]["name"]
    said = CONFIGS.compose_anew([*words, "model.weight_standardization=false"])
    assert said == CONFIGS.compose_anew(words) and "weight_standardization" not in said["model"]
    assert any(type(each) is StandardizedConv2d for each in run.model.modules())


class Convolutions(TorchDispatchMode):
    """Counts convolutions that are as dear as the layer's own, and gradients of kernels."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs, self.forward, self.kernels = outputs, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default and len(args[1]) == self.outputs:
            self.forward += 1
        self.kernels += func is torch.ops.aten.convolution_backward.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "shape, is_formed",
    [((3, 8, 9), True), ((3, 8, 2), False)],  # by a size of images; the second takes the Gram form
)
@pytest.mark.parametrize("size", [1.0, 1e-4])
@pytest.mark.parametrize("order", [("weight", "gain"), ("gain", "weight")])
def test_weight_and_gain_share_what_both_need(shape, is_formed, size, order):
    inputs, outputs, side = shape
    torch.manual_seed(0)
    layer = GainedConv2d(inputs, outputs, 3, padding=1)
    with torch.no_grad():
        layer.weight.normal_(1.0).mul_(size)
        layer.gain.normal_()
        layer.gain[0] = 0.0
    x = random_like(torch.empty(4, inputs, side, side), 1).float()
    dh = random_like(layer(x), 2).float()
    each = per_example_by_torch_func(layer, x, dh)
    grads = of_standardized(layer, x, dh)
    with Convolutions(outputs) as counted:
        blocks = {name: grads.gradient(name) for name in order}
        found, held = blocks["weight"].measured()
    assert isinstance(held, MaterializedGrads) == is_formed
    assert counted.forward == (0 if is_formed else 1) and counted.kernels == is_formed
    torch.testing.assert_close(blocks["gain"].materialize(), each["gain"])
    most = 1e-6 * float(each["weight"].abs().max())
    torch.testing.assert_close(held.materialize(), each["weight"], rtol=1e-5, atol=most)
    squares = each["weight"].double().flatten(1).square().sum(1)
    assert (found.squares >= squares * (1 - 1e-6)).all()
    torch.testing.assert_close(found.squares, squares, rtol=1e-2, atol=1e-9)
    # What is picked out, or made double, is of other tensors, and found anew.
    some = blocks["weight"].select(torch.tensor([True, False, True, True]))
    torch.testing.assert_close(
        some.measured()[1].materialize(), each["weight"][[0, 2, 3]], rtol=1e-5, atol=most
    )
    torch.testing.assert_close(some.norms_squared(), squares[[0, 2, 3]], rtol=1e-2, atol=1e-9)
    exact = blocks["weight"].double().norms_squared()
    torch.testing.assert_close(exact, squares, rtol=1e-4, atol=1e-9)


def test_views_of_an_example_add_up():
    layer = layer_of("gain and bias").double()
    x = random_like(torch.empty(6, 3, 5, 5), 1)
    direction = random_like(layer(x), 2)
    each = per_example_by_torch_func(layer, x, direction)
    grads = layer_grads_of("layer", layer, x, direction, rows=2)
    for name in ("weight", "gain", "bias"):
        pairs = each[name][::2] + each[name][1::2]
        torch.testing.assert_close(grads.gradient(name).materialize(), pairs)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("model=wrn10_1 model.weight_standardization=maybe", "to be true or false; got maybe"),
        ("model=wrn10_1 model.weight_standardisation=true", "weight_standardization"),
        ("model=linear model.weight_standardization=true", "weight_standardization"),
        ("model=wrn16_4 model.groups=5", "model.groups of 1, 2, 4, 8 or 16"),
        ("model=wrn16_4 model.depth=15", "depth of 6 b"),
        ("model=wrn40_4 model.width=0", "model.width >= 1"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    said = ["method=dpsgd", "task=digits", "profile=embedded", "device=cpu", *words.split()]
    with pytest.raises(Exception, match=line) as refused:
        dpexp.run(*said, f"results={tmp_path}")
    assert isinstance(refused.value, ConfigError) and "\n" not in str(refused.value)


def test_a_model_without_convolutions_is_refused():
    with pytest.raises(ConfigError, match="has none"):
        standardize(nn.Linear(2, 2))
