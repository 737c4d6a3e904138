"""Gradients of examples that a layer sees several times in a row: views of an image, windows.

An example's gradient is the sum of its rows'. It is neither formed for every row at once nor kept
where the layer's input and output gradient take less memory: what `FactoredGrads` does for one row
an example, `RepeatedRule` does for several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from dpexp.grad_sample.chunks import over_chunks, slices_of
from dpexp.grad_sample.per_example import FactoredGrads, FactoredRule, size_by_forming
from dpexp.grad_sample.rounding import TERMS, Terms, size_of_held
from dpexp.types import Size


@runtime_checkable
class RowRule(FactoredRule, Protocol):
    """A rule for rows whose number of positions does not depend on the batch."""

    def numbers(self, x: Tensor, dh: Tensor) -> int:
        """Return how many numbers one row's gradient has."""

    def prefers_gram(self, x: Tensor, dh: Tensor) -> bool:
        """Return whether sizes by Gram matrices are faster, for x and dh [n, rows, ...]."""

    def numbers_of_gram(self, x: Tensor, dh: Tensor) -> int:
        """Return how many numbers those have at once for an example."""

    def size_by_gram(self, x: Tensor, dh: Tensor) -> Size:
        """Return examples' sizes by Gram matrices, for x and dh [n, rows, ...]."""


@dataclass(frozen=True)
class RepeatedRule:
    """A rule for x [n, rows, ...] and dh [n, rows, ...], from that for one row an example.

    Attributes:
        of_row: the rule for rows.
    """

    of_row: RowRule
    is_padded: ClassVar[bool] = False

    def formed(self, x: Tensor, dh: Tensor) -> Tensor | None:
        """Return every example's gradient if it is smaller than x and dh together, else None."""
        held = x.shape[1:].numel() + dh.shape[1:].numel()
        if self._numbers(x, dh) > held or self.of_row.prefers_gram(x, dh):
            return None
        return self.materialize(x, dh)

    def materialize(self, x: Tensor, dh: Tensor) -> Tensor:
        """Return every example's gradient, [n, ...] in the parameter's shape."""
        numbers = x.shape[1] * self._numbers(x, dh)
        return torch.cat([self._summed(*each) for each in slices_of((x, dh), numbers)])

    def size(self, x: Tensor, dh: Tensor) -> Size:
        """Return the sizes by the Gram form or the direct one, whichever is faster."""
        if self.of_row.prefers_gram(x, dh):
            return over_chunks(
                self.of_row.size_by_gram, (x, dh), self.of_row.numbers_of_gram(x, dh)
            )
        return over_chunks(
            partial(size_by_forming, self), (x, dh), x.shape[1] * self._numbers(x, dh)
        )

    def size_of_formed(self, formed: Tensor, x: Tensor, dh: Tensor) -> Size:
        """Return the sizes of the formed gradients; these are added, not their terms."""
        return over_chunks(size_of_held, (formed,), formed.shape[1:].numel())

    def terms(self, x: Tensor, dh: Tensor) -> Terms:
        """Return the size of the terms of all of an example's rows."""
        rows, positions = x.shape[1], self.num_positions(dh)
        *bounds, roundings = self.of_row.terms(*self._flat(x, dh))
        energy, floor, unseen = (bound.view(len(x), rows) for bound in bounds)
        # As for one large image: the library may add up all rows' positions one after another.
        share = max(1.0, positions / (4 * TERMS)) / max(1.0, positions / rows / (4 * TERMS))
        energy = energy.sqrt().sum(1).square() * share**2
        return Terms(energy, floor.sum(1), unseen.sum(1), roundings)

    def num_positions(self, dh: Tensor) -> int:
        """Return the number of positions of all rows of an example."""
        return dh.shape[1] * self.of_row.num_positions(dh.flatten(0, 1))

    def add_to(self, total: Tensor, x: Tensor, dh: Tensor) -> None:
        """Add the examples' gradients to `total`, which has the parameter's shape."""
        self.of_row.add_to(total, *self._flat(x, dh))

    def _flat(self, x: Tensor, dh: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(0, 1), dh.flatten(0, 1)

    def _summed(self, x: Tensor, dh: Tensor) -> Tensor:
        each = self.of_row.materialize(*self._flat(x, dh))
        return each.view(*x.shape[:2], *each.shape[1:]).sum(1)

    def _numbers(self, x: Tensor, dh: Tensor) -> int:
        return self.of_row.numbers(*self._flat(x, dh))


def repeated(grads: FactoredGrads, rows: int) -> FactoredGrads:
    """Return the gradients of examples from those of their rows.

    Args:
        grads: of n times `rows` rows, an example's one after another.
        rows: of one example.
    """
    assert isinstance(grads.rule, RowRule)
    x, dh = (each.unflatten(0, (len(each) // rows, rows)) for each in (grads.x, grads.dh))
    return FactoredGrads(RepeatedRule(grads.rule), x, dh)
