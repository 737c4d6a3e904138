"""Geometry of a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """Geometry of a convolution; every pair is (rows, columns)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def shifts(self) -> list[tuple[int, int]]:
        """Return the kernel's positions, row by row."""
        return list(product(range(self.kernel[0]), range(self.kernel[1])))

    def fold(self, x: Tensor) -> Tensor:
        """Reshape [n, groups * c, h, w] to [n * groups, c, h, w]."""
        return x if self.groups == 1 else x.reshape(-1, x.shape[1] // self.groups, *x.shape[2:])

    def unfold(self, values: Tensor) -> Tensor:
        """Reshape [n * groups, ...] to [n, groups, ...]."""
        return values.view(-1, self.groups, *values.shape[1:])

    def touching(self, axis: int, shift: int, outputs: int, inputs: int) -> tuple[slice, slice]:
        """Return the outputs whose kernel position `shift` is inside the image, and its inputs.

        Args:
            axis: 0 for rows, 1 for columns.
            shift: kernel position along the axis.
            outputs: output size along the axis.
            inputs: input size along the axis, without padding.

        Returns:
            Slices of the outputs and of the inputs, of equal length.
        """
        stride, offset = self.stride[axis], shift * self.dilation[axis] - self.padding[axis]
        first = max(0, -(offset // stride))
        last = min(outputs, (inputs - 1 - offset) // stride + 1)
        count = max(0, last - first)
        start = first * stride + offset
        stop = start + (count - 1) * stride + 1 if count else start
        return slice(first, first + count), slice(start, stop, stride)
