"""Every example's kernel gradient of a convolution.

oneDNN keeps examples apart only in grouped convolutions, whose weight gradient wants its inputs
channels first; a matrix library wants one product a shift. Either takes about twice the time.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from dpexp.kernels.compiled import address, compiled, is_channels_last, struct

SLOWNESS = 3  # ours, measured: of a Gram form's multiplications beside the kernel's


def are_taken(x: Tensor, dh: Tensor, kernel: tuple[int, int]) -> bool:
    """Return whether `kernel_gradients` takes a layer's input and output gradient.

    Args:
        x: [m, d, h, w].
        dh: [m, p, h', w'].
        kernel: its rows and columns.
    """
    if len(x) != len(dh) or not is_channels_last(x) or not is_channels_last(dh):
        return False
    if compiled() is None:
        return False
    return x.shape[1] % compiled().lanes == 0 and prod(kernel) <= compiled().most_taps


def kernel_gradients(
    x: Tensor,
    dh: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Form every example's kernel gradient, [m, p, d, k, k], where they `are_taken`.

    Args:
        x: [m, d, h, w], the input.
        dh: [m, p, h', w'], the gradient at the output.
        kernel: rows and columns, as all that follow.
        stride: of the convolution, which has no groups.
        padding: zeros around x.
        dilation: distance of the kernel's positions.
    """
    (m, d), p = x.shape[:2], dh.shape[1]
    grads = x.new_empty(m, p, d, *kernel)
    sizes = (*x.shape[2:], *dh.shape[2:])
    layer = struct(m, d, p, *sizes, *kernel, *stride, *padding, *dilation)
    tensors = map(address, (x, dh, grads))
    compiled().functions.kernel_gradients(layer, *tensors, torch.get_num_threads())
    return grads
