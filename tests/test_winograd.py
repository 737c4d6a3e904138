"""Convolutions by Winograd's algorithm: right for any operands, and within the context alone."""

import math
import warnings
from contextlib import ExitStack
from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from dpexp import kernels
from dpexp.grad_sample.conv2d import Conv2dGrads
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.rounding import unit
from dpexp.kernels import by_winograd, directly, fast_kernels, winograd
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.lsg import LSG
from dpexp.methods.rgp import RGP
from dpexp.models.standardized import weighed
from dpexp.models.wrn import WideResNet
from tests.methods.test_against_the_papers import step
from tests.steps import distance, flat, sums_of

pytestmark = pytest.mark.skipif(
    kernels.compiled() is None or not hasattr(torch.library, "get_kernel"),
    reason="no C compiler with OpenMP here, no AVX, or an older torch",
)
FOR_OUTPUTS = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]]).double()
FOR_KERNELS = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]).double()
FOR_INPUTS = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]).double()
"""Lavin & Gray 2016, Section 4.1, Equations 10: A', G and B'."""


def by_tiles(x, w, outputs=FOR_OUTPUTS, kernel=FOR_KERNELS, inputs=FOR_INPUTS):
    """Convolve x [n, c, h, w] by w [p, c, 3, 3] with one zero around, tile by tile, in float64."""
    h, width = x.shape[2:]
    padded = F.pad(x.double(), (1, 1 + width % 2, 1, 1 + h % 2))
    tiles = padded.unfold(2, 4, 2).unfold(3, 4, 2)  # [n, c, rows, columns, 4, 4]
    entries = inputs @ tiles @ inputs.T
    of_kernel = kernel @ w.double() @ kernel.T
    sums = torch.einsum("ncrsij,pcij->nprsij", entries, of_kernel)
    made = outputs @ sums @ outputs.T
    rows = made.permute(0, 1, 2, 4, 3, 5).flatten(4, 5).flatten(2, 3)
    return rows[:, :, :h, :width]


def most(x, w):
    """Return what rounding of one unit in every step may add up to, entry by entry.

    Of 4 inputs, 3 numbers of a kernel and 9 entries, twice each as there are two axes; of one
    product and a sum over channels.
    """
    sizes = (each.abs() for each in (FOR_OUTPUTS, FOR_KERNELS, FOR_INPUTS))
    return (x.shape[1] + 20) * unit(torch.float32) * by_tiles(x.abs(), w.abs(), *sizes)


def assert_near(actual, expected, x, w, extra=0.0):
    assert actual.dtype == torch.float32
    assert ((actual.double() - expected).abs() <= most(x, w) + extra).all()


def channels_last(*shape, seed=0):
    images = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return images.contiguous(memory_format=torch.channels_last)


def everywhere(counted=None):
    """Have every convolution that the kernels support be taken within the context."""
    patch = pytest.MonkeyPatch()
    patch.setattr(winograd, "LEAST_CHANNELS", 1)
    patch.setattr(winograd, "MOST_PRODUCTS", math.inf)
    convolved = winograd.convolved
    if counted is not None:
        patch.setattr(
            winograd, "convolved", lambda *a, **k: counted.append(a) or convolved(*a, **k)
        )
    return patch


@pytest.fixture
def taken():
    """Have every convolution that the kernels support be taken within the context; count them."""
    counted = []
    patch = everywhere(counted)
    yield counted
    patch.undo()


