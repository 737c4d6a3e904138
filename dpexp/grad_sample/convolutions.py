"""Rules for nn.Conv3d and transposed convolutions: gradients are formed."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import grad

from dpexp.grad_sample.conv2d import pads_zeros
from dpexp.grad_sample.rules import rule

OF_DIMENSIONS = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}
"""torch's gradient of a convolution's weight, by the number of axes that it slides along."""


def _weights(
    x: Tensor,
    dh: Tensor,
    layer: nn.modules.conv._ConvNd,
    shape: tuple[int, ...],
    *,
    is_padded: bool,
) -> Tensor:
    """Return every example's weight gradient [n, *shape]: n examples are n groups of one call.

    Args:
        x: [n, c, ...], what the convolution reads.
        dh: [n, p, ...], the gradient at what it returns.
        layer: its stride, dilation and groups.
        shape: of the weight, [p, c / groups, ...].
        is_padded: whether x has its padding already.
    """
    n, padding = len(x), (0,) * (x.ndim - 2) if is_padded else layer.padding
    if isinstance(padding, str):  # "same" may pad asymmetrically
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice), (0,) * (x.ndim - 2)
    if n == 0:
        return x.new_zeros(0, *shape)
    formed = OF_DIMENSIONS[x.ndim - 2](
        x.reshape(1, -1, *x.shape[2:]),
        (n * shape[0], *shape[1:]),
        dh.reshape(1, -1, *dh.shape[2:]),
        layer.stride,
        padding,
        layer.dilation,
        groups=n * layer.groups,
    )
    return formed.view(n, *shape)


def _with_bias(layer: nn.modules.conv._ConvNd, weight: Tensor, dh: Tensor) -> dict[str, Tensor]:
    return {"weight": weight} | ({} if layer.bias is None else {"bias": dh.flatten(2).sum(2)})


@rule(nn.Conv3d, fits=pads_zeros)
def conv3d(layer: nn.Conv3d, x: Tensor, dh: Tensor) -> dict[str, Tensor]:
    """Return the gradients for x [n, channels, d, h, w] and dh [n, outputs, d', h', w']."""
    return _with_bias(layer, _weights(x, dh, layer, tuple(layer.weight.shape), is_padded=False), dh)


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def transposed(
    layer: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d, x: Tensor, dh: Tensor
) -> dict[str, Tensor]:
    """Return the gradients for x [n, channels, ...] and dh [n, outputs, ...].

    A transposed convolution is the gradient of a convolution from outputs to channels, so its
    weight's gradient is that convolution's, which reads dh and returns x.
    """
    strides, dilations, kernels = layer.stride, layer.dilation, layer.kernel_size
    sides: list[int] = []
    for axis, before in enumerate(cast(tuple[int, ...], layer.padding)):  # which has no words here
        # All that x reaches: output_padding adds what it cut off at the end, and more.
        reach = (x.shape[axis + 2] - 1) * strides[axis] + dilations[axis] * (kernels[axis] - 1) + 1
        sides = [before, reach - before - dh.shape[axis + 2], *sides]
    weight = _weights(F.pad(dh, sides), x, layer, tuple(layer.weight.shape), is_padded=True)
    return _with_bias(layer, weight, dh)
