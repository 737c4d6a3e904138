"""Batches of per-example vectors: their norms, however long they are and however they lie."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.grad_sample.chunks import BUDGET_BYTES
from dpexp.grad_sample.conv2d import Conv2dMatrix
from dpexp.grad_sample.embedding import EmbeddingWeight
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.linear import LinearGrads, LinearWeight
from dpexp.grad_sample.per_example import (
    FactoredGrads,
    MaskedGrads,
    MaterializedGrads,
    size_by_forming,
)
from dpexp.grad_sample.rounding import EXAMPLES, TERMS, Terms, size_by_gram, size_of_formed
from dpexp.privacy.bound import is_exact_enough, slack_of, upper_bound
from dpexp.privacy.privatize import ClippedSum
from dpexp.types import Key, Release, Size


def chosen(entries, size):
    """Return a mask of a gradient's entries."""
    return torch.zeros(size, dtype=torch.bool).index_fill_(0, entries, True)


def test_float32_norms_of_long_vectors_are_bounded_to_four_digits():
    gen = torch.Generator().manual_seed(0)
    x, dh = torch.randn(2, 3, 1024, generator=gen), torch.randn(2, 3, 2048, generator=gen)
    whole = FactoredGrads(LinearWeight(), x, dh)
    entries = torch.arange(0, 2**21, 2)
    expected = whole.materialize().double().flatten(1)[:, entries].square().sum(1)
    explicit = MaterializedGrads(whole.materialize().flatten(1)[:, ::2]).norms_squared()
    masked = MaskedGrads(whole, chosen(entries, 2**21), (2048, 1024)).norms_squared()
    for bound, most in ((explicit, 2e-4), (masked, 2e-3)):
        assert ((bound >= expected) & (bound <= expected * (1 + most))).all()


def convolved(memory_format):
    """Return gradients of the size of RGP's right carriers in WRN28-4's last stage."""
    x, dh = torch.randn(16, 256, 8, 8), torch.randn(16, 16, 8, 8)
    tensors = (each.contiguous(memory_format=memory_format) for each in (x, dh))
    return FactoredGrads(Conv2dMatrix(Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)), *tensors), (
        16,
        2304,
    )


def masked():
    whole = FactoredGrads(LinearWeight(), torch.randn(16, 30, 64), torch.randn(16, 30, 64))
    return MaskedGrads(whole, chosen(torch.arange(4000), 64 * 64), (64, 64)), (4000,)


def at_position(dh, who, position):
    """Index all that an example has at a position: of images [n, p, 8, 8] or tokens [n, t, p]."""
    return (who, slice(None), *divmod(position, 8)) if dh.dim() == 4 else (who, position)


@pytest.mark.parametrize("who", [0, 7, 15])
@pytest.mark.parametrize(
    "make",
    [
        lambda: convolved(torch.channels_last),
        lambda: convolved(torch.contiguous_format),
        masked,
    ],
    ids=["channels last", "channels first", "masked"],
)
def test_terms_that_cancel_erase_nothing_of_other_examples(make, who):
    torch.manual_seed(0)
    grads, shape = make()
    outer = getattr(grads, "whole", grads)
    outer.x[who], outer.dh[who] = 1, 0
    for position, value in ((18, 2.0**27), (27, 1), (28, -(2.0**27))):
        outer.dh[at_position(outer.dh, who, position)] = value
    size, held = grads.measured()
    assert type(held) is type(grads)
    assert bool(is_exact_enough(size, 1.0)[who]) is False  # it is summed in float64, apart
    whole, without = (
        summed(some, shape) for some in (grads, grads.select(torch.arange(16) != who))
    )
    assert float(torch.linalg.vector_norm(whole - without)) <= 1 + 1e-6


def summed(grads, shape, clip_norm=1.0):
    """Clip and sum per-example gradients, in float32."""
    key, numbers = Key("gradient", "weight"), math.prod(shape)
    sums = ClippedSum({key: shape}, (Release("gradient", numbers, clip_norm),), torch.empty(0))
    sums.take({key: grads})
    sums.close_micro_batch(len(grads.materialize()))
    return sums.sums[key]


@pytest.mark.parametrize("size", [2**10, 2**10 + 1, 9216, 2**16, 2**18])
def test_float32_norms_of_equal_entries_are_bounded_to_four_digits(size):
    """Where rounding does not average out."""
    values = torch.full((2, size), 1 / 3)
    got, expected = MaterializedGrads(values).norms_squared(), values.double().square().sum(1)
    assert ((got >= expected) & (got <= expected * (1 + 2e-4))).all()


