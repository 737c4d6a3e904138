"""Convolutions of standardised weights, and the rule for their per-example gradients.

Qiao et al. 2019 (arXiv 1903.10520), scaled as in Brock et al. 2021 (arXiv 2101.08692) and in the
code of De et al. 2022. Indices: n example, p output channel, m = d k k inputs of each.

    W'_p = g_p (W_p - mean(W_p)) / s_p,    s_p = sqrt(max(m var(W_p), 1e-4))

W is what trains. Where s_p is above its least value, U_p = (W_p - mean(W_p)) / s_p has norm 1, and
a gradient G_p of W'_p gives

    W_p:   (G_p - mean(G_p) - U_p <U_p, G_p>) g_p / s_p        g_p:   <U_p, G_p>

Below it s_p is a constant, and the third term is absent. What a low-rank method multiplies is the
gradient of W, so that its carriers are exact; it is formed for every example.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample import rule, rule_of
from dpexp.grad_sample.conv2d import pads_zeros
from dpexp.types import ConfigError

LEAST = 1e-4
"""Least value of m var(W_p), as in the code of De et al."""


class StandardizedConv2d(nn.Conv2d):
    """A convolution by W', with a gain of 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        return self._conv_forward(x, standardized(self.weight)[0], self.bias)


class GainedConv2d(StandardizedConv2d):
    """A convolution by W', with a gain g that trains, first 1."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Take what nn.Conv2d takes."""
        super().__init__(*args, **settings)
        self.gain = nn.Parameter(torch.ones_like(self.weight[:, 0, 0, 0]))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        weight = self.gain[:, None, None, None] * standardized(self.weight)[0]
        return self._conv_forward(x, weight, self.bias)


def standardized(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [p, d, k, k], s [p], and where s is above its least value, [p]."""
    centred = weight - weight.mean((1, 2, 3), keepdim=True)
    squares = centred.square().sum((1, 2, 3))
    scale = squares.clamp(min=LEAST).sqrt()
    return centred / scale[:, None, None, None], scale, squares > LEAST


@rule(
    StandardizedConv2d,
    GainedConv2d,
    parameters=("weight", "gain", "bias"),
    fits=pads_zeros,
)
def of_standardized(layer: StandardizedConv2d, x: Tensor, dh: Tensor) -> dict[str, Tensor]:
    """Return every example's gradients of W, and of g and the bias where the layer has them."""
    grads = rule_of(nn.Conv2d)(layer, x, dh)
    of_used = grads.gradient("weight").materialize().flatten(2)  # G, [n, p, m]
    unit, scale, is_scaled = standardized(layer.weight.detach())
    unit = unit.flatten(1)
    along = torch.einsum("npm,pm->np", of_used, unit)
    gain = layer.gain.detach() if isinstance(layer, GainedConv2d) else torch.ones_like(scale)
    own = of_used - of_used.mean(2, keepdim=True) - unit * (along * is_scaled)[:, :, None]
    found = {"weight": (own * (gain / scale)[:, None]).view(-1, *layer.weight.shape)}
    if isinstance(layer, GainedConv2d):
        found["gain"] = along
    if layer.bias is not None:
        found["bias"] = grads.gradient("bias").materialize()
    return found


def standardize(model: nn.Module) -> None:
    """Let all of a model's convolutions standardise their weights, in place.

    Raises:
        ConfigError: if it has none of torch's own.
    """
    layers = [module for module in model.modules() if type(module) is nn.Conv2d]
    if not layers:
        raise ConfigError(
            "Expected a model with convolutions for model.weight_standardization=true; this one "
            "has none. Leave it out."
        )
    for layer in layers:
        layer.__class__ = StandardizedConv2d