@pytest.fixture
def threads():
    """Set a number of threads, and the old one afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


WEIGHTS = {
    "rows": lambda w: w.contiguous(),
    "channels last": lambda w: w.contiguous(memory_format=torch.channels_last),
    "turned": lambda w: w.transpose(0, 1).contiguous().transpose(0, 1),
    "a part": lambda w: F.pad(w, (1, 0, 2, 1))[:, :, 2:-1, 1:],
    "negated lazily": lambda w: torch._neg_view(-w),
    "one kernel for all": lambda w: w[:1, :1].expand(w.shape),
}
shapes = st.tuples(st.integers(1, 4), *[st.integers(1, 9)] * 2, *[st.integers(1, 6)] * 2)


def operands(sizes, layout, seed):
    n, h, w, channels, outputs = sizes
    lanes = kernels.compiled().lanes
    channels, outputs = channels * lanes, outputs * lanes
    assume(h * w > 1)  # one position has both layouts at once
    x = channels_last(n, channels, h, w, seed=seed)
    gen = torch.Generator().manual_seed(seed + 1)
    weight = WEIGHTS[layout](torch.randn(outputs, channels, 3, 3, generator=gen))
    return x, weight, torch.randn(outputs, generator=gen)


@settings(max_examples=80, deadline=None)
@given(shapes, st.sampled_from(sorted(WEIGHTS)), st.booleans(), st.integers(0, 2**31))
def test_convolutions_are_right_to_a_bound_on_rounding(sizes, layout, has_bias, seed):
    x, weight, bias = operands(sizes, layout, seed)
    counted = []
    patch = everywhere(counted)
    try:
        with by_winograd():
            got = F.conv2d(x, weight, bias if has_bias else None, padding=1)
    finally:
        patch.undo()
    assert len(counted) == 1 and got.is_contiguous(memory_format=torch.channels_last)
    expected = F.conv2d(x.double(), weight.double(), padding=1)
    torch.testing.assert_close(by_tiles(x, weight), expected)
    if has_bias:
        expected = expected + bias.double()[:, None, None]
    assert_near(got, expected, x, weight, has_bias * unit(torch.float32) * expected.abs())


@settings(max_examples=60, deadline=None)
@given(
    shapes,
    st.sampled_from(sorted(WEIGHTS)),
    st.sampled_from([[True, a, b] for a in (True, False) for b in (True, False)]),
    st.integers(0, 2**31),
)
def test_input_gradients_are_right_and_others_are_torchs(sizes, layout, wanted, seed):
    x, weight, bias = operands(sizes, layout, seed)
    dh = channels_last(len(x), len(weight), *x.shape[2:], seed=seed + 2)

    def backward():
        rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, wanted)
        return torch.ops.aten.convolution_backward(dh, x, weight, list(bias.shape), *rest)

    counted = []
    patch = everywhere(counted)
    try:
        with by_winograd():
            here = backward()
    finally:
        patch.undo()
    assert len(counted) == 1
    turned = weight.flip(2, 3).transpose(0, 1)
    assert_near(here[0], F.conv2d(dh.double(), turned.double(), padding=1), dh, turned)
    for got, there in zip(here[1:], backward()[1:], strict=True):
        assert (got is None) == (there is None)
        assert got is None or torch.equal(got, there)


OTHERS = {
    "channels first": ((3, 16, 6, 6), (32, 16, 3, 3), {"padding": 1}),
    "a stride": ((3, 16, 6, 6), (32, 16, 3, 3), {"padding": 1, "stride": 2}),
    "a dilation": ((3, 16, 6, 6), (32, 16, 3, 3), {"padding": 1, "dilation": 2}),
    "no padding": ((3, 16, 6, 6), (32, 16, 3, 3), {}),
    "more padding": ((3, 16, 6, 6), (32, 16, 3, 3), {"padding": (1, 2)}),
    "groups": ((3, 32, 6, 6), (32, 16, 3, 3), {"padding": 1, "groups": 2}),
    "one position": ((3, 16, 1, 1), (32, 16, 3, 3), {"padding": 1}),
    "no example": ((0, 16, 6, 6), (32, 16, 3, 3), {"padding": 1}),
    "three channels": ((3, 3, 6, 6), (32, 3, 3, 3), {"padding": 1}),
    "ten outputs": ((3, 16, 6, 6), (10, 16, 3, 3), {"padding": 1}),
    "another kernel": ((3, 16, 6, 6), (32, 16, 5, 5), {"padding": 2}),
    "a row": ((3, 16, 6, 6), (32, 16, 1, 3), {"padding": (0, 1)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_taken_is_torchs_to_the_bit(taken, name):
    of_x, of_w, words = OTHERS[name]
    x, weight = torch.randn(of_x), torch.randn(of_w)
    if name != "channels first":
        x = x.contiguous(memory_format=torch.channels_last)

    def both():
        a, b = (each.clone().requires_grad_() for each in (x, weight))
        made = F.conv2d(a, b, **words)
        return made, *torch.autograd.grad(made.square().sum(), (a, b))

    with by_winograd():
        here = both()
    assert not taken
    for got, there in zip(here, both(), strict=True):
        assert torch.equal(got, there)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_torchs(taken, dtype):
    x, weight = channels_last(4, 16, 8, 8).to(dtype), torch.randn(16, 16, 3, 3).to(dtype)
    with by_winograd():
        got = F.conv2d(x, weight, padding=1)
    assert not taken and torch.equal(got, F.conv2d(x, weight, padding=1))


def test_transposed_and_other_dimensions_are_torchs(taken):
    x, weight = channels_last(4, 16, 8, 8), torch.randn(16, 16, 3, 3)
    solid = torch.randn(2, 16, 4, 4, 4), torch.randn(16, 16, 3, 3, 3)
    line = torch.randn(2, 16, 9), torch.randn(16, 16, 3)

    def all_three():
        return (
            F.conv_transpose2d(x, weight, padding=1),
            F.conv3d(*solid, padding=1),
            F.conv1d(*line, padding=1),
        )

    with by_winograd():
        here = all_three()
    assert not taken
    assert all(torch.equal(a, b) for a, b in zip(here, all_three(), strict=True))


BAD = {
    "channels": ((3, 16, 6, 6), (32, 32, 3, 3), None),
    "a bias": ((3, 16, 6, 6), (32, 16, 3, 3), 16),
    "a bias of one": ((3, 16, 6, 6), (32, 16, 3, 3), 1),
    "a dimension": ((3, 16, 6, 6), (32, 16, 3), None),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_convolved_meets_torchs_own_error(taken, name):
    of_x, of_w, of_bias = BAD[name]
    x, weight = channels_last(*of_x), torch.randn(of_w)
    bias = None if of_bias is None else torch.randn(of_bias)
    with pytest.raises(RuntimeError) as expected:
        F.conv2d(x, weight, bias, padding=1)
    with by_winograd(), pytest.raises(RuntimeError) as got:
        F.conv2d(x, weight, bias, padding=1)
    assert str(got.value) == str(expected.value) and not taken


BY_SHAPE = {  # images [n, c, h, w] and outputs, in vectors' numbers: is taken
    "few channels": ((16, 1, 8, 8), 1, lambda lanes: lanes > 16),
    "a few more": ((16, 1, 8, 8), 2, lambda lanes: lanes > 8),
    "enough": ((16, 4, 8, 8), 4, lambda lanes: True),
    "a carrier's": ((16, 8, 8, 8), 1, lambda lanes: lanes > 8),
    "tiles cut off": ((200, 4, 3, 3), 4, lambda lanes: False),
    "large kernels of small images": ((16, 32, 4, 4), 32, lambda lanes: True),
}


@pytest.mark.parametrize("name", BY_SHAPE)
def test_the_shape_of_an_image_decides_and_not_their_number(name):
    (n, c, h, w), outputs, expected = BY_SHAPE[name]
    lanes, counted = kernels.compiled().lanes, []
    weight = torch.randn(outputs * lanes, c * lanes, 3, 3)
    convolved, patch = winograd.convolved, pytest.MonkeyPatch()
    patch.setattr(winograd, "convolved", lambda *a, **k: counted.append(a) or convolved(*a, **k))
    try:
        with by_winograd():
            for number in (1, 2, n):
                F.conv2d(channels_last(number, c * lanes, h, w), weight, padding=1)
    finally:
        patch.undo()
    assert len(counted) == 3 * expected(lanes)


LAYOUTS = {
    "one after the other": lambda images: images,
    "rows of taller images": lambda images: F.pad(images, (0, 0, 1, 2))[:, :, 1:-2],
    "every second": lambda images: images.repeat_interleave(2, 0)[::2],
    "one for all": lambda images: images[:1].expand(images.shape),
}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.booleans(),
    st.integers(2, 9),
    *[st.integers(1, 5)] * 2,
    *[st.integers(2, 9)] * 2,
    st.integers(0, 2**31),
)
def test_an_images_result_has_the_same_bits_alone(
    layout, is_backwards, n, channels, outputs, h, w, seed
):
    """Of every image that is taken; oneDNN's own may differ by the number of images."""
    lanes = kernels.compiled().lanes
    x = LAYOUTS[layout](channels_last(n, channels * lanes, h, w, seed=seed))
    gen = torch.Generator().manual_seed(seed)
    shape = (channels, outputs) if is_backwards else (outputs, channels)
    weight = torch.randn(shape[0] * lanes, shape[1] * lanes, 3, 3, generator=gen)

    def made(some):
        if not is_backwards:
            return F.conv2d(some, weight, padding=1)
        images = channels_last(len(some), weight.shape[1], h, w)
        rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
        return torch.ops.aten.convolution_backward(some, images, weight, *rest)[0]

    with by_winograd():
        assume(winograd.is_taken(x, weight, outputs * lanes, winograd.SAME, 1))
        together, alone = made(x), torch.cat([made(one) for one in x.split(1)])
    assert torch.equal(alone, together)
    turned = weight.flip(2, 3).transpose(0, 1) if is_backwards else weight
    assert_near(together, F.conv2d(x.double(), turned.double(), padding=1), x, turned)


