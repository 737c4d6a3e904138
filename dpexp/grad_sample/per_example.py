"""Batches of per-example gradients: materialized or factored.

Both give bounds on every example's norm and a weighted sum, which is all that clipping needs.
`dpexp.grad_sample.rounding` bounds the rounding of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from dpexp.grad_sample.chunks import over_chunks
from dpexp.grad_sample.rounding import (
    AT_ONCE,
    EXAMPLES,
    Terms,
    add_,
    pieces_of,
    size_of_formed,
    size_of_held,
    size_of_squares,
)
from dpexp.linalg import as_rows, places
from dpexp.types import Size


@dataclass(frozen=True)
class MaterializedGrads:
    """Per-example gradients in memory.

    Attributes:
        values: [n, ...]; matrices may be transposed views.
    """

    values: Tensor

    def measured(self) -> tuple[Size, MaterializedGrads]:
        """Return every example's size, and what to keep until the clip weights are known."""
        held = self.values.mT if self._is_transposed() else self.values
        return over_chunks(size_of_held, (held,), max(1, prod(held.shape[1:]))), self

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's block from above, [n] in float64."""
        return self.measured()[0].squares

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the blocks, times their weights [n] (None: all ones), to `total`."""
        if weights is None:
            weights = self.values.new_ones(len(self.values))
        is_transposed = self._is_transposed()
        held = self.values.mT if is_transposed else self.values
        into = total.mT if is_transposed else total
        rows, weights = as_rows(held), weights.to(held.dtype)
        # Several products at once where their sums are small, and one by one where they are large.
        num = EXAMPLES * max(1, AT_ONCE // max(1, rows.shape[1]))
        for values, some in zip(rows.split(num), weights.split(num), strict=True):
            for part in _weighted_sums(values, some, total.dtype):
                add_(into, part.view_as(into))

    def materialize(self) -> Tensor:
        """Return the vectors, [n, ...]."""
        return self.values

    def select(self, mask: Tensor) -> MaterializedGrads:
        """Drop the examples where mask [n] is False."""
        return MaterializedGrads(self.values[mask])

    def double(self) -> MaterializedGrads:
        """Return the same vectors in float64."""
        return MaterializedGrads(self.values.double())

    def _is_transposed(self) -> bool:
        return self.values.ndim == 3 and self.values.mT.is_contiguous()


def _weighted_sums(rows: Tensor, weights: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield tensors [numbers] that add up to the rows [n, numbers] times their weights [n].

    A product adds up at most `EXAMPLES` rows; several are added in the total's precision.
    """
    whole = len(rows) // EXAMPLES * EXAMPLES
    if whole == EXAMPLES:
        yield weights[:whole] @ rows[:whole]
    elif whole:
        of_products = (
            weights[:whole].view(-1, 1, EXAMPLES),
            rows[:whole].unflatten(0, (-1, EXAMPLES)),
        )
        yield torch.bmm(*of_products).sum((0, 1), dtype=dtype)
    if whole < len(rows):
        yield weights[whole:] @ rows[whole:]


class FactoredRule(Protocol):
    """How one layer type turns (input, output gradient) into a parameter's gradient.

    Attributes:
        is_padded: whether an example's number of positions depends on the batch, as in texts.
    """

    is_padded: ClassVar[bool]

    def formed(self, x: Tensor, dh: Tensor) -> Tensor | None:
        """Return every example's gradient if it is smaller than x and dh together, else None."""

    def size(self, x: Tensor, dh: Tensor) -> Size:
        """Return the size of every example's gradient without keeping it."""

    def size_of_formed(self, formed: Tensor, x: Tensor, dh: Tensor) -> Size:
        """Return the size of every example's gradient from the formed gradients."""

    def terms(self, x: Tensor, dh: Tensor) -> Terms:
        """Return the size of the terms that each example's positions add to its gradient."""

    def num_positions(self, dh: Tensor) -> int:
        """Return the number of positions whose terms are added."""

    def add_to(self, total: Tensor, x: Tensor, dh: Tensor) -> None:
        """Add the examples' gradients to `total`, which has the parameter's shape."""

    def materialize(self, x: Tensor, dh: Tensor) -> Tensor:
        """Return every example's gradient, [n, ...] in the parameter's shape, safe to edit."""


@runtime_checkable
class SelectiveRule(Protocol):
    """A rule that may know some entries' norms without forming a gradient."""

    def kept_squares(self, x: Tensor, dh: Tensor, is_kept: Tensor) -> Tensor | None:
        """Return the squared norms of the entries where is_kept [numbers] is True, [n].

        None where the gradients must be formed. A sum in dh's precision has at most
        `rounding.LONG` squares; such sums are then added in float64.
        """


def size_by_forming(rule: FactoredRule, x: Tensor, dh: Tensor) -> Size:
    """Return the size of every example's gradient, formed, measured and discarded, by its rule."""
    formed = size_of_held(rule.materialize(x, dh))
    return size_of_formed(formed, rule.terms(x, dh), rule.num_positions(dh), dh.dtype)


