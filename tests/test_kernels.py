"""Our own kernels against literal float64, and what becomes of them without a compiler."""

import logging
import os
import sys
import tempfile
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp import kernels
from dpexp.grad_sample.conv2d import Conv2dWeight
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.per_example import FactoredGrads, MaskedGrads, MaterializedGrads
from dpexp.grad_sample.rounding import LONG, size_of_squares
from dpexp.kernels.kernel_gradients import (
    are_taken,
    depthwise_gradients,
    kept_squares,
    kernel_gradients,
)
from dpexp.kernels.norm_relu import norm_relu
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.lsg import LSG
from dpexp.methods.rgp import RGP
from dpexp.models.wrn import WideResNet
from tests.marks import some_long
from tests.methods.test_against_the_papers import step
from tests.steps import distance, flat, sums_of
from tests.test_per_example import Largest

pytestmark = pytest.mark.skipif(
    kernels.compiled() is None, reason="no C compiler with OpenMP here, or no AVX"
)
MANY = settings(max_examples=60, deadline=None)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
LOOSE = 1e6  # a clip norm that leaves room: how much of it rounding may take differs by layout
ROUNDING = 1e-5  # of the largest number: float32 has 6e-8, and sums here have 2,500 terms at most


def channels_last(*shape, seed=0):
    images = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return images.contiguous(memory_format=torch.channels_last)


def assert_near(actual, expected):
    error = (actual.double() - expected).abs().max()
    assert error <= ROUNDING * expected.abs().max(), error


def by_patches(x, dh, kernel, stride, padding, dilation):
    """Sum dh_i times the patch under it, position by position, in float64."""
    x, dh = x.double(), dh.double()
    patches = F.unfold(x, kernel, dilation, padding, stride)
    grads = torch.einsum("nps,nds->npd", dh.flatten(2), patches)
    return grads.view(len(x), dh.shape[1], x.shape[1], *kernel)


@MANY
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 5]),
    st.integers(1, 19),
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    *[pairs] * 3,
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(0, 2**31),
)
def test_kernel_gradients_are_those_of_the_patches(
    m, vectors, p, image, kernel, stride, dilation, padding, seed
):
    x = channels_last(m, vectors * kernels.compiled().lanes, *image, seed=seed)
    for axis in (0, 1):
        assume(image[axis] + 2 * padding[axis] > dilation[axis] * (kernel[axis] - 1))
    at = (kernel, stride, padding, dilation)
    outputs = F.conv2d(x[:, :1], torch.zeros(1, 1, *kernel), None, *at[1:]).shape[2:]
    dh = channels_last(m, p, *outputs, seed=seed + 1)
    assume(are_taken(x, dh, kernel))
    assert_near(kernel_gradients(x, dh, *at), by_patches(x, dh, *at))


@MANY
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 5]),
    st.integers(1, 19),
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    *[pairs] * 3,
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from([1e-15, 1.0, 1e6]),
    st.integers(0, 2**31),
)
def test_the_norms_of_kept_entries_are_those_of_the_gradients(
    m, vectors, p, image, kernel, stride, dilation, padding, share, scale, seed
):
    x = channels_last(m, vectors * kernels.compiled().lanes, *image, seed=seed)
    for axis in (0, 1):
        assume(image[axis] + 2 * padding[axis] > dilation[axis] * (kernel[axis] - 1))
    at = (kernel, stride, padding, dilation)
    outputs = F.conv2d(x[:, :1], torch.zeros(1, 1, *kernel), None, *at[1:]).shape[2:]
    dh = scale * channels_last(m, p, *outputs, seed=seed + 1)
    assume(are_taken(x, dh, kernel))
    each = by_patches(x, dh, *at).flatten(1)
    is_kept = torch.rand(each.shape[1], generator=torch.Generator().manual_seed(seed)) < share
    is_kept[seed % len(is_kept)] = True
    got = kept_squares(x, dh, is_kept, *at)
    assert got.dtype == torch.float64
    formed = (kernel_gradients(x, dh, *at).flatten(1).double() * is_kept).square().sum(1)
    torch.testing.assert_close(got, formed, rtol=1e-5, atol=1e-40 * each.shape[1])
    assert (size_of_squares(got, each.shape[1], torch.float32).squares >= formed).all()
    bound = MaskedGrads(
        FactoredGrads(Conv2dWeight(Geometry(*at, 1)), x, dh), is_kept, each.shape[1:]
    )
    size, held = bound.measured()
    added = (each * is_kept).square().sum(1)
    if isinstance(held, MaterializedGrads):  # added as it is, its rounding included
        added = held.values.double().square().sum(1)
    assert (size.squares >= added).all()


