"""Every layer rule against torch.func and Opacus, in float64, over random shapes."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.func import functional_call, grad, vmap

from dpexp.grad_sample import Tape
from dpexp.grad_sample.chunks import BUDGET_BYTES
from dpexp.grad_sample.conv2d import Conv2dWeight, _is_grouped_faster, kernel_gradients
from dpexp.grad_sample.embedding import EmbeddingWeight
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.linear import LinearWeight
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from tests.runs import total_of

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
MANY = settings(max_examples=60, deadline=None)
small = st.integers(1, 4)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
seeds = st.integers(0, 2**31)


@st.composite
def convolutions(draw):
    """Draw a convolution and the size of an image that it fits."""
    groups, kernel, stride, dilation = draw(st.integers(1, 3)), *(draw(pairs) for _ in range(3))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    image = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    for axis in (0, 1):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        assume(image[axis] + 2 * padding[axis] >= reach)
    layer = nn.Conv2d(
        groups * draw(small),
        groups * draw(small),
        kernel,
        stride,
        padding,
        dilation,
        groups,
        bias=draw(st.booleans()),
        dtype=torch.float64,
    )
    return layer, image


def random_like(tensor, seed):
    return torch.randn(
        tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def hooked(layer, x, direction):
    """Run the tape on one layer, whose loss is <direction, output>."""
    caught = []
    model = nn.Sequential(layer)
    with Tape(
        model,
        [name for name, _ in model.named_parameters()],
        lambda _, layer_grads: caught.append(layer_grads),
    ) as tape:
        tape.expect(len(x))
        (model(x) * direction).sum().backward()
        tape.check_complete()
    if len(caught) == 1:
        return caught[0]
    of = {own: each for each in caught for own in each.parameters}  # matrices come one by one
    return SimpleNamespace(parameters=(*of,), gradient=lambda own: of[own].gradient(own))


def per_example_by_torch_func(layer, x, direction):
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights, x_i, direction_i):
        return (functional_call(layer, weights, (x_i[None],)) * direction_i[None]).sum()

    return vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, direction)


def per_example_by_opacus(layer, x, direction):
    module = GradSampleModule(layer, loss_reduction="sum")
    (module(x) * direction).sum().backward()
    each = {name: p.grad_sample.detach().clone() for name, p in layer.named_parameters()}
    module.to_standard_module()
    layer.zero_grad()
    return each


def assert_norms_close(grads, got, expected):
    """Equal to 1e-9, but for what is added on purpose against rounding."""
    slack = torch.zeros_like(expected)
    if isinstance(grads, FactoredGrads):
        shifts = len(grads.rule.at.shifts()) if isinstance(grads.rule, Conv2dWeight) else 1
        x = grads.x if grads.x.is_floating_point() else torch.ones_like(grads.x)
        energies = [each.flatten(1).double().square().sum(1) for each in (x, grads.dh)]
        slack = 1e-11 * shifts * energies[0] * energies[1]
    assert ((got - expected).abs() <= 1e-9 * expected + 1e-11 + slack).all()
    assert (got >= expected * (1 - 1e-13)).all()


def assert_rule_holds(
    layer, x, seed, references=(per_example_by_torch_func, per_example_by_opacus)
):
    layer = layer.double()
    direction = random_like(layer(x), seed)
    weights = random_like(torch.empty(len(x)), seed + 1).abs()
    expected = [reference(layer, x, direction) for reference in references]
    layer_grads = hooked(layer, x, direction)
    assert set(layer_grads.parameters) == {name for name, _ in layer.named_parameters()}
    for name, parameter in layer.named_parameters():
        grads = layer_grads.gradient(name)
        total = total_of(grads, weights).view_as(parameter)
        for each in (reference[name] for reference in expected):
            norms = each.flatten(1).square().sum(1)
            assert_norms_close(grads, grads.norms_squared(), norms)
            measured, held = grads.measured()
            assert_norms_close(grads, measured.squares, norms)
            torch.testing.assert_close(total_of(held, weights).view_as(parameter), total, **CLOSE)
            torch.testing.assert_close(total, torch.tensordot(weights, each, dims=1), **CLOSE)
            plain = total_of(grads, None).view_as(parameter)
            torch.testing.assert_close(plain, each.sum(0), **CLOSE)
            torch.testing.assert_close(grads.materialize().view_as(each), each, **CLOSE)
            if isinstance(grads, FactoredGrads):  # whose gradients may be edited
                before = grads.x.clone(), grads.dh.clone()
                grads.materialize().fill_(9)
                assert torch.equal(grads.x, before[0]) and torch.equal(grads.dh, before[1])
        if name == "weight" and isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv1d):
            assert_low_rank_holds(layer_grads, expected[0][name].flatten(2), seed)
            assert_rows_and_columns_hold(
                layer_grads, expected[0][name].flatten(2), layer.weight.shape[1], seed
            )


def assert_rows_and_columns_hold(layer_grads, each, inputs, seed):
    """Some rows of dL_i and some inputs' columns of dR_i, each with its whole kernel."""
    p, d = each.shape[1:]
    left, right = random_like(torch.empty(p, 2), seed + 2), random_like(torch.empty(2, d), seed + 3)
    gen = torch.Generator().manual_seed(seed)
    rows = torch.randperm(p, generator=gen)[: (p + 1) // 2]
    columns = torch.randperm(inputs, generator=gen)[: (inputs + 1) // 2]
    d_left = layer_grads.left(right, rows).materialize()
    torch.testing.assert_close(d_left, (each @ right.T)[:, rows], **CLOSE)
    d_right = layer_grads.right(left, columns).materialize()
    expected = (left.T @ each).unflatten(2, (inputs, -1))[:, :, columns].flatten(2)
    torch.testing.assert_close(d_right, expected, **CLOSE)


def assert_low_rank_holds(layer_grads, each, seed):
    """Theorem 2.1: dL_i = dW_i R^T and dR_i = L^T dW_i."""
    p, d = each.shape[1:]
    left, right = random_like(torch.empty(p, 2), seed + 2), random_like(torch.empty(2, d), seed + 3)
    torch.testing.assert_close(layer_grads.left(right).materialize(), each @ right.T, **CLOSE)
    torch.testing.assert_close(layer_grads.right(left).materialize(), left.T @ each, **CLOSE)


@MANY
@given(convolutions(), small, seeds)
def test_conv2d(drawn, n, seed):
    layer, image = drawn
    x = random_like(torch.empty(n, layer.in_channels, *image), seed)
    assert_rule_holds(layer, x, seed)


@MANY
@given(convolutions(), small, seeds)
def test_conv2d_with_channels_last(drawn, n, seed):
    layer, image = drawn
    x = random_like(torch.empty(n, layer.in_channels, *image), seed)
    x = x.contiguous(memory_format=torch.channels_last)
    # Opacus 1.6 reads such inputs in the wrong order.
    assert_rule_holds(layer, x, seed, references=(per_example_by_torch_func,))


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_conv2d_with_same_padding(kernel):
    layer = nn.Conv2d(2, 3, kernel, padding="same", dilation=2)
    x = random_like(torch.empty(2, 2, 6, 5), kernel)
    assert_rule_holds(layer, x, kernel, references=(per_example_by_torch_func,))


@MANY
@given(convolutions(), small, seeds)
def test_conv2d_norm_is_the_same_by_gram_and_by_kernel(drawn, n, seed):
    layer, image = drawn
    x = random_like(torch.empty(n, layer.in_channels, *image), seed)
    outer = hooked(layer, x, random_like(layer(x), seed)).gradient("weight")
    rule, at = outer.rule, outer.rule.at
    assert isinstance(rule, Conv2dWeight)
    folded = at.fold(outer.x), at.fold(outer.dh)
    expected = rule.materialize(outer.x, outer.dh).flatten(1).square().sum(1)
    for form in (rule.size_by_gram, rule._by_forming):
        assert_norms_close(outer, at.unfold(form(*folded).squares).sum(1), expected)


@MANY
@given(st.lists(st.integers(1, 5), max_size=2), small, small, small, st.booleans(), seeds)
def test_linear(positions, n, d, p, has_bias, seed):
    layer = nn.Linear(d, p, bias=has_bias)
    assert_rule_holds(layer, random_like(torch.empty(n, *positions, d), seed), seed)


@pytest.mark.parametrize("t", [2, 40])
def test_linear_norm_is_the_same_by_gram_and_by_kernel(t):
    x, dh = random_like(torch.empty(3, t, 9), 0), random_like(torch.empty(3, t, 7), 1)
    direct = torch.einsum("ntp,ntd->npd", dh, x).square().sum((1, 2))
    torch.testing.assert_close(LinearWeight().size(x, dh).squares, direct, **CLOSE)


@MANY
@given(st.integers(2, 6), small, small, st.integers(1, 6), st.booleans(), seeds)
def test_embedding(rows, d, n, t, has_padding, seed):
    layer = nn.Embedding(rows, d, padding_idx=1 if has_padding else None)
    tokens = torch.randint(rows, (n, t), generator=torch.Generator().manual_seed(seed))
    assert_rule_holds(layer, tokens, seed, references=(per_example_by_torch_func,))
    if not has_padding:  # Opacus gives the padding row a gradient, autograd does not
        assert_rule_holds(layer, tokens, seed, references=(per_example_by_opacus,))


@MANY
@given(st.lists(small, max_size=2), st.lists(small, min_size=1, max_size=2), small, seeds)
def test_layer_norm(positions, shape, n, seed):
    layer = nn.LayerNorm(shape)
    nn.init.normal_(layer.weight)
    assert_rule_holds(layer, random_like(torch.empty(n, *positions, *shape), seed), seed)


@MANY
@given(st.lists(small, max_size=2), st.lists(small, min_size=1, max_size=2), small, seeds)
def test_rms_norm(positions, shape, n, seed):
    layer = nn.RMSNorm(shape)
    nn.init.normal_(layer.weight)
    x = random_like(torch.empty(n, *positions, *shape), seed)
    assert_rule_holds(layer, x, seed, references=(per_example_by_torch_func,))


@MANY
@given(convolutions(), small, seeds)
def test_conv1d(drawn, n, seed):
    """Of the same draws as the two-dimensional ones, their columns alone."""
    layer, (_, length) = drawn
    along = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    sizes = [pair[1] for pair in along]
    has_bias = layer.bias is not None
    layer = nn.Conv1d(
        layer.in_channels, layer.out_channels, *sizes, groups=layer.groups, bias=has_bias
    )
    x = random_like(torch.empty(n, layer.in_channels, length), seed)
    assert_rule_holds(layer, x, seed)


@pytest.mark.parametrize("kernel", [2, 3])
def test_conv1d_with_same_padding(kernel):
    layer = nn.Conv1d(2, 3, kernel, padding="same", dilation=2)
    x = random_like(torch.empty(3, 2, 7), 0)
    assert_rule_holds(layer, x, 1, references=(per_example_by_torch_func,))


@st.composite
def of_axes(draw, kinds):
    """Draw a convolution along some axes, transposed or not, and an input that it fits."""
    kind, axes = draw(st.sampled_from(kinds))
    sizes = st.lists(st.integers(1, 3), min_size=axes, max_size=axes).map(tuple)
    groups, kernel, stride, dilation = draw(st.integers(1, 2)), *(draw(sizes) for _ in range(3))
    padding = draw(st.lists(st.integers(0, 1), min_size=axes, max_size=axes).map(tuple))
    is_transposed = "Transpose" in kind.__name__
    more = {}
    if is_transposed:
        more["output_padding"] = tuple(
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
        )
    layer = kind(
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride,
        padding,
        groups=groups,
        bias=draw(st.booleans()),
        dilation=dilation,
        **more,
    )
    positions = [draw(st.integers(1, 4)) for _ in range(axes)]
    for axis in range(axes):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        if is_transposed:
            length = (positions[axis] - 1) * stride[axis] - 2 * padding[axis] + reach
            assume(length + more["output_padding"][axis] >= 1)
        else:
            assume(positions[axis] + 2 * padding[axis] >= reach)
    return layer, positions


AXES = [
    (nn.Conv3d, 3),
    (nn.ConvTranspose1d, 1),
    (nn.ConvTranspose2d, 2),
    (nn.ConvTranspose3d, 3),
]


@MANY
@given(of_axes(AXES), small, seeds)
def test_convolutions_along_three_axes_and_transposed_ones(drawn, n, seed):
    layer, positions = drawn
    x = random_like(torch.empty(n, layer.in_channels, *positions), seed)
    assert_rule_holds(layer, x, seed, references=(per_example_by_torch_func,))


@pytest.mark.parametrize("kernel", [2, 3])
def test_conv3d_with_same_padding(kernel):
    layer = nn.Conv3d(2, 3, kernel, padding="same")
    x = random_like(torch.empty(3, 2, 4, 3, 5), 0)
    assert_rule_holds(layer, x, 1, references=(per_example_by_torch_func,))


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_other_padding_takes_torch_func(kind, mode):
    axes = int(kind.__name__[4])
    if axes == 3 and mode == "reflect":
        pytest.skip("torch has no batching rule for it")
    layer = kind(2, 3, 3, padding=1, padding_mode=mode)
    x = random_like(torch.empty(3, 2, *[4] * axes), 0)
    assert_rule_holds(layer, x, 1, references=(per_example_by_torch_func,))


@MANY
@given(st.integers(1, 3), st.integers(2, 3), st.lists(st.integers(2, 4), max_size=2), small, seeds)
def test_group_norm(groups, channels, positions, n, seed):
    layer = nn.GroupNorm(groups, groups * channels)
    nn.init.normal_(layer.weight)
    x = random_like(torch.empty(n, groups * channels, *positions), seed)
    assert_rule_holds(layer, x, seed)


def test_a_right_carrier_is_held_as_the_smaller_of_the_two():
    """Formed, it is 16 x 64 x 9 numbers an example; its parts are 80 numbers a pixel."""
    for pixels, held in ((4 * 4, FactoredGrads), (16 * 16, MaterializedGrads)):
        side = int(pixels**0.5)
        layer = nn.Conv2d(64, 64, 3, padding=1).double()
        x = random_like(torch.empty(2, 64, side, side), 0)
        layer_grads = hooked(layer, x, random_like(layer(x), 1))
        grads = layer_grads.right(random_like(torch.empty(64, 16), 2))
        size, kept = grads.measured()
        assert type(kept) is held
        assert_norms_close(grads, size.squares, grads.materialize().flatten(1).square().sum(1))


def test_slices_of_examples_give_what_the_whole_batch_gives():
    layer = nn.Conv2d(16, 32, 3, padding=1, stride=2).double()
    x = random_like(torch.empty(65, 16, 32, 32), 0)
    assert x.nbytes > 2 * BUDGET_BYTES["cpu"]  # three slices, or more
    whole = hooked(layer, x, random_like(layer(x), 1))
    for grads in (whole.gradient("weight"), whole.right(random_like(torch.empty(32, 2), 2))):
        expected = grads.materialize().flatten(1).square().sum(1)
        torch.testing.assert_close(grads.norms_squared(), expected, **CLOSE)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 2, 2)])
