"""Layers that see several rows of an example: the sum of its rows' gradients, by any form."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.grad_sample.per_example import FactoredGrads, MaskedGrads, size_by_forming
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
    masked = MaskedGrads(grads, entries, shape)
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