def test_norms_of_kept_entries_are_of_sums_that_their_bound_allows():
    assert kernels.compiled().most_squares <= LONG
    x, dh = channels_last(1, 16, 2, 2), channels_last(1, 8, 2, 2, seed=1)
    with torch.device("meta"):  # which a caller may have set for tensors of its own
        assert kept_squares(x, dh, torch.ones(128, dtype=torch.bool, device="cpu"), (1, 1)) > 0


def test_norms_of_kept_entries_take_no_memory_of_gradients():
    """Of 256 x 256 channels every example's gradient is 2.4 MB; only one would be written."""
    x, dh = channels_last(6, 256, 4, 4), channels_last(6, 256, 4, 4, seed=1)
    rule = Conv2dWeight(Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1))
    is_kept = torch.arange(256 * 256 * 9) % 2 == 0
    with Largest() as largest:
        size, held = MaskedGrads(FactoredGrads(rule, x, dh), is_kept, (256, 256, 3, 3)).measured()
    assert isinstance(held, MaskedGrads) and largest.numbers <= 256 * 256 * 9
    entries = rule.materialize(x, dh).flatten(1)[:, is_kept].double()
    assert (size.squares >= entries.square().sum(1)).all()
    torch.testing.assert_close(size.squares, entries.square().sum(1), rtol=1e-2, atol=0)


def test_kernel_gradients_of_images_of_several_blocks():
    x, dh = channels_last(2, 32, 50, 51), channels_last(2, 5, 50, 51, seed=1)
    at = ((3, 3), (1, 1), (1, 1), (1, 1))
    assert_near(kernel_gradients(x, dh, *at), by_patches(x, dh, *at))
    wide, thin = channels_last(1, 32, 1, 2500), channels_last(1, 5, 1, 2500, seed=1)
    at = ((1, 1), (1, 1), (0, 0), (1, 1))
    assert_near(kernel_gradients(wide, thin, *at), by_patches(wide, thin, *at))


LAYOUTS = {
    "channels last": lambda x: x,
    "channels first": lambda x: x.contiguous(),
    "negated": torch._neg_view,
    "with gaps": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
}


@MANY
@given(
    st.integers(1, 3),
    st.sampled_from([2, 7, 16, 23, 64, 100]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([(1, 1), (3, 3), (5, 5), (7, 7), (9, 2)]),
    *[pairs] * 2,
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    *[st.sampled_from(sorted(LAYOUTS))] * 2,
    st.integers(0, 2**31),
)
def test_depthwise_gradients_are_those_of_each_channels_patches(
    m, channels, image, kernel, stride, dilation, padding, of_x, of_dh, seed
):
    for axis in (0, 1):
        assume(image[axis] + 2 * padding[axis] > dilation[axis] * (kernel[axis] - 1))
    at = (kernel, stride, padding, dilation)
    x = LAYOUTS[of_x](channels_last(m, channels, *image, seed=seed))
    outputs = F.conv2d(x[:, :1], torch.zeros(1, 1, *kernel), None, *at[1:]).shape[2:]
    dh = LAYOUTS[of_dh](channels_last(m, channels, *outputs, seed=seed + 1))
    each = by_patches(x.flatten(0, 1)[:, None], dh.flatten(0, 1)[:, None], *at)
    rule = Conv2dWeight(Geometry(*at, channels))
    got = depthwise_gradients(x, dh, *at)
    assert_near(got, each.view_as(got))
    assert torch.equal(rule.materialize(x, dh), got)
    assert depthwise_gradients(x.double(), dh.double(), *at) is None


def test_depthwise_sums_of_large_images_are_taken_in_blocks():
    """In one row of 90,000 terms float32 would lose 2e-3 of a sum; its bound counts 1,024."""
    x, dh = torch.ones(1, 17, 300, 300), torch.full((1, 17, 300, 300), 0.1)
    got = depthwise_gradients(x, dh, (1, 1), (1, 1), (0, 0), (1, 1))
    exact = 90_000 * float(torch.tensor(0.1))
    assert ((got.double() / exact - 1).abs() < 2e-5).all()


def test_an_example_has_the_same_gradient_in_any_company_on_any_number_of_threads():
    x, dh = channels_last(5, 48, 7, 6), channels_last(5, 9, 7, 6, seed=1)
    at = ((3, 3), (1, 1), (1, 1), (1, 1))
    together = kernel_gradients(x, dh, *at)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(kernel_gradients(x, dh, *at), together)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(kernel_gradients(x[2:3], dh[2:3], *at), together[2:3])


def test_so_it_has_of_a_depthwise_convolution():
    x, dh = channels_last(5, 90, 7, 6), channels_last(5, 90, 7, 6, seed=1)
    x[1, 20, 3, 3] = torch.nan
    at = ((3, 3), (1, 1), (1, 1), (1, 1))
    together = depthwise_gradients(x, dh, *at)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(depthwise_gradients(x, dh, *at)[:1], together[:1])
        again = depthwise_gradients(x[2:], dh[2:], *at)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again, together[2:])
    is_nan = together.isnan().flatten(2).any(2)
    assert is_nan.nonzero().tolist() == [[1, 20]]


