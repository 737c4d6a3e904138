"""Examples in memory: what a run reads them from, and those that are tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from dpexp.types import Batch, ConfigError


class ExampleSet(Protocol):
    """What a run reads examples from: `Examples`, `dpexp.data.text.Texts`, or one's own.

    Attributes:
        targets: [n], class indices, or numbers in a regression.
    """

    @property
    def targets(self) -> Tensor:
        """Return what is to be predicted, [n]."""

    @property
    def nbytes(self) -> int:
        """Memory of the examples, in bytes."""

    def __len__(self) -> int:
        """Return n."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, to be hashed."""

    def to(self, device: torch.device | str) -> Self:
        """Return the same examples on a device."""

    def take(self, indices: Tensor) -> Self:
        """Return the examples of the indices [m]."""

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of the indices [m] (m may be 0)."""

    def micro_batches(self, indices: Tensor, size: int) -> Iterable[Tensor]:
        """Split indices [m] (m may be 0) into micro-batches of at most `size` examples' cost."""


AnySet = TypeVar("AnySet", bound=ExampleSet)


@dataclass(frozen=True, eq=False)
class Examples:
    """A set of examples, small enough for one device.

    Attributes:
        inputs: [n, ...]; uint8 in [0, 255], scaled to [0, 1] in batches, or floats or other
            integers, used as stored.
        targets: [n], class indices, or numbers in a regression.
        mean: of the inputs in [0, 1], one number per channel (dimension 1); None: not normalised.
        std: likewise.
    """

    inputs: Tensor
    targets: Tensor
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check mean and std.

        Raises:
            ConfigError: their length is not the number of channels or one, or a std is not
                positive.
        """
        for name, lowest in (("mean", -math.inf), ("std", 0.0)):
            values = getattr(self, name)
            if values is not None and not _are_above(lowest, values, self.inputs.shape[1]):
                which = "positive numbers" if name == "std" else "numbers"
                raise ConfigError(
                    f"Expected task.{name} to be {which}, one a channel or one for all; got "
                    f"{list(values)}. Set task.{name}."
                )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """Memory of the examples, in bytes."""
        return self.inputs.nbytes + self.targets.nbytes

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, to be hashed."""
        return self.inputs, self.targets

    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples on a device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def take(self, indices: Tensor) -> Examples:
        """Return the examples of the indices [m]."""
        return replace(self, inputs=self.inputs[indices], targets=self.targets[indices])

    def batch(self, indices: Tensor) -> Batch:
        """Return the normalised batch of the indices [m] (m may be 0); uint8 becomes float32."""
        indices = indices.to(self.inputs.device)
        inputs = self.inputs.index_select(0, indices)
        inputs = inputs.to(torch.float32) if inputs.dtype == torch.uint8 else inputs
        scale, shift = self._affine
        if scale is not None and shift is not None:
            inputs = inputs.mul_(scale).sub_(shift)
        return Batch(inputs, self.targets.index_select(0, indices))

    def micro_batches(self, indices: Tensor, size: int) -> Iterable[Tensor]:
        """Split indices [m] (m may be 0) into micro-batches of at most `size`."""
        return indices.split(size) if len(indices) else ()

    @cached_property
    def _affine(self) -> tuple[Tensor | None, Tensor | None]:
        """Fold [0, 255] -> [0, 1] -> normalised into one scale and shift, [1, c, 1, ...]."""
        unit = 255.0 if self.inputs.dtype == torch.uint8 else 1.0
        if self.mean is None and unit == 1.0:
            return None, None
        mean = torch.tensor([0.0] if self.mean is None else list(self.mean), dtype=torch.float64)
        std = torch.tensor([1.0] if self.std is None else list(self.std), dtype=torch.float64)
        shape = (1, -1) + (1,) * (self.inputs.ndim - 2)
        device = self.inputs.device
        scale, shift = (1.0 / (unit * std)).float(), (mean / std).float()
        return scale.view(shape).to(device), shift.view(shape).to(device)


def _are_above(lowest: float, values: Sequence[float], channels: int) -> bool:
    are_numbers = all(isinstance(v, int | float) and lowest < v < math.inf for v in values)
    return are_numbers and len(values) in (1, channels)


def in_tensors(examples: ExampleSet) -> Examples:
    """Return examples that are inputs and targets in tensors, and nothing else, as such."""
    assert isinstance(examples, Examples), type(examples).__name__
    return examples


def subset(examples: AnySet, size: int | None, seed: int) -> AnySet:
    """Return the first `size` examples of a permutation drawn from `seed`; all for None.

    Raises:
        ConfigError: there are fewer than `size` examples.
    """
    if size is None:
        return examples
    if not 1 <= size <= len(examples):
        raise ConfigError(f"Expected task.train_size in [1, {len(examples)}]; got {size}.")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return examples.take(order[:size])