def factors(kind, of_x, of_dh):
    """Return gradients whose factors are of some size, and literally: patches, and outputs."""
    gen = torch.Generator().manual_seed(0)
    positions = {"linear": 2, "linear, formed": 40}
    if kind in positions:
        x, dh = (s * torch.randn(3, positions[kind], 8, generator=gen) for s in (of_x, of_dh))
        return FactoredGrads(LinearWeight(), x, dh), x.double(), dh.double()
    if kind == "vectors":
        x, dh = of_x * torch.randn(3, 1, 8, generator=gen), of_dh * torch.randn(3, 1, 8)
        return FactoredGrads(LinearWeight(is_plain=True), x, dh), x.double(), dh.double()
    sizes = {"convolution": ((16, 3, 3), (8, 3, 3)), "convolution, formed": ((2, 9, 9), (2, 9, 9))}
    x, dh = (
        s * torch.randn(3, *size, generator=gen)
        for s, size in zip((of_x, of_dh), sizes[kind], strict=True)
    )
    at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    patches = nn.functional.unfold(x.double(), 3, padding=1).mT
    return FactoredGrads(Conv2dMatrix(at), x, dh), patches, dh.double().flatten(2).mT


UNDERFLOWING = [(1e-23, 1e-23), (1e-23, 1e12), (1e-19, 1e-19), (1e-12, 1e-11), (1.0, 1e-23)]


@pytest.mark.parametrize(("of_x", "of_dh"), UNDERFLOWING)
@pytest.mark.parametrize(
    "kind", ["vectors", "linear", "linear, formed", "convolution", "convolution, formed"]
)
def test_sizes_are_bounds_where_squares_or_products_underflow(kind, of_x, of_dh):
    """As float32's do below 1e-38."""
    grads, x, dh = factors(kind, of_x, of_dh)
    exact = dh.mT @ x
    terms = (torch.linalg.vector_norm(x, dim=2) * torch.linalg.vector_norm(dh, dim=2)).sum(1)
    each = dh[:, :, :, None] * x[:, :, None]
    flushed = each.masked_fill(each.abs() >= torch.finfo(torch.float32).tiny, 0).abs().sum(1)
    for size in (grads.rule.size(grads.x, grads.dh), grads.measured()[0]):
        assert (size.squares >= exact.square().sum((1, 2))).all()
        if size.energy is not size.squares:
            assert (size.energy.sqrt() >= terms).all()
            lost = torch.linalg.vector_norm(flushed, dim=(1, 2))
            assert (size.floor + 1e-4 * size.energy.sqrt() >= lost).all()
    formed = grads.materialize()
    size, _ = MaterializedGrads(formed).measured()
    assert (size.squares >= formed.double().flatten(1).square().sum(1)).all()


def test_products_of_gram_matrices_that_overflow_below_zero_are_no_small_norm():
    """Those on the diagonal may just not, by rounding."""
    most = torch.finfo(torch.float32).max
    product = torch.tensor([[[most, -math.inf], [-math.inf, most]]])
    ones = torch.ones(1, dtype=torch.float64)
    assert size_by_gram(product, Terms(ones, ones, ones), 8).squares.tolist() == [math.inf]


def test_the_terms_of_all_groups_of_a_convolution_count():
    x, dh = torch.randn(3, 8, 5, 5), torch.randn(3, 4, 5, 5)
    found = Conv2dMatrix(Geometry((3, 3), (1, 1), (1, 1), (1, 1), 4)).terms(x, dh)
    patches = nn.functional.unfold(x.double(), 3, padding=1).view(3, 4, 18, 25).norm(dim=2)
    literal = (patches * dh.double().flatten(2).abs()).sum(2).square().sum(1)
    assert (found.energy >= literal).all() and (found.energy <= 1.001 * literal).all()


@pytest.mark.parametrize("order", [*itertools.permutations([2.0**24, 1, -(2.0**24)])])
def test_what_forming_a_gradient_loses_is_in_its_bound(order):
    """Added up in another order, it is 1 in place of 0."""
    dh = torch.tensor(order).view(1, 3, 1)
    assert size_by_forming(LinearWeight(), torch.ones(1, 3, 1), dh).squares >= 1
    nothing, taken = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    terms = Terms(energy=nothing, floor=taken, unseen=nothing)
    formed = size_of_formed(Size(nothing, nothing, nothing), terms, 3, torch.float32)
    assert formed.squares >= 1  # all of it may have underflowed