def test_a_nan_stays_in_its_example():
    x, dh = channels_last(3, 16, 4, 4), channels_last(3, 8, 4, 4, seed=1)
    x[1, 0, 0, 0] = torch.nan
    is_nan = kernel_gradients(x, dh, (3, 3), (1, 1), (1, 1)).isnan().flatten(1).any(1)
    assert is_nan.tolist() == [False, True, False]
    norm = nn.GroupNorm(4, 16, affine=False)
    x.requires_grad_()
    out = norm_relu(norm, x)
    (back,) = torch.autograd.grad(out.sum(), x)
    for values in (out, back):
        is_nan = values.isnan().flatten(1)
        assert is_nan.any(1).tolist() == [False, True, False]
        assert is_nan[1].sum() == 4 * 16  # its group, as torch's own has it


@pytest.mark.parametrize(
    ("change", "kernel"),
    [
        (lambda x: x.contiguous(), (3, 3)),
        (lambda x: x.double(), (3, 3)),
        (lambda x: x[:, :15].contiguous(memory_format=torch.channels_last), (3, 3)),
        (lambda x: x[:0], (3, 3)),
        (lambda x: x[:, :, ::2], (3, 3)),
        (lambda x: x, (9, 9)),
    ],
    ids=["channels first", "float64", "15 channels", "no example", "rows left out", "81 positions"],
)
def test_what_the_kernel_cannot_read_is_left_to_torch(change, kernel):
    x, dh = channels_last(2, 16, 4, 4), channels_last(2, 8, 4, 4)
    assert are_taken(x, dh, (3, 3))
    assert not are_taken(change(x), dh, kernel)


@pytest.mark.parametrize(
    "change",
    [lambda dh: dh.contiguous(), lambda dh: dh[:1], torch._neg_view],
    ids=["channels first", "fewer examples", "a view that negates"],
)
def test_an_output_gradient_that_the_kernel_cannot_read_is_left_to_torch(change):
    x, dh = channels_last(2, 16, 4, 4), channels_last(2, 8, 4, 4)
    assert not are_taken(x, change(dh), (3, 3))


@pytest.mark.parametrize(("groups", "is_by_kernel"), [(1, True), (2, False)])
def test_norms_go_by_the_faster_form(groups, is_by_kernel):
    """In WRN28-4's last stage a Gram form multiplies half as much, in three times the time."""
    x, dh = channels_last(2, 256 * groups, 8, 8), channels_last(2, 16 * groups, 8, 8)
    rule = Conv2dWeight(Geometry((3, 3), (1, 1), (1, 1), (1, 1), groups))
    assert rule.prefers_gram(x, dh) is not is_by_kernel
    assert rule.prefers_gram(x.contiguous(), dh.contiguous())