def test_within_directly_this_threads_are_torchs(taken):
    x, weight = channels_last(3, 32, 6, 6), torch.randn(32, 32, 3, 3)
    plain = F.conv2d(x, weight, padding=1)
    with by_winograd():
        with pytest.raises(ZeroDivisionError), directly():
            with directly():
                assert torch.equal(F.conv2d(x, weight, padding=1), plain)
            assert torch.equal(F.conv2d(x, weight, padding=1), plain)
            others = Thread(target=F.conv2d, args=(x, weight), kwargs={"padding": 1})
            others.start()
            others.join()
            assert len(taken) == 1
            raise ZeroDivisionError
        F.conv2d(x, weight, padding=1)
    assert len(taken) == 2


def test_norms_of_standardised_weights_are_of_sums_of_products(taken):
    """Their bound on rounding holds for any order of addition, and for nothing else."""
    at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    x, dh = channels_last(3, 32, 6, 6), channels_last(3, 32, 6, 6, seed=1)
    unit = torch.randn(32, 288, dtype=torch.float64)
    plain = weighed(Conv2dGrads(x, dh, at, ()), unit)
    with by_winograd():
        assert torch.equal(weighed(Conv2dGrads(x, dh, at, ()), unit), plain)
    assert not taken


def test_a_traced_graph_holds_torchs_operations(taken):
    layer, x = nn.Conv2d(16, 16, 3, padding=1), channels_last(2, 16, 6, 6)
    plain = layer(x)
    with by_winograd(), warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(layer, (x,), check_trace=False)
    assert not taken
    assert torch.equal(traced(x), plain)
    assert "aten::_convolution" in str(traced.inlined_graph)


