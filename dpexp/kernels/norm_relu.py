"""GroupNorm without parameters, followed by ReLU.

With two channels a group, as in a wide ResNet's first stage, torch's GroupNorm processes
channels-last images only one or two channels at a time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.kernels.compiled import (
    address,
    compiled,
    functions,
    is_channels_last,
    side_by_side,
    struct,
)


def norm_relu(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """Return relu(norm(x)), in x's memory format.

    Args:
        norm: with parameters, torch's operations are used.
        x: [n, channels, h, w].
    """
    if norm.affine or x.shape[1] % norm.num_groups or not is_channels_last(x):
        return F.relu(norm(x), inplace=True)
    library = compiled()
    if library is None or x.shape[1] > library.most_channels:
        return F.relu(norm(x), inplace=True)
    return _NormReLU.apply(side_by_side(x), norm.num_groups, norm.eps)[0]


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the activations, and every channel's mean and inverse standard deviation."""
        y = torch.empty_like(x)
        mean, scale = x.new_empty(2, *x.shape[:2])
        tensors = map(address, (x, y, mean, scale))
        images, threads = _images(x, groups), torch.get_num_threads()
        functions().norm_relu(images, ctypes.c_float(eps), *tensors, threads)
        return y, mean, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, float], output: Any) -> None:
        """Keep what backward needs."""
        x, ctx.groups, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient at x."""
        x, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives may be needed
            again = F.relu(F.group_norm(x, ctx.groups, eps=ctx.eps))
            return *torch.autograd.grad(again, x, dy, create_graph=True), None, None
        dy, dx = side_by_side(dy), torch.empty_like(x)
        tensors = map(address, (x, *saved, dy, dx))
        images, threads = _images(x, ctx.groups), torch.get_num_threads()
        functions().norm_relu_backward(images, *tensors, threads)
        return dx, None, None


def _images(x: Tensor, groups: int) -> ctypes.Array:
    n, channels, *sides = x.shape
    return struct(n, sides[0] * sides[1], channels, groups)
