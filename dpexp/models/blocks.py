"""Shared parts of the two residual networks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3 x 3 convolution without bias, He fan-out initialisation."""
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def shortcut(x: Tensor, channels: int, stride: int, norm: nn.Module | None = None) -> Tensor:
    """Return x subsampled and padded with zero channels to a block's output, without parameters.

    Args:
        x: [n, c, h, w].
        channels: of the output, >= c.
        stride: of the subsampling.
        norm: applied to the subsampled x; None: none.
    """
    if stride > 1:
        x = F.avg_pool2d(x, 1, stride)  # unlike slicing, keeps the memory format in backward
    x = x if norm is None else norm(x)
    if channels > x.shape[1]:
        x = F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
    return x
