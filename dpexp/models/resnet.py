"""ResNet for small images with GroupNorm (He et al. 2016, Section 4.2; gep, Section 4)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.kernels import norm_relu
from dpexp.models.blocks import conv3x3, in_layout, require_layout, shortcut
from dpexp.types import ConfigError


def group_norm(channels: int) -> nn.GroupNorm:
    """Return 4 groups and no affine parameters, as the gep authors do."""
    return nn.GroupNorm(4, channels, affine=False)


class PostActivationBlock(nn.Module):
    """Convolution, norm, ReLU, twice; the shortcut joins before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Set channels and stride."""
        super().__init__()
        self.stride, self.channels = stride, outputs
        self.conv1, self.norm1 = conv3x3(inputs, outputs, stride), group_norm(outputs)
        self.conv2, self.norm2 = conv3x3(outputs, outputs), group_norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        h = norm_relu(self.norm1, self.conv1(x))
        h = self.norm2(self.conv2(h))
        return F.relu(h + shortcut(x, self.channels, self.stride))


class ResNet(nn.Module):
    """ResNet-depth: three stages of widths 16, 32, 64."""

    def __init__(
        self, depth: int, channels_last: bool | str, in_channels: int, num_classes: int
    ) -> None:
        """Build the network.

        Args:
            depth: 6 b + 2 for b blocks a stage; 20 in gep.
            channels_last: whether to store features as [n, h, w, c]: True, False, or "auto", if our
                kernels make that faster; the same numbers up to rounding.
            in_channels: channels of the images.
            num_classes: outputs.

        Raises:
            ConfigError: if the depth is not 6 b + 2, or channels_last is invalid.
        """
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ConfigError(
                f"Expected a depth of 6 b + 2 (8, 14, 20, ...); got {depth}. Set model.depth."
            )
        require_layout(channels_last)
        self._channels_last = channels_last
        self.stem, self.norm = conv3x3(in_channels, 16), group_norm(16)
        stages, inputs = [], 16
        for stage, outputs in enumerate((16, 32, 64)):
            for block in range((depth - 2) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(PostActivationBlock(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, c, h, w] to logits [n, num_classes]."""
        x = in_layout(x, self._channels_last)
        h = self.blocks(norm_relu(self.norm, self.stem(x)))
        return self.head(h.mean((2, 3)))