@MANY
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 20),
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.floats(-3, 3),
    st.sampled_from([1e-5, 0.1]),
    st.integers(0, 2**31),
)
def test_norm_and_relu_are_torchs_in_float64(n, groups, size, image, shift, eps, seed):
    x = (channels_last(n, groups * size, *image, seed=seed) + shift).requires_grad_()
    wide = x.detach().double().requires_grad_()
    variance = wide.detach().unflatten(1, (groups, size)).var((2, 3, 4), unbiased=False).min()
    assume(variance > 0.1)
    # Beside a large mean, float32 knows less of what is normed.
    near = {"rtol": 0, "atol": 1e-5 * (1 + abs(shift)) / float(variance)}
    norm = nn.GroupNorm(groups, groups * size, eps, affine=False)
    normed = norm(wide)
    out = norm_relu(norm, x)
    torch.testing.assert_close(out.double(), normed.relu(), **near)
    # Near zero ReLU may go either way.
    direction = channels_last(*x.shape, seed=seed + 1) * (normed.abs() > near["atol"])
    (back,) = torch.autograd.grad(out, x, direction)
    (wide_back,) = torch.autograd.grad(normed.relu(), wide, direction.double())
    torch.testing.assert_close(back.double(), wide_back, **near)


def test_the_norm_of_images_of_several_blocks_takes_any_gradients_layout():
    x = channels_last(2, 8, 50, 51).requires_grad_()
    norm = nn.GroupNorm(4, 8, affine=False)
    out = norm_relu(norm, x)
    assert type(out.grad_fn).__name__ == "_NormReLUBackward"
    assert out.is_contiguous(memory_format=torch.channels_last)
    wide = x.detach().double().requires_grad_()
    expected = F.relu(norm(wide))
    direction = torch.randn(x.shape)
    (back,) = torch.autograd.grad(out, x, direction)
    (wide_back,) = torch.autograd.grad(expected, wide, direction.double())
    assert_near(out, expected)
    assert_near(back, wide_back)


def test_the_gradient_of_a_gradient_is_torchs():
    x, direction = channels_last(2, 16, 4, 4), channels_last(2, 16, 4, 4, seed=1)
    norm, twice = nn.GroupNorm(4, 16, affine=False), []
    for images in (x, x.double().contiguous()):
        images.requires_grad_()
        out = norm_relu(norm, images)
        along = direction.to(images.dtype).requires_grad_()
        (back,) = torch.autograd.grad(out, images, along, create_graph=True)
        twice.append(torch.autograd.grad(back.square().sum(), (images, along)))
    for here, expected in zip(*twice, strict=True):
        assert_near(here, expected)


@pytest.mark.parametrize("channels", [2048, 2080])
def test_a_norm_of_many_channels(channels):
    x, norm = channels_last(2, channels, 2, 2), nn.GroupNorm(32, channels, affine=False)
    assert_near(norm_relu(norm, x), F.relu(norm(x.double())))


def test_groups_that_do_not_fit_are_refused_as_by_torch():
    with pytest.raises((RuntimeError, ValueError), match="divisible by"):
        norm_relu(nn.GroupNorm(5, 35, affine=False), channels_last(2, 32, 4, 4))


def test_a_norm_with_parameters_trains_them():
    norm = nn.GroupNorm(4, 16)
    norm_relu(norm, channels_last(2, 16, 4, 4).requires_grad_()).sum().backward()
    assert norm.weight.grad.abs().sum() > 0


METHODS = {
    "dpsgd": lambda: DPSGD("all", "head"),
    "rgp": lambda: RGP(4, "both", 1, 0, "update", residual=True, head_factor=1.0, head="head"),
    "left": lambda: RGP(4, "left", 1, 0, "update", residual=True, head_factor=1.0, head="head"),
    "lsg": lambda: LSG(4, 0.5, "importance", 0, 1, 1.0, "head", dataset_size=1, batch_size=1),
}


