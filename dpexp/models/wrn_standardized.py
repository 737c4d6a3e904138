"""Wide ResNet with standardised weights, as in De et al. 2022 (arXiv 2204.13650, Section 3).

What the paper does not print is their code's (jax_privacy, image_classification/models/cifar.py):
ReLU stands before GroupNorm, the first convolution has 16 channels, the first block of a stage has
a shortcut of its own norm and a 1 x 1 convolution, and norms, convolutions and classifier have
biases.

Difference: a strided 3 x 3 convolution pads one pixel at each side, theirs the far sides alone.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.models.blocks import in_layout, require_layout
from dpexp.models.standardized import GainedConv2d
from dpexp.types import ConfigError


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> GainedConv2d:
    """Return a standardised convolution with a gain and a bias."""
    layer = GainedConv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
    _init_by_fan_in(layer.weight)
    nn.init.zeros_(layer.get_parameter("bias"))
    return layer


def _init_by_fan_in(weight: Tensor) -> None:
    """Draw from a normal, truncated at two deviations, of variance 1 / fan-in after that."""
    deviation = math.sqrt(1 / weight[0].numel()) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class Branch(nn.Sequential):
    """GroupNorm and a convolution, behind a ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int) -> None:
        """Set channels, kernel, stride and the norm's groups."""
        norm = nn.GroupNorm(groups, inputs)
        super().__init__(norm, convolution(inputs, outputs, kernel, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        return super().forward(F.relu(x))


class Block(nn.Module):
    """Two branches of 3 x 3 convolutions in a row, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, first: bool) -> None:
        """Set channels, stride, groups, and whether it is a stage's first, with a convolution."""
        super().__init__()
        self.shortcut = Branch(inputs, outputs, 1, stride, groups) if first else nn.Identity()
        self.branch1 = Branch(inputs, outputs, 3, stride, groups)
        self.branch2 = Branch(outputs, outputs, 3, 1, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        return self.branch2(self.branch1(x)) + self.shortcut(x)


class StandardizedWRN(nn.Module):
    """WRN-depth-width: three stages of widths 16, 32, 64 times `width`."""

    def __init__(
        self,
        depth: int,
        width: int,
        groups: int,
        channels_last: bool | str,
        in_channels: int,
        num_classes: int,
    ) -> None:
        """Build the network.

        Args:
            depth: 6 b + 4 for b blocks a stage; 16 and 40 in the paper.
            width: widening factor, >= 1.
            groups: of every GroupNorm, a divisor of 16.
            channels_last: as of `WideResNet`.
            in_channels: channels of the images.
            num_classes: outputs.

        Raises:
            ConfigError: for a value outside its range.
        """
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ConfigError(
                f"Expected a depth of 6 b + 4 (10, 16, 22, 28, ...); got {depth}. Set model.depth."
            )
        if width < 1:
            raise ConfigError(f"Expected model.width >= 1; got {width}. Set model.width.")
        if groups < 1 or 16 % groups:
            raise ConfigError(
                f"Expected model.groups of 1, 2, 4, 8 or 16; got {groups}. Set model.groups."
            )
        require_layout(channels_last)
        self._channels_last = channels_last
        self.stem = convolution(in_channels, 16, 3)
        blocks, inputs = [], 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Block(inputs, outputs, stride, groups, first=block == 0))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(groups, inputs)
        self.head = nn.Linear(inputs, num_classes)
        _init_by_fan_in(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, c, h, w] to logits [n, num_classes]."""
        x = in_layout(x, self._channels_last)
        h = self.norm(F.relu(self.blocks(self.stem(x))))
        return self.head(h.mean((2, 3)))
