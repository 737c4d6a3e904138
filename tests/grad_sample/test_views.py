"""Layers that see several rows of an example: the sum of its rows' gradients, by any form."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.grad_sample.per_example import FactoredGrads, MaskedGrads, size_by_forming
from dpexp.grad_sample.rounding import TERMS, raised
from dpexp.grad_sample.rules import layer_grads_of
from dpexp.models.standardized import StandardizedConv2d
from tests.grad_sample.test_rules import (
    CLOSE,
    convolutions,
    per_example_by_torch_func,
    random_like,
    seeds,
    small,
)
from tests.runs import total_of

FEW = settings(max_examples=25, deadline=None)


@FEW
@given(convolutions(), small, small, st.booleans(), st.booleans(), seeds)
def test_an_examples_kernel_gradient_is_the_sum_of_its_views(
    drawn, n, views, is_standardized, is_last, seed
):
    layer, image = drawn
    assume(not is_standardized or layer.weight[0].numel() > 2)  # else all is rounding
    layer.__class__ = StandardizedConv2d if is_standardized else nn.Conv2d
    x = random_like(torch.empty(n * views, layer.in_channels, *image), seed)
    if is_last:
        x = x.contiguous(memory_format=torch.channels_last)
    direction = random_like(layer(x), seed + 1)
    each = per_example_by_torch_func(layer, x, direction)["weight"]
    each = each.unflatten(0, (n, views)).sum(1)
    weights, shape = random_like(torch.empty(n), seed + 2).abs(), layer.weight.shape
    layer_grads = layer_grads_of("layer", layer, x, direction, views)
    grads = layer_grads.gradient("weight")
    assert isinstance(grads, FactoredGrads)
    size, held = grads.measured()
    norms = each.flatten(1).norm(dim=1)
    for bound in (size.squares, grads.norms_squared()):
        assert (bound.sqrt() >= norms * (1 - 1e-13) - 1e-14).all()
        torch.testing.assert_close(bound.sqrt(), norms, rtol=1e-6, atol=1e-6)
    for form in (grads, held, grads.double()):
        total = total_of(form, weights).view(shape)
        torch.testing.assert_close(total, torch.tensordot(weights, each, dims=1), **CLOSE)
    torch.testing.assert_close(grads.materialize().view_as(each), each, **CLOSE)
    chosen = torch.arange(n) % 2 == 0
    torch.testing.assert_close(grads.select(chosen).materialize(), each[chosen], **CLOSE)
    entries = torch.arange(0, each[0].numel(), 2)
    is_kept = torch.zeros(each[0].numel(), dtype=torch.bool).index_fill_(0, entries, True)
    masked = MaskedGrads(grads, is_kept, shape)
    torch.testing.assert_close(masked.materialize(), each.flatten(1)[:, entries], **CLOSE)
    size, held = masked.measured()
    norms = each.flatten(1)[:, entries].norm(dim=1)
    assert (size.squares.sqrt() >= norms * (1 - 1e-13) - 1e-14).all()
    for form in (masked, held):
        expected = weights @ each.flatten(1)[:, entries]
        torch.testing.assert_close(total_of(form, weights), expected, **CLOSE)
    left, right = (
        random_like(torch.empty(size), seed + 3)
        for size in ((shape[0], 2), (2, each[0, 0].numel()))
    )
    matrices = each.flatten(2)
    torch.testing.assert_close(layer_grads.left(right).materialize(), matrices @ right.T, **CLOSE)
    torch.testing.assert_close(
        layer_grads.right(left).materialize().flatten(2), left.T @ matrices, **CLOSE
    )


@pytest.mark.parametrize("kind", [nn.Conv2d, StandardizedConv2d])
def test_views_of_large_layers_are_measured_without_forming_their_kernels(kind):
    """16 views of 3 examples, 4 x 4: Gram matrices of 256 positions, not 36,864 numbers a view."""
    layer = kind(64, 64, 3, padding=1).double()
    x, dh = (random_like(torch.empty(3 * 16, 64, 4, 4), seed) for seed in (0, 1))
    grads = layer_grads_of("layer", layer, x, dh, 16).gradient("weight")
    size, held = grads.measured()
    assert held is grads and grads.rule.of_row.prefers_gram(grads.x, grads.dh)
    expected = grads.materialize().flatten(1).square().sum(1)
    torch.testing.assert_close(size.squares, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(size_by_forming(grads.rule, grads.x, grads.dh).squares, expected)
    assert (size.squares >= expected).all()


def literal_energy(x, dh):
    """(sum over all positions of |patch| |dh|)^2, in float64; x and dh [n, v, c, h, w], 3 x 3."""
    n, views = x.shape[:2]
    patches = F.unfold(x.flatten(0, 1).double(), 3, padding=1).norm(dim=1).view(n, -1)
    return (patches * dh.double().norm(dim=2).view(n, -1)).sum(1).square()


@pytest.mark.parametrize("size", [4, 50])
def test_the_terms_of_several_views_are_those_of_one_large_image(size):
    """Of 4 views of 50 x 50 pixels a library may add up 10,000 positions one after another."""
    layer, views = nn.Conv2d(3, 2, 3, padding=1), 4
    x, dh = (torch.randn(2 * views, channels, size, size) for channels in (3, 2))
    grads = layer_grads_of("layer", layer, x, dh, views).gradient("weight")
    energy = literal_energy(grads.x, grads.dh)
    share = max(1.0, views * size**2 / (4 * TERMS))
    assert (grads.rule.terms(grads.x, grads.dh).energy >= energy * share**2).all()
    some = grads.x[..., :8, :8], grads.dh[..., :8, :8]
    assert (grads.rule.of_row.size_by_gram(*some).energy >= literal_energy(*some)).all()


@pytest.mark.parametrize("size", [4, 8])
def test_the_projections_own_rounding_is_in_the_bounds(size):
    """Two inner products of m numbers more, whatever cancels: what is left is much smaller."""
    layer = StandardizedConv2d(64, 8, 3, padding=1)
    m = layer.weight[0].numel()
    x = 1 + 1e-4 * torch.randn(3, 64, size, size)  # a gradient of nearly equal numbers
    dh = torch.randn(3, 8, size, size)
    grads = layer_grads_of("layer", layer, x, dh).gradient("weight")
    rule, energy = grads.rule, literal_energy(grads.x[:, None], grads.dh[:, None])
    exact = grads.double().materialize().flatten(1).square().sum(1)
    by_gram, by_forming = rule.size_by_gram(x, grads.dh), size_by_forming(rule, x, grads.dh)
    twice = 2 * raised(2 * m, torch.float32) * energy
    assert (by_gram.squares >= exact + twice).all()
    lost = raised(TERMS + 2 * m, torch.float32) * energy.sqrt()
    assert (by_forming.squares.sqrt() >= exact.sqrt() + lost * (1 - 1e-3)).all()