def model_of(is_channels_last):
    torch.manual_seed(0)
    return WideResNet(10, 2, 1, is_channels_last, in_channels=3, num_classes=10)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_has_the_gradients_of_channels_first(method, monkeypatch):
    gen = torch.Generator().manual_seed(1)  # of 30 draws two put a ReLU's input at its kink
    x, y = torch.randn(4, 3, 16, 16, generator=gen), torch.arange(4)
    taken = []
    run = kernels.kernel_gradients
    monkeypatch.setattr(kernels, "kernel_gradients", lambda *a: taken.append(a) or run(*a))
    model, by_torch = model_of(True), []
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.register_forward_hook(lambda norm, *_: by_torch.append(norm))
    here = step(model, METHODS[method](), x, y, clip_norm=LOOSE).gradients
    assert taken and not by_torch
    first = step(model_of(False), METHODS[method](), x, y, clip_norm=LOOSE).gradients
    for name, gradient in first.items():
        assert_near(here[name], gradient.double())
    clipped, elsewhere = (
        step(model_of(layout), METHODS[method](), x, y, clip_norm=1e-3).gradients
        for layout in (True, False)
    )
    assert distance(clipped, elsewhere) < 2**-7


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.floats(-3, 6), st.floats(-3, 3), st.integers(0, 2**31))
def test_an_example_moves_the_sums_by_at_most_the_clip_norm(method, log_scale, log_clip, seed):
    x = 10**log_scale * torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    clip_norm = 10**log_clip
    sums, _ = sums_of(model_of(True), METHODS[method](), x, torch.tensor([3]), clip_norm, 1)
    assert float(torch.linalg.vector_norm(flat(sums).double())) <= clip_norm * (1 + 1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_a_pixel_that_is_not_finite_costs_its_example_alone(method, bad):
    x, y, others = torch.randn(5, 3, 8, 8), torch.arange(5), [0, 1, 2, 4]
    expected, _ = sums_of(model_of(True), METHODS[method](), x[others], y[others], 1.0, 2)
    x[3, 0, 5, 5] = bad
    got, outcome = sums_of(model_of(True), METHODS[method](), x, y, 1.0, 3)
    assert outcome.nonfinite == 1
    assert distance(got, expected) < ROUNDING


@pytest.fixture
def recompiled(monkeypatch):
    """Compile anew, as CC says, and again afterwards."""

    def anew(compiler):
        monkeypatch.setenv("CC", compiler)
        kernels.compiled.cache_clear()
        return kernels.compiled()

    yield anew
    kernels.compiled.cache_clear()


def test_kernels_that_are_prepared_are_compiled_once(monkeypatch):
    begun, may_end = threading.Event(), threading.Event()
    made = []

    def slowly():
        begun.set()
        assert may_end.wait(30)
        made.append(threading.current_thread())
        return "the kernels"

    monkeypatch.setattr(sys.modules["dpexp.kernels.compiled"], "_compiled", slowly)
    kernels.compiled.cache_clear()
    try:
        kernels.prepare()
        kernels.prepare()
        assert begun.wait(30) and not made  # the caller went on
        may_end.set()
        assert kernels.compiled() == kernels.compiled() == "the kernels"
        kernels.prepare()
        assert len(made) == 1 and made[0] is not threading.current_thread()
    finally:
        kernels.compiled.cache_clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(monkeypatch):
    may_end = threading.Event()
    module = sys.modules["dpexp.kernels.compiled"]
    monkeypatch.setattr(module, "_compiled", lambda: may_end.wait(30) and None)
    kernels.compiled.cache_clear()
    try:
        kernels.prepare()
        child = os.fork()
        if child == 0:
            os._exit(0 if module._ahead is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        may_end.set()
        kernels.compiled()
        kernels.compiled.cache_clear()


def test_processors_without_avx512_have_vectors_of_eight(recompiled):
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4)
    as_here = step(model_of(True), METHODS["rgp"](), x, y, clip_norm=LOOSE).gradients
    assert recompiled(f"{os.environ.get('CC', 'cc')} -mno-avx512f").lanes == 8
    for name, gradient in step(
        model_of(True), METHODS["rgp"](), x, y, clip_norm=LOOSE
    ).gradients.items():
        assert_near(gradient, as_here[name].double())
    x, dh = channels_last(2, 24, 5, 7), channels_last(2, 11, 5, 7, seed=1)
    at = ((3, 3), (1, 1), (1, 1), (1, 1))
    assert_near(kernel_gradients(x, dh, *at), by_patches(x, dh, *at))


def test_without_a_compiler_torch_does_it_and_says_so(recompiled, caplog):
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4)
    with_one = step(model_of(True), METHODS["rgp"](), x, y, clip_norm=LOOSE).gradients
    with caplog.at_level(logging.WARNING, logger="dpexp"):
        assert recompiled("no-such-compiler -x") is None
        without = step(model_of(True), METHODS["rgp"](), x, y, clip_norm=LOOSE).gradients
    (record,) = caplog.records
    assert "C compiler" in record.message and "no-such-compiler" in record.message
    for name, gradient in with_one.items():
        assert_near(without[name], gradient.double())


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("false", "returned non-zero exit status 1"),
        ("cc -mno-avx", "x86 processor with AVX"),
        ("sh -c 'exec cc -fvisibility=hidden \"$@\" -O0' cc", "undefined symbol"),
        ("'unbalanced", "No closing quotation"),
    ],
)
def test_what_hinders_the_compiler_is_told(compiler, said, recompiled, caplog):
    with caplog.at_level(logging.WARNING, logger="dpexp"):
        assert recompiled(compiler) is None
    assert said in caplog.text and "\n" not in caplog.records[0].message


