"""Batches of per-example vectors: held, or only described.

Both know their squared norm per example and their weighted sum, which is all that clipping needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from dpexp.chunks import over_chunks, upper_bound

LONG = 2**10
"""Numbers beyond which a norm is taken in pieces of so many: one after another in float32, equal
ones lose up to 2e-6 of their sum where there are 1,024 and 9e-5 where there are 65,536 (measured on
a CPU), and clipping would let half of that more through."""


@dataclass(frozen=True)
class Explicit:
    """Per-example vectors that are held.

    Attributes:
        values: [n, ...]; matrices may be held transposed, as a view.
    """

    values: Tensor

    def measured(self) -> tuple[Tensor, Explicit]:
        """Give the squared norms [n], and what to hold until the weights are known."""
        return self.squared_norms(), self

    def squared_norms(self) -> Tensor:
        """Give the squared l2 norm of every example's block, [n]."""
        held = self.values.mT if self._is_transposed() else self.values
        numbers = prod(held.shape[1:])
        if numbers > LONG:
            return over_chunks(_long_squares, (held,), numbers)
        return torch.linalg.vector_norm(held.flatten(1), dim=1).square()

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the blocks to their sum, each times its weight [n] (None: all ones)."""
        total += self._weighted_sum(weights).view_as(total)

    def _weighted_sum(self, weights: Tensor | None) -> Tensor:
        if weights is None:
            return self.values.sum(0)
        weights = weights.to(self.values.dtype)
        if self._is_transposed():
            return torch.tensordot(weights, self.values.mT, dims=1).mT
        return torch.tensordot(weights, self.values, dims=1)

    def each(self) -> Tensor:
        """Give the vectors, [n, ...]."""
        return self.values

    def keep(self, mask: Tensor) -> Explicit:
        """Drop the examples where mask [n] is False."""
        return Explicit(self.values[mask])

    def _is_transposed(self) -> bool:
        return self.values.ndim == 3 and self.values.mT.is_contiguous()


def _long_squares(values: Tensor) -> Tensor:
    """Give the squared norms of long vectors, [n], from those of their pieces."""
    flat = values.flatten(1)
    whole = flat.shape[1] // LONG * LONG
    pieces = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, LONG)), dim=2)
    rest = torch.linalg.vector_norm(flat[:, whole:], dim=1)
    return pieces.square().sum(1) + rest.square()


class OuterRule(Protocol):
    """How one layer type turns (input, output gradient) into a parameter's gradient."""

    def formed(self, x: Tensor, dh: Tensor) -> Tensor | None:
        """Form every example's gradient where it is smaller than x and dh together, else None."""

    def squared_norms(self, x: Tensor, dh: Tensor) -> Tensor:
        """Give the squared norm of every example's gradient, [n], without keeping it."""

    def energy(self, x: Tensor, dh: Tensor) -> Tensor:
        """Bound the squared norm, [n], of a gradient whose terms were all added as positive."""

    def add_to(self, total: Tensor, x: Tensor, dh: Tensor) -> None:
        """Add the examples' gradients to their sum, which has the parameter's shape."""

    def each(self, x: Tensor, dh: Tensor) -> Tensor:
        """Form every example's gradient, [n, ...] in the parameter's shape; callers may edit it."""


@dataclass(frozen=True)
class Outer:
    """Per-example gradients described by a layer's input and output gradient, never formed.

    Scaling example i's gradient by w_i is scaling its dh_i, so the clipped sum is one ordinary
    batch gradient: no second backward pass (book-keeping; Bu et al. 2023, arXiv 2210.00038).
    Where a layer's gradients are smaller than its input and output gradient, as in the first
    stage of a ResNet, `measured` forms them once and holds those instead: less memory, and no
    second product.

    Attributes:
        rule: the layer type's arithmetic.
        x: [n, ...], the layer's input.
        dh: [n, ...], the gradient at its output.
    """

    rule: OuterRule
    x: Tensor
    dh: Tensor

    def measured(self) -> tuple[Tensor, Explicit | Outer]:
        """Give the squared norms [n], and the smaller thing to hold until the weights are known."""
        formed = self.rule.formed(self.x, self.dh)
        return (self.squared_norms(), self) if formed is None else Explicit(formed).measured()

    def squared_norms(self) -> Tensor:
        """Give the squared l2 norm of every example's gradient, [n]."""
        return self.rule.squared_norms(self.x, self.dh)

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the gradients to their sum, each times its weight [n] (None: all ones)."""
        dh = self.dh
        if weights is not None:
            dh = dh * weights.to(dh.dtype).view(-1, *[1] * (dh.dim() - 1))
        self.rule.add_to(total, self.x, dh)

    def each(self) -> Tensor:
        """Form every example's gradient side by side, [n, ...]."""
        return self.rule.each(self.x, self.dh)

    def keep(self, mask: Tensor) -> Outer:
        """Drop the examples where mask [n] is False."""
        return replace(self, x=self.x[mask], dh=self.dh[mask])


AT_LEAST = 2**20  # ours: numbers to form at once even where a layer holds fewer; 4 MB in float32


@dataclass(frozen=True)
class Masked:
    """Some entries of per-example gradients that are described by an `Outer`.

    Which entries an inner product leaves out cannot be told from Gram matrices, so norms need the
    gradients themselves: they are formed a few examples at a time, never many more numbers at once
    than the layer's input and output gradient hold, and thrown away again.

    Attributes:
        whole: the gradients.
        entries: [kept], indices into one example's flattened gradient.
        shape: of that.
    """

    whole: Outer
    entries: Tensor
    shape: tuple[int, ...]

    def measured(self) -> tuple[Tensor, Explicit | Masked]:
        """Give the squared norms [n], and the smaller thing to hold until the weights are known."""
        if len(self.entries) < self._held():
            return Explicit(self.each()).measured()
        return self.squared_norms(), self

    def squared_norms(self) -> Tensor:
        """Give the squared l2 norm of every example's kept entries, [n]."""
        # Zeros for what is left out cost less than picking the rest (ours, measured on CPUs).
        is_kept = self.whole.dh.new_zeros(prod(self.shape)).index_fill_(0, self.entries, 1)
        squares = torch.cat([piece.mul_(is_kept).square_().sum(1) for piece in self._pieces()])
        return upper_bound(squares, self.whole.rule.energy(self.whole.x, self.whole.dh))

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the kept entries to their sum [kept], each times its weight [n] (None: all ones)."""
        whole = total.new_zeros(self.shape)
        self.whole.add_to(whole, weights)
        total += whole.flatten().index_select(0, self.entries)

    def each(self) -> Tensor:
        """Form every example's kept entries side by side, [n, kept]."""
        return torch.cat([piece.index_select(1, self.entries) for piece in self._pieces()])

    def keep(self, mask: Tensor) -> Masked:
        """Drop the examples where mask [n] is False."""
        return replace(self, whole=self.whole.keep(mask))

    def _held(self) -> int:
        return self.whole.x[0].numel() + self.whole.dh[0].numel()

    def _pieces(self) -> Iterator[Tensor]:
        whole = self.whole
        numbers = max(len(whole.x) * self._held(), AT_LEAST)
        size = max(1, numbers // prod(self.shape))
        for x, dh in zip(whole.x.split(size), whole.dh.split(size), strict=True):
            yield whole.rule.each(x, dh).flatten(1)