@dataclass(frozen=True)
class FactoredGrads:
    """Per-example gradients given by a layer's input and output gradient.

    Scaling example i's gradient by w_i is scaling its dh_i. The clipped sum is therefore one
    ordinary batch gradient, without a second backward pass (book-keeping; Bu et al. 2023, arXiv
    2210.00038). If a layer's gradients are smaller than its input and output gradient, as in the
    first stage of a ResNet, `measured` forms them once and keeps them: less memory, and no second
    product.

    Attributes:
        rule: the layer type's rule.
        x: [n, ...], the layer's input.
        dh: [n, ...], the gradient at its output.
    """

    rule: FactoredRule
    x: Tensor
    dh: Tensor

    def measured(self) -> tuple[Size, MaterializedGrads | FactoredGrads]:
        """Return every example's size, and what to keep until the clip weights are known."""
        formed = self.rule.formed(self.x, self.dh)
        if formed is None:
            return self.rule.size(self.x, self.dh), self
        return self.rule.size_of_formed(formed, self.x, self.dh), MaterializedGrads(formed)

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's gradient from above, [n] in float64."""
        return self.rule.size(self.x, self.dh).squares

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the gradients, times their weights [n] (None: all ones), to `total`.

        Weighted, a few examples at a time: so many terms that the rounding is within its bound. A
        sum without weights is not clipped, and takes one product.
        """
        if weights is None:
            self.rule.add_to(total, self.x, self.dh)
            return
        size = pieces_of(len(self.x), self.rule.num_positions(self.dh))
        weights = weights.to(self.dh.dtype).view(-1, *[1] * (self.dh.dim() - 1))
        slices = (each.split(size) for each in (self.x, self.dh, weights))
        for x, dh, some in zip(*slices, strict=True):
            self.rule.add_to(total, x, dh * some)

    def materialize(self) -> Tensor:
        """Return every example's gradient, [n, ...]."""
        return self.rule.materialize(self.x, self.dh)

    def select(self, mask: Tensor) -> FactoredGrads:
        """Drop the examples where mask [n] is False."""
        return replace(self, x=self.x[mask], dh=self.dh[mask])

    def double(self) -> FactoredGrads:
        """Return the same gradients in float64."""
        x = self.x.double() if self.x.is_floating_point() else self.x
        return replace(self, x=x, dh=self.dh.double())


AT_LEAST = 2**20  # ours: numbers formed at once even if a layer has fewer; 4 MB in float32


@dataclass(frozen=True)
class MaskedGrads:
    """Selected entries of a `FactoredGrads`.

    Gram matrices do not give the norm of selected entries. Unless the rule knows it otherwise
    (`SelectiveRule`), the gradients are formed for it, a few examples at a time, with not many more
    numbers at once than the layer's input and output gradient have.

    Attributes:
        whole: the gradients.
        is_kept: [numbers], booleans, of one example's flattened gradient. Indices of a half of them
            would take four times the memory.
        shape: shape of one example's gradient.
    """

    whole: FactoredGrads
    is_kept: Tensor
    shape: tuple[int, ...]

    def measured(self) -> tuple[Size, MaterializedGrads | MaskedGrads]:
        """Return every example's size, and what to keep until the clip weights are known."""
        rule, x, dh = self.whole.rule, self.whole.x, self.whole.dh
        held: MaterializedGrads | MaskedGrads = self
        num_kept = int(self.is_kept.sum())
        if num_kept < self._held():
            held = MaterializedGrads(self.materialize())
            if not rule.is_padded:  # the formed values themselves are added, not their terms
                return rule.size_of_formed(held.values, x, dh), held
            formed = over_chunks(size_of_held, (held.values,), max(1, num_kept))
        else:
            formed = self._size()
        # Texts get the same bound in both branches, for the choice depends on padding, and so on
        # the other examples in the batch.
        return size_of_formed(formed, rule.terms(x, dh), rule.num_positions(dh), dh.dtype), held

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's kept entries from above, [n]."""
        return self.measured()[0].squares

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the kept entries, times their weights [n] (None: all ones), to `total` [kept]."""
        whole = total.new_zeros(self.shape)
        self.whole.add_to(whole, weights)
        total += whole.flatten().index_select(0, places(self.is_kept))

    def materialize(self) -> Tensor:
        """Return every example's kept entries, [n, kept]."""
        entries = places(self.is_kept)
        return torch.cat([piece.index_select(1, entries) for piece in self._pieces()])

    def select(self, mask: Tensor) -> MaskedGrads:
        """Drop the examples where mask [n] is False."""
        return replace(self, whole=self.whole.select(mask))

    def double(self) -> MaskedGrads:
        """Return the same entries in float64."""
        return replace(self, whole=self.whole.double())

    def _size(self) -> Size:
        """Return every example's size without keeping the entries."""
        x, dh = self.whole.x, self.whole.dh
        if isinstance(self.whole.rule, SelectiveRule):
            squares = self.whole.rule.kept_squares(x, dh, self.is_kept)
            if squares is not None:
                return size_of_squares(squares, len(self.is_kept), dh.dtype)
        factors = self.is_kept.to(dh.dtype)  # zeroing others is faster than selecting (ours)
        sizes = [size_of_held(piece.mul_(factors)) for piece in self._pieces()]
        return Size(*map(torch.cat, zip(*sizes, strict=True)))

    def _held(self) -> int:
        return self.whole.x[0].numel() + self.whole.dh[0].numel()

    def _pieces(self) -> Iterator[Tensor]:
        whole = self.whole
        numbers = max(len(whole.x) * self._held(), AT_LEAST)
        size = max(1, numbers // prod(self.shape))
        for x, dh in zip(whole.x.split(size), whole.dh.split(size), strict=True):
            yield as_rows(whole.rule.materialize(x, dh))
