"""Wide ResNets with GroupNorm as the rgp authors have it: pre-activation, plain shortcuts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3 x 3 convolution."""
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def norm(channels: int) -> nn.GroupNorm:
    """Return a GroupNorm without parameters."""
    return nn.GroupNorm(min(32, channels), channels, affine=False)


class Block(nn.Module):
    """Two convolutions, each behind a norm and a ReLU, beside a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Set channels and stride."""
        super().__init__()
        self.norm1, self.conv1 = norm(inputs), conv(inputs, outputs, stride)
        self.norm2, self.conv2 = norm(outputs), conv(outputs, outputs)
        self.stride, self.more = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        h = self.conv1(F.relu(self.norm1(x)))
        h = self.conv2(F.relu(self.norm2(h)))
        return h + F.pad(F.avg_pool2d(x, 1, self.stride), (0, 0, 0, 0, 0, self.more))


class WideResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels times `width`."""

    def __init__(self, depth: int, width: int, stem_stride: int, num_classes: int = 10) -> None:
        """Build the network."""
        super().__init__()
        inputs = 16 * width
        self.stem, blocks = conv(3, inputs, stem_stride), []
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Block(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(inputs)
        self.head = nn.Linear(inputs, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, 3, h, w] to logits [n, num_classes]."""
        h = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(h.mean((2, 3)))
