"""The small convolutional network of gep's MNIST rows (gep, Section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.types import ConfigError

POOLED = 4
"""Factor by which both poolings together shrink each side of an image."""


class CNN(nn.Module):
    """Two convolutions, each followed by ReLU and 2 x 2 max-pooling, and one linear layer."""

    def __init__(
        self,
        channels: Sequence[int],
        kernel: int,
        in_channels: int,
        num_classes: int,
        image_size: Sequence[int],
    ) -> None:
        """Build the network.

        Args:
            channels: outputs of the two convolutions.
            kernel: side of both kernels, odd; padded, so that only pooling shrinks the image.
            in_channels: channels of the images.
            num_classes: outputs.
            image_size: height and width, in pixels, each at least 4.

        Raises:
            ConfigError: a size is invalid.
        """
        super().__init__()
        height, width = image_size
        if len(channels) != 2 or min(channels) < 1 or kernel < 1 or kernel % 2 == 0:
            raise ConfigError(
                "Expected two numbers of channels >= 1 and an odd kernel; got "
                f"channels={list(channels)} and kernel={kernel}. Set model.channels, model.kernel."
            )
        if min(height, width) < POOLED:
            raise ConfigError(
                f"Expected images of at least {POOLED} x {POOLED} pixels; got {height} x {width}. "
                "Set another model."
            )
        first, second = channels
        self.conv1 = nn.Conv2d(in_channels, first, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv2d(first, second, kernel, padding=kernel // 2)
        self.head = nn.Linear(second * (height // POOLED) * (width // POOLED), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, c, h, w] to logits [n, num_classes]."""
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        return self.head(h.flatten(1))
