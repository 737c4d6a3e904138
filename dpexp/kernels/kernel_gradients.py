"""Per-example kernel gradients of a convolution.

oneDNN separates examples only in grouped convolutions, whose weight gradient needs channels-first
inputs; a matrix library needs one product per shift. Either takes about twice the time.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from dpexp.kernels.compiled import address, compiled, functions, is_channels_last, struct

SLOWNESS = 3  # ours, measured: time of a Gram form's multiplication over that of the kernel's


def are_taken(x: Tensor, dh: Tensor, kernel: tuple[int, int]) -> bool:
    """Return whether `kernel_gradients` supports a layer's input and output gradient.

    Args:
        x: [m, d, h, w].
        dh: [m, p, h', w'].
        kernel: rows and columns.
    """
    if len(x) != len(dh) or not is_channels_last(x) or not is_channels_last(dh):
        return False
    library = compiled()
    if library is None:
        return False
    return x.shape[1] % library.lanes == 0 and prod(kernel) <= library.most_taps


def kernel_gradients(
    x: Tensor,
    dh: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return every example's kernel gradient, [m, p, d, k, k], for tensors that `are_taken`.

    Args:
        x: [m, d, h, w], the input.
        dh: [m, p, h', w'], the output gradient.
        kernel: rows and columns; so are the following pairs.
        stride: of the convolution, which has no groups.
        padding: zeros around x.
        dilation: distance between the kernel's positions.
    """
    (m, d), p = x.shape[:2], dh.shape[1]
    grads = x.new_empty(m, p, d, *kernel)
    sizes = (*x.shape[2:], *dh.shape[2:])
    layer = struct(m, d, p, *sizes, *kernel, *stride, *padding, *dilation)
    tensors = map(address, (x, dh, grads))
    functions().kernel_gradients(layer, *tensors, torch.get_num_threads())
    return grads