def test_kernels_in_float32_are_the_same_by_groups_and_by_shifts(stride, padding, dilation):
    """The CPU's fast path, which float64 does not take."""
    at = Geometry((3, 3), (stride, stride), (padding, padding), (dilation, dilation), 1)
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(3, 12, 17, 17, generator=gen)
    size = len(range(0, 17 + 2 * padding - 2 * dilation, stride))
    dh = torch.randn(3, 16, size, size, generator=gen)
    assert _is_grouped_faster(dh, 12)
    fast = kernel_gradients(x, dh, at)
    slow = kernel_gradients(x.double(), dh.double(), at)
    torch.testing.assert_close(fast.double(), slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("layer", ["linear", "conv", "embedding"])
def test_float32_norms_bound_gradients_whose_terms_cancel(layer, offset):
    """A Gram form subtracts large numbers; what rounding takes must not weaken the clip."""
    gen = torch.Generator().manual_seed(0)
    n, t = 200, 9
    dh = torch.randn(n, t, 48, generator=gen)
    dh = dh - dh.mean(1, keepdim=True)
    if layer == "linear":
        x = offset + torch.randn(n, t, 64, generator=gen)
        outer = FactoredGrads(LinearWeight(), x, dh)
        true = torch.einsum("ntp,ntd->npd", dh.double(), x.double())
    elif layer == "conv":
        x = offset + torch.randn(n, 64, 3, 3, generator=gen)
        at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
        dh = dh.mT.reshape(n, 48, 3, 3)
        outer = FactoredGrads(Conv2dWeight(at), x, dh)
        true = kernel_gradients(x.double(), dh.double(), at)
    else:
        x = torch.zeros(n, t, dtype=torch.long)
        dh = offset * dh
        outer = FactoredGrads(EmbeddingWeight(5), x, dh)
        true = dh.double().sum(1)
    assert (true.flatten(1).square().sum(1) <= outer.norms_squared()).all()