def test_a_compiler_that_talks_and_hangs_is_none(recompiled, tmp_path, caplog, monkeypatch):
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\n'
        "echo 'note: waiting for a licence' >&2\nexec sleep 60\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(sys.modules["dpexp.kernels.compiled"], "PATIENCE", 0.1)
    with caplog.at_level(logging.WARNING, logger="dpexp"):
        assert recompiled(str(compiler)) is None
    assert "compiling took more than 0.1 seconds" in caplog.text


def test_without_a_folder_for_temporary_files_torch_does_it(recompiled, caplog, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/no-such-folder"])
    monkeypatch.setenv("DPEXP_CACHE", "/proc/no-such-folder")
    with caplog.at_level(logging.WARNING, logger="dpexp"):
        assert recompiled("cc") is None
    assert "No usable temporary directory" in caplog.text


def test_a_compiler_without_openmp_is_none(recompiled, tmp_path, caplog):
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac\n'
        'exec cc "$@"\n'
    )
    compiler.chmod(0o755)
    with caplog.at_level(logging.WARNING, logger="dpexp"):
        assert recompiled(str(compiler)) is None
    assert "unsupported option -fopenmp" in caplog.text


@pytest.fixture
def counted(tmp_path, monkeypatch, recompiled):
    """Compile by a compiler that counts and does not optimise, into a cache of its own."""
    compiler, calls = tmp_path / "cc", tmp_path / "calls"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo >> {calls};; esac\nexec cc "$@" -O0\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))

    def compiled(options=""):
        before = calls.read_text() if calls.exists() else ""
        made = recompiled(f"{compiler} {options}")
        return made, len(calls.read_text()) - len(before)

    return compiled, tmp_path / "cache" / "kernels"


def test_kernels_are_compiled_once_a_machine_and_flags(counted):
    compiled, folder = counted
    (first, times), (again, no_times) = compiled(), compiled()
    assert (times, no_times) == (1, 0) and first.sha256 == again.sha256
    x, dh = channels_last(2, 32, 5, 7), channels_last(2, 11, 5, 7, seed=1)
    at = ((3, 3), (1, 1), (1, 1), (1, 1))
    assert_near(kernel_gradients(x, dh, *at), by_patches(x, dh, *at))
    assert compiled("-mno-avx512f")[1] == 1
    assert len([*folder.iterdir()]) == 2


def damaged(path):
    path.write_bytes(path.read_bytes()[:-100])


def writable(path):
    path.chmod(0o777)


def in_a_folder_of_all(path):
    path.parent.chmod(0o777)


@pytest.mark.parametrize("change", some_long([damaged, writable, in_a_folder_of_all], [damaged]))
def test_a_kept_library_that_is_not_ours_alone_or_not_whole_is_not_loaded(counted, change):
    compiled, folder = counted
    first, _ = compiled()
    (kept,) = folder.iterdir()
    change(kept)
    again, times = compiled()
    assert times == 1 and again.sha256 == first.sha256
    assert compiled()[1] == 0, "it is kept anew"


@pytest.mark.parametrize("cut", [slice(1, -2), slice(0, 3)])
def test_images_apart_in_memory_have_the_bits_that_one_alone_has(cut):
    """The batch stride decides nothing: torch ignores it where there is one image."""
    x, dh = (channels_last(3, 32, 9, 6, seed=seed)[:, :, cut] for seed in (0, 1))
    norm = nn.GroupNorm(8, 32, affine=False)
    assert are_taken(x, dh, (3, 3)) and are_taken(x[:1], dh[:1], (3, 3))
    kept = torch.arange(32 * 32 * 9) % 3 == 0

    def of(x, dh):
        at = {"kernel": (3, 3), "padding": (1, 1)}
        return kernel_gradients(x, dh, **at), kept_squares(x, dh, kept, **at), norm_relu(norm, x)

    together = of(x, dh)
    for number in range(3):
        one = x[number : number + 1], dh[number : number + 1]
        alone = of(*one)
        assert all(torch.equal(a[number], b[0]) for a, b in zip(together, alone, strict=True))
    torch.testing.assert_close(together[2], torch.relu(norm(x)))
