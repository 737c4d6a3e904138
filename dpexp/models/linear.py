"""A linear model: linear regression, or a classifier of pixels or features."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn


class Linear(nn.Module):
    """A linear layer without bias, initialised to zero, for examples of any shape.

    Both papers have no bias: theta^T x in compressive (Section 4), 4096 x 10 parameters in gep
    (Appendix A). The losses are convex, so no random initialisation is needed.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Build the layer.

        Args:
            input_shape: of one example.
            num_classes: outputs.
        """
        super().__init__()
        self.head = nn.Linear(math.prod(input_shape), num_classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map examples [n, ...] to outputs [n, num_classes]."""
        return self.head(x.flatten(1))
