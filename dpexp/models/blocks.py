"""What the two residual networks share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3 x 3 convolution without bias, He fan-out initialisation."""
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def shortcut(x: Tensor, channels: int, stride: int, norm: nn.Module | None = None) -> Tensor:
    """Match a block's output without parameters: a strided pick, then zero channels appended.

    Args:
        x: [n, c, h, w].
        channels: of the output, >= c.
        stride: of the pick.
        norm: of what was picked; None: it stays as it is.
    """
    if stride > 1:
        x = F.avg_pool2d(x, 1, stride)  # a pick whose backward keeps the memory format
    x = x if norm is None else norm(x)
    if channels > x.shape[1]:
        x = F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))
    return x
