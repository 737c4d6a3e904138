"""Per-example kernel gradients of a convolution.

oneDNN separates examples only in grouped convolutions, whose weight gradient needs channels-first
inputs; a matrix library needs one product per shift. Either takes about twice the time.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from dpexp.kernels.compiled import (
    address,
    compiled,
    functions,
    is_channels_last,
    side_by_side,
    struct,
    would_take,
)

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
    x, dh = side_by_side(x), side_by_side(dh)
    (m, d), p = x.shape[:2], dh.shape[1]
    grads = x.new_empty(m, p, d, *kernel)
    layer = _layer(x, dh, kernel, stride, padding, dilation)
    tensors = map(address, (x, dh, grads))
    functions().kernel_gradients(layer, *tensors, torch.get_num_threads())
    return grads


def depthwise_gradients(
    x: Tensor,
    dh: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor | None:
    """Return every example's kernel gradient of a depthwise convolution, [m, c, 1, k, k].

    Images in another layout are copied into this one, which takes less time than products of their
    positions.

    Args:
        x: [m, c, h, w], the input.
        dh: [m, c, h', w'], the output gradient.
        kernel: rows and columns; so are the following pairs.
        stride: of the convolution.
        padding: zeros around x.
        dilation: distance between the kernel's positions.

    Returns:
        None where the kernels do not support the images.
    """
    if not (would_take(x) and would_take(dh)):
        return None
    x, dh = side_by_side(x.resolve_neg()), side_by_side(dh.resolve_neg())
    grads = x.new_empty(*x.shape[:2], 1, *kernel)
    layer = _layer(x, dh, kernel, stride, padding, dilation)
    tensors = map(address, (x, dh, grads))
    functions().depthwise_gradients(layer, *tensors, torch.get_num_threads())
    return grads


def kept_squares(
    x: Tensor,
    dh: Tensor,
    is_kept: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Return the squared norms of some entries of every example's kernel gradient, [m] in float64.

    The gradients are not written to memory. At most `compiled().most_squares`
    squares are added in float32, one after the other.

    Args:
        x: [m, d, h, w], the input.
        dh: [m, p, h', w'], the output gradient.
        is_kept: [p * d * k * k], booleans.
        kernel: rows and columns; so are the following pairs.
        stride: of the convolution, which has no groups.
        padding: zeros around x.
        dilation: distance between the kernel's positions.
    """
    x, dh = side_by_side(x), side_by_side(dh)
    (m, d), p = x.shape[:2], dh.shape[1]
    last = is_kept.view(p, d, -1).mT.contiguous()  # [p, k k, d]
    pieces = -(-d // (2 * _lanes()))
    squares = torch.zeros(m, pieces, dtype=torch.float64, device=x.device)
    layer = _layer(x, dh, kernel, stride, padding, dilation)
    tensors = map(address, (x, dh, last, squares))
    functions().kept_squares(layer, *tensors, torch.get_num_threads())
    return squares.sum(1)


def _lanes() -> int:
    library = compiled()
    assert library is not None, "no kernels are compiled: ask `are_taken` first"
    return library.lanes


def _layer(x: Tensor, dh: Tensor, *pairs: tuple[int, int]) -> Any:
    """Return the sizes of a layer as C reads them; pairs are of rows and columns."""
    sizes = (*x.shape[2:], *dh.shape[2:])
    return struct(*x.shape[:2], dh.shape[1], *sizes, *(side for pair in pairs for side in pair))
