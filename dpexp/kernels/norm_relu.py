"""GroupNorm without parameters, then ReLU.

With two channels a group, as in a wide ResNet's first stage, torch's GroupNorm takes channels-last
images a channel or two at a time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dpexp.kernels.compiled import address, compiled, is_channels_last, struct


def norm_relu(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """Give relu(norm(x)), in x's memory format.

    Args:
        norm: torch's own operations take one with parameters.
        x: [n, channels, h, w].
    """
    if norm.affine or not is_channels_last(x) or compiled() is None:
        return F.relu(norm(x), inplace=True)
    if x.shape[1] > compiled().most_channels:
        return F.relu(norm(x), inplace=True)
    return _NormReLU.apply(x, norm.num_groups, norm.eps)


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, eps: float) -> Tensor:
        """Give the activations; keep them, what they are of and every channel's statistics."""
        y = torch.empty_like(x)
        mean, scale = x.new_empty(2, *x.shape[:2])
        tensors = map(address, (x, y, mean, scale))
        images, threads = _images(x, groups), torch.get_num_threads()
        compiled().functions.norm_relu(images, ctypes.c_float(eps), *tensors, threads)
        ctx.save_for_backward(x, y, mean, scale)
        ctx.groups = groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """Give the gradient at x."""
        x, *others = ctx.saved_tensors
        dy, dx = dy.contiguous(memory_format=torch.channels_last), torch.empty_like(x)
        tensors = map(address, (x, *others, dy, dx))
        images, threads = _images(x, ctx.groups), torch.get_num_threads()
        compiled().functions.norm_relu_backward(images, *tensors, threads)
        return dx, None, None


def _images(x: Tensor, groups: int) -> ctypes.Array:
    n, channels, *sides = x.shape
    return struct(n, sides[0] * sides[1], channels, groups)
