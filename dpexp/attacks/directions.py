"""Directions of canaries: one coordinate each, or one random direction each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.grad_sample.rounding import size_of_held
from dpexp.types import PerExampleGrads, Size


@dataclass(frozen=True)
class Spikes:
    """Per-example one-hot vectors, restricted to one block.

    Attributes:
        values: [n]; zero if an example's entry is in another block.
        places: [n], indices into the flattened block.
        shape: of the block.
    """

    values: Tensor
    places: Tensor
    shape: tuple[int, ...]

    def measured(self) -> tuple[Size, Spikes]:
        """Return every example's size, and the vectors to keep until the weights are known."""
        return size_of_held(self.values[:, None]), self

    def norms_squared(self) -> Tensor:
        """Return an upper bound on every example's squared l2 norm, [n] in float64."""
        return self.measured()[0].squares

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the examples' blocks to their sum, each times its weight [n] (None: all ones)."""
        values = self.values if weights is None else self.values * weights.to(self.values.dtype)
        total.view(-1).index_add_(0, self.places, values.to(total.dtype))

    def materialize(self) -> Tensor:
        """Return every example's block, [n, ...]."""
        whole = self.values.new_zeros(len(self.values), math.prod(self.shape))
        whole.scatter_(1, self.places[:, None], self.values[:, None])
        return whole.view(-1, *self.shape)

    def select(self, mask: Tensor) -> Spikes:
        """Drop the examples where mask [n] is False."""
        return Spikes(self.values[mask], self.places[mask], self.shape)

    def double(self) -> Spikes:
        """Return the same vectors in float64."""
        return Spikes(self.values.double(), self.places, self.shape)


class Directions(Protocol):
    """One direction of a released vector for each canary."""

    def grads(
        self, who: Tensor, start: int, shape: tuple[int, ...], norms: Tensor
    ) -> PerExampleGrads:
        """Return the part of canaries' vectors that lies within one block.

        Args:
            who: indices of the canaries, [n].
            start: position of the block in the released vector.
            shape: of the block.
            norms: of the whole vectors, [n].
        """

    def inner(self, vector: Tensor) -> Tensor:
        """Return every canary's inner product with a vector [d], [m]."""


@dataclass(frozen=True)
class Coordinates:
    """A coordinate and a sign for each canary: one-hot vectors ("Dirac").

    Attributes:
        places: [m], distinct if there are enough coordinates, else each used equally often.
        signs: [m], 1 or -1.
    """

    places: Tensor
    signs: Tensor

    @staticmethod
    def draw(m: int, dimension: int, gen: torch.Generator, like: Tensor) -> Coordinates:
        """Draw them for m canaries and a vector of that dimension."""
        rounds = [torch.randperm(dimension, generator=gen) for _ in range(-(-m // dimension))]
        signs = 2.0 * torch.randint(2, (m,), generator=gen) - 1
        return Coordinates(torch.cat(rounds)[:m].to(like.device), signs.to(like))

    def grads(
        self, who: Tensor, start: int, shape: tuple[int, ...], norms: Tensor
    ) -> PerExampleGrads:
        """Return the part within one block of some canaries."""
        places, values = self.places[who] - start, norms.to(self.signs) * self.signs[who]
        inside = (places >= 0) & (places < math.prod(shape))
        return Spikes(values * inside, places * inside, shape)

    def inner(self, vector: Tensor) -> Tensor:
        """Return every canary's inner product with a vector."""
        return vector[self.places] * self.signs


@dataclass(frozen=True)
class Dense:
    """A uniformly random unit vector for each canary.

    Attributes:
        rows: [m, d].
    """

    rows: Tensor

    @staticmethod
    def draw(m: int, dimension: int, gen: torch.Generator, like: Tensor) -> Dense:
        """Draw them for m canaries and a vector of that dimension."""
        rows = torch.randn(m, dimension, generator=gen)
        return Dense((rows / rows.norm(dim=1, keepdim=True)).to(like))

    def grads(
        self, who: Tensor, start: int, shape: tuple[int, ...], norms: Tensor
    ) -> PerExampleGrads:
        """Return the part within one block of some canaries."""
        part = norms.to(self.rows)[:, None] * self.rows[who, start : start + math.prod(shape)]
        return MaterializedGrads(part.reshape(-1, *shape))

    def inner(self, vector: Tensor) -> Tensor:
        """Return every canary's inner product with a vector."""
        return self.rows @ vector.to(self.rows.dtype)


KINDS: dict[str, Callable[[int, int, torch.Generator, Tensor], Directions]] = {
    "dirac": Coordinates.draw,
    "random": Dense.draw,
}