@pytest.mark.parametrize(("num", "positions"), [(EXAMPLES, 1), (32, TERMS // 32)])
def test_a_product_adds_up_a_few_terms_and_float64_the_products(num, positions):
    """Beside 2^30, float32 loses 64."""
    dh = torch.zeros(2 * num, positions, 1)
    dh[0, 0], dh[num:] = 2.0**30, 64 / num / positions
    total = torch.zeros(1, 1, dtype=torch.float64)
    grads = FactoredGrads(LinearWeight(), torch.ones(2 * num, positions, 1), dh)
    grads.add_to(total, torch.ones(2 * num))
    assert float(total) == 2**30 + 64


def test_positions_of_one_example_are_added_up_a_few_at_a_time():
    dh = torch.full((1, 2 * TERMS, 1), 64 / TERMS)
    dh[0, :TERMS] = torch.eye(TERMS, 1) * 2.0**30
    total = torch.zeros(1, 1, dtype=torch.float64)
    FactoredGrads(LinearWeight(), torch.ones_like(dh), dh).add_to(total, torch.ones(1))
    assert float(total) == 2**30 + 64


def test_what_a_weight_takes_below_the_least_normal_number_is_within_the_floor():
    """A processor may flush it to zero."""
    least = torch.finfo(torch.float32).tiny
    values = torch.full((2, 1000), least)
    size, _ = MaterializedGrads(values).measured()
    assert (size.floor >= torch.linalg.vector_norm(values.double() / 2, dim=1)).all()
    assert not is_exact_enough(size, least * 2**27).any()


class Largest(TorchDispatchMode):
    """Watches how large the arrays are that are made on the way."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        storages = {arg.untyped_storage()._cdata for arg in args if isinstance(arg, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage()._cdata not in storages:
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("lies", ["plainly", "transposed", "with gaps"])
@pytest.mark.parametrize("num", [0, 1, 4, 7])
def test_long_vectors_are_squared_a_few_at_a_time(num, lies):
    gen = torch.Generator().manual_seed(0)
    values = torch.randn(num, 400, 600, generator=gen, dtype=torch.float64)
    values = {"plainly": values[:, :, :300], "transposed": values.mT, "with gaps": values[:, ::2]}[
        lies
    ]
    values = values.contiguous() if lies == "plainly" else values
    with Largest() as largest:
        squares = MaterializedGrads(values).norms_squared()
    torch.testing.assert_close(squares, values.square().sum((1, 2)), rtol=1e-12, atol=0)
    assert squares.shape == (num,) and 8 * largest.numbers <= BUDGET_BYTES["cpu"]


@pytest.mark.parametrize("every", [2, 50])
def test_kept_entries_of_images_that_are_held_bring_no_terms_into_the_sum(every):
    """Else most examples of a sparse method would be summed in float64."""
    gen = torch.Generator().manual_seed(0)
    x, dh = torch.randn(4, 16, 16, 16, generator=gen), torch.randn(4, 8, 16, 16, generator=gen)
    whole = FactoredGrads(Conv2dMatrix(Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)), x, dh)
    is_kept = chosen(torch.arange(0, 8 * 144, every), 8 * 144)
    size, held = MaskedGrads(whole, is_kept, (8, 144)).measured()
    assert type(held) is MaterializedGrads
    assert (size.energy == size.squares).all()
    assert (size.squares >= held.values.double().square().sum(1)).all()


# A text's neighbours decide how far it is padded.


@pytest.mark.parametrize("lengths", [(1, 2), (1, 70), (30, 31), (30, 70), (60, 200)])
@pytest.mark.parametrize("kind", ["linear", "masked", "embedding"])
def test_padding_moves_no_weight(kind, lengths):
    """Also where another form of the norm is smaller then: 96 x 96 is formed from 48 positions."""
    gen = torch.Generator().manual_seed(0)
    short, long = lengths
    x, dh = torch.randn(3, long, 96, generator=gen), torch.randn(3, long, 96, generator=gen)
    ids = torch.randint(40, (3, long), generator=gen)
    dh[:, short:] = 0

    def bound(t):
        if kind == "embedding":
            grads = FactoredGrads(EmbeddingWeight(40), ids[:, :t], dh[:, :t])
        else:
            layer_grads = LinearGrads.read(nn.Linear(96, 96), x[:, :t], dh[:, :t])
            grads = layer_grads.gradient("weight")
        if kind == "masked":
            grads = MaskedGrads(grads, chosen(torch.arange(0, 96 * 96, 2), 96 * 96), (96, 96))
        size, held = grads.measured()
        return upper_bound(size, slack_of(torch.float32)), type(held)

    (alone, form), (padded, another) = bound(short), bound(long)
    torch.testing.assert_close(padded, alone, rtol=2e-6, atol=0)
    assert kind != "linear" or (form is not another) == (short < 48 <= long)


@pytest.mark.parametrize("scale", [1e30, 5.0, 1e-30, math.nan])
@pytest.mark.parametrize("more", ["beside the others", "in a second micro-batch", "beyond 256"])
def test_one_that_widens_a_sum_moves_it_by_no_more_than_the_clip_norm(scale, more):
    """What it changes in the others' rounding included, who all push one way."""
    gen = torch.Generator().manual_seed(0)
    for trial in range(25):
        num = 256 if more == "beyond 256" else int(torch.randint(1, 200, (), generator=gen))
        others = 3 * torch.rand(num, 5, generator=gen)
        others[:, 1:] *= trial % 2
        one = scale * others[:1] / others[0].norm()
        apart = more == "in a second micro-batch"
        batches = [others, one] if apart else [torch.cat([others, one])]
        moved = added(*batches) - added(others)
        assert float(torch.linalg.vector_norm(moved)) <= 1 + 1e-6


def added(*micro_batches):
    """Clip and sum vectors at 1, a micro-batch after the other."""
    key = Key("gradient", "weight")
    sums = ClippedSum({key: (5,)}, (Release("gradient", 5, 1.0),), torch.empty(0))
    for values in micro_batches:
        sums.take({key: MaterializedGrads(values)})
        sums.close_micro_batch(len(values))
    return sums.sums[key].double()
