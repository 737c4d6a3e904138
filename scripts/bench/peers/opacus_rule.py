"""Opacus's rule for a convolution of standardised weights, as its guide to grad samplers has it.

Opacus would take such a layer by torch.func, example by example. This is its own rule for Conv2d,
unfolded patches and one einsum, and then the derivative of the standardisation.
"""

from __future__ import annotations

import torch
from opacus.grad_sample import register_grad_sampler
from opacus.utils.tensor_utils import unfold2d
from torch import Tensor, nn

from scripts.bench.peers.wrn import WSConv2d


@register_grad_sampler(WSConv2d)
def of_ws_conv(
    layer: WSConv2d, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Return every example's gradients of weight, gain and bias."""
    patches = unfold2d(
        activations[0],
        kernel_size=layer.kernel_size,
        padding=layer.padding,
        stride=layer.stride,
        dilation=layer.dilation,
    )
    n = len(patches)
    flat = backprops.reshape(n, -1, patches.shape[-1])
    gradient = torch.einsum("noq,npq->nop", flat, patches)
    centred = layer.weight.flatten(1) - layer.weight.flatten(1).mean(1, keepdim=True)
    squares = centred.square().sum(1, keepdim=True)
    scale = squares.clamp(min=1e-4).sqrt()
    unit = centred / scale
    along = (gradient * unit).sum(2)
    removed = (along * (squares > 1e-4).flatten())[:, :, None] * unit
    own = gradient - gradient.mean(2, keepdim=True) - removed
    own = own * (layer.gain[:, None] / scale)
    return {
        layer.weight: own.view(n, *layer.weight.shape),
        layer.gain: along,
        layer.bias: flat.sum(2),
    }
