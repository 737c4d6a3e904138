"""WRN-16-4 with standardised weights and GroupNorm (De et al. 2022, arXiv 2204.13650)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class WSConv2d(nn.Conv2d):
    """A convolution of standardised weights, with a gain that trains."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        """Set channels, kernel and stride."""
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2)
        nn.init.trunc_normal_(self.weight, std=1.0, a=-2.0, b=2.0)
        self.weight.data.div_(0.87962566 * self.weight[0].numel() ** 0.5)
        nn.init.zeros_(self.bias)
        self.gain = nn.Parameter(self.weight.new_ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        scale = weight.square().sum((1, 2, 3), keepdim=True).clamp(min=1e-4).sqrt()
        weight = weight / scale * self.gain[:, None, None, None]
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Branch(nn.Sequential):
    """ReLU, GroupNorm, convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        """Set channels, kernel and stride."""
        super().__init__(nn.GroupNorm(16, inputs), WSConv2d(inputs, outputs, kernel, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        return super().forward(F.relu(x))


class Block(nn.Module):
    """Two branches beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, first: bool) -> None:
        """Set channels and stride; a stage's first block has a convolution for its shortcut."""
        super().__init__()
        self.shortcut = Branch(inputs, outputs, 1, stride) if first else nn.Identity()
        self.branch1 = Branch(inputs, outputs, 3, stride)
        self.branch2 = Branch(outputs, outputs, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        return self.branch2(self.branch1(x)) + self.shortcut(x)


class WideResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels times `width`."""

    def __init__(self, depth: int = 16, width: int = 4, num_classes: int = 10) -> None:
        """Build the network."""
        super().__init__()
        self.stem = WSConv2d(3, 16, 3)
        blocks, inputs = [], 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Block(inputs, outputs, stride, first=block == 0))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.GroupNorm(16, inputs)
        self.head = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, 3, h, w] to logits [n, num_classes]."""
        h = self.norm(F.relu(self.blocks(self.stem(x))))
        return self.head(h.mean((2, 3)))
