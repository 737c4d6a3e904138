"""The rule for nn.Conv1d: a convolution of images one pixel high.

Gradients are formed. Sequences are padded to the longest of a batch, and a choice of form by their
length would let the other examples change the rounding of an example's norm.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.grad_sample.conv2d import kernel_gradients, pads_zeros
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.rules import rule


@rule(nn.Conv1d, fits=pads_zeros)
def conv1d(layer: nn.Conv1d, x: Tensor, dh: Tensor) -> dict[str, Tensor]:
    """Return the gradients for x [n, channels, t] and dh [n, outputs, t']."""
    if isinstance(layer.padding, str):  # "same" may pad asymmetrically
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice), 0
    else:
        (padding,) = layer.padding
    (kernel,), (stride,), (dilation,) = layer.kernel_size, layer.stride, layer.dilation
    at = Geometry((1, kernel), (1, stride), (0, padding), (1, dilation), layer.groups)
    images, of_images = (each.unsqueeze(2) for each in (x, dh))
    formed = kernel_gradients(at.fold(images), at.fold(of_images), at)
    weight = formed.reshape(len(x), *layer.weight.shape)
    return {"weight": weight} | ({} if layer.bias is None else {"bias": dh.sum(2)})
