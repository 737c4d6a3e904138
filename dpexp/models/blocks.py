"""Shared parts of the residual networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp import kernels
from dpexp.types import ConfigError


def require_layout(channels_last: bool | str) -> None:
    """Refuse what `in_layout` does not know.

    Raises:
        ConfigError: unless it is True, False or "auto".
    """
    if channels_last not in (True, False, "auto"):
        raise ConfigError(
            f"Expected model.channels_last to be true, false or auto; got {channels_last}."
        )


def in_layout(images: Tensor, channels_last: bool | str) -> Tensor:
    """Return images [n, c, h, w] in a memory format, which what follows keeps.

    Args:
        images: to convert.
        channels_last: True: as [n, h, w, c]; False: contiguous; "auto": the first where our kernels
            make it faster.
    """
    last = kernels.would_take(images) if channels_last == "auto" else channels_last
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


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
