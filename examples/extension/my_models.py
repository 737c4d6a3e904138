"""A model with a layer of its own, and the rule for that layer's per-example gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpexp import grad_sample


class Gain(nn.Module):
    """Multiplies each coordinate by a trained gain, after tanh: y = gain * tanh(x)."""

    def __init__(self, size: int) -> None:
        """Start from ones."""
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return y for x [n, size]."""
        return self.gain * torch.tanh(x)


@grad_sample.rule(Gain, parameters=("gain",))
def gain(layer: Gain, x: Tensor, dh: Tensor) -> dict[str, Tensor]:
    """Return each example's gradient from its input x and output gradient dh, both [n, size]."""
    return {"gain": dh * torch.tanh(x)}


class GainNet(nn.Module):
    """One hidden layer on flattened images."""

    def __init__(self, input_shape: Sequence[int], num_classes: int, hidden: int) -> None:
        """Take the task's shapes, and the hidden width."""
        super().__init__()
        self.first = nn.Linear(torch.Size(input_shape).numel(), hidden)
        self.gain = Gain(hidden)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, num_classes] for images [n, channels, height, width]."""
        return self.head(self.gain(self.first(x.flatten(1))))