MISFITS = {
    "sides": ((3, 16, 5, 6), torch.float32, [0, 0]),
    "channels": ((3, 32, 6, 6), torch.float32, [0, 0]),
    "a number of images": ((2, 16, 6, 6), torch.float32, [0, 0]),
    "a precision": ((3, 16, 6, 6), torch.float64, [0, 0]),
    "output padding": ((3, 16, 6, 6), torch.float32, [1, 0]),
    "channels first": ((3, 16, 6, 6), torch.float32, [0, 0]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_backward_pass_of_other_images_is_torchs(taken, name):
    of_x, dtype, padding = MISFITS[name]
    x = torch.randn(of_x, dtype=dtype)
    if name != "channels first":
        x = x.contiguous(memory_format=torch.channels_last)
    dh, weight = channels_last(3, 16, 6, 6), torch.randn(16, 16, 3, 3)

    def outcome():
        rest = (None, [1, 1], [1, 1], [1, 1], False, padding, 1, [True, False, False])
        try:
            found = torch.ops.aten.convolution_backward(dh, x, weight, *rest)[0]
        except RuntimeError as error:
            return str(error)
        return found.stride(), found.tolist()

    with by_winograd():
        here = outcome()
    assert not taken and here == outcome()


def test_an_images_bits_depend_on_no_other_and_not_on_threads(taken, threads):
    x, weight = channels_last(7, 32, 9, 10), torch.randn(80, 32, 3, 3)
    with by_winograd():
        together = F.conv2d(x, weight, padding=1)
        for count in (1, 2, 3):
            threads(count)
            alone = torch.cat([F.conv2d(one, weight, padding=1) for one in x.split([1, 4, 2])])
            assert torch.equal(alone, together)


def test_more_threads_than_tiles(taken, threads):
    threads(8)
    x, weight = channels_last(1, 16, 1, 2), torch.randn(16, 16, 3, 3)
    with by_winograd():
        got = F.conv2d(x, weight, padding=1)
    assert_near(got, F.conv2d(x.double(), weight.double(), padding=1), x, weight)


def test_numbers_that_are_not_finite_stay_with_their_image(taken):
    x, weight = channels_last(3, 16, 6, 6), torch.randn(16, 16, 3, 3)
    with by_winograd():
        whole = F.conv2d(x, weight, padding=1)
        x[1, 3, 2, 2] = torch.nan
        x[1, 4, 5, 5] = torch.inf
        got = F.conv2d(x, weight, padding=1)
    assert torch.equal(got[[0, 2]], whole[[0, 2]])
    reached = F.conv2d(x[1:2], weight, padding=1).isfinite().logical_not()
    assert got[1:2][reached].isfinite().logical_not().all()


def test_second_derivatives(taken):
    def found(dtype):
        x = channels_last(2, 16, 6, 6).to(dtype).requires_grad_()
        weight = torch.randn(16, 16, 3, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
        (slope,) = torch.autograd.grad(
            F.conv2d(x, weight, padding=1).pow(3).sum(), x, create_graph=True
        )
        return torch.autograd.grad(slope.square().sum(), x)[0]

    with by_winograd():
        got = found(torch.float32)
    assert len(taken) >= 3
    assert distance({"": got.double()}, {"": found(torch.float64)}) < 1e-5


def test_functions_of_many_weights_at_once(taken):
    """torch.func folds a batch of weights into groups, and a batch of images into one."""
    layer, x = nn.Conv2d(16, 16, 3, padding=1), channels_last(3, 16, 6, 6)
    values = dict(layer.named_parameters())

    def loss(of, one):
        return functional_call(layer, of, one[None]).pow(2).sum()

    with by_winograd():
        here = vmap(grad(loss), (None, 0))(values, x)
    there = vmap(grad(loss), (None, 0))(values, x)
    for name, each in there.items():
        torch.testing.assert_close(here[name], each, rtol=1e-4, atol=1e-3)


def test_contexts_within_each_other_and_left_by_an_error(taken):
    x, weight = channels_last(2, 16, 6, 6), torch.randn(16, 16, 3, 3)
    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        for context in (by_winograd(), fast_kernels()):
            stack.enter_context(context)
        F.conv2d(x, weight, padding=1)
        raise ZeroDivisionError
    assert len(taken) == 1
    F.conv2d(x, weight, padding=1)
    assert len(taken) == 1


def test_onednn_switched_off_is_off(taken):
    x, weight = channels_last(2, 16, 6, 6), torch.randn(16, 16, 3, 3)
    with torch.backends.mkldnn.flags(enabled=False), by_winograd():
        F.conv2d(x, weight, padding=1)
    assert not taken


def test_texts_need_no_compiler(monkeypatch):
    monkeypatch.setattr(winograd, "compiled", lambda: pytest.fail("compiled"))
    with fast_kernels():
        F.conv2d(torch.randn(8, 16, 32, 32), torch.randn(16, 16, 3, 3), padding=1)
        torch.randn(4, 8) @ torch.randn(8, 4)


METHODS = {
    "dpsgd": lambda: DPSGD("all", "head"),
    "rgp": lambda: RGP(16, "both", 1, 0, "update", residual=True, head_factor=1.0, head="head"),
    "left": lambda: RGP(16, "left", 1, 0, "update", residual=True, head_factor=1.0, head="head"),
    "lsg": lambda: LSG(16, 0.5, "importance", 0, 1, 1.0, "head", dataset_size=1, batch_size=1),
}


def model_of():
    torch.manual_seed(0)
    return WideResNet(10, 2, 1, True, in_channels=3, num_classes=10)


@pytest.mark.parametrize("method", METHODS)
def test_a_private_step_goes_through_it_with_the_same_gradients(taken, monkeypatch, method):
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4)
    here = step(model_of(), METHODS[method](), x, y, clip_norm=1e6).gradients
    assert taken
    monkeypatch.setattr(winograd, "_is_worth_it", lambda *_: False)
    del taken[:]
    there = step(model_of(), METHODS[method](), x, y, clip_norm=1e6).gradients
    assert not taken
    for name, gradient in there.items():
        assert distance({"": here[name]}, {"": gradient}) < 1e-4


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.floats(-3, 6), st.floats(-3, 3), st.integers(0, 2**31))
def test_an_example_moves_the_sums_by_at_most_the_clip_norm(method, log_scale, log_clip, seed):
    x = 10**log_scale * torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    counted = []
    patch = everywhere(counted)
    try:
        sums, _ = sums_of(model_of(), METHODS[method](), x, torch.tensor([3]), 10**log_clip, 1)
    finally:
        patch.undo()
    assert counted
    assert float(torch.linalg.vector_norm(flat(sums).double())) <= 10**log_clip * (1 + 1e-7)
