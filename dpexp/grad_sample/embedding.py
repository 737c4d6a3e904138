"""The rule for nn.Embedding: inputs [n, t] token ids."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from dpexp.grad_sample.chunks import over_chunks
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from dpexp.grad_sample.rounding import Terms, eta, raised, size_by_gram
from dpexp.grad_sample.rules import rule
from dpexp.types import ConfigError, Size


@dataclass(frozen=True)
class EmbeddingWeight:
    """dW_i adds dh_i[t] to row x_i[t], for ids x [n, t] and dh [n, t, d].

    Attributes:
        rows: size of the vocabulary.
    """

    rows: int
    is_padded: ClassVar[bool] = True

    def formed(self, x: Tensor, dh: Tensor) -> None:
        """Return None: a vocabulary per example always takes more memory."""

    def size(self, x: Tensor, dh: Tensor) -> Size:
        """Return the gradients' sizes by the Gram form; forming takes a vocabulary per example."""
        return over_chunks(_by_gram, (x, dh), numbers=6 * x.shape[1] ** 2)

    def size_of_formed(self, formed: Tensor, x: Tensor, dh: Tensor) -> Size:
        """Raise TypeError: nothing is formed."""
        raise TypeError("An Embedding's gradients are never held.")

    def terms(self, x: Tensor, dh: Tensor) -> Terms:
        """Return the size of the terms, which are added where their tokens are the same."""
        same = x[:, :, None] == x[:, None, :]
        return _terms(same, torch.linalg.vector_norm(dh, dim=2).double().square(), dh)

    def num_positions(self, dh: Tensor) -> int:
        """Return 1: terms are added in float64, one by one."""
        return 1

    def add_to(self, total: Tensor, x: Tensor, dh: Tensor) -> None:
        """Add the batch gradient to total [rows, d], touching only rows that were looked up."""
        tokens, places = x.unique(return_inverse=True)
        rows = dh.new_zeros(len(tokens), dh.shape[2], dtype=torch.float64)
        rows.index_add_(0, places.flatten(), dh.flatten(0, 1).double())
        total.index_add_(0, tokens, rows.to(total.dtype))

    def materialize(self, x: Tensor, dh: Tensor) -> Tensor:
        """Return the gradients, [n, rows, d]."""
        tables = dh.new_zeros(len(x), self.rows, dh.shape[-1])
        return tables.scatter_add_(1, x[..., None].expand_as(dh), dh)


def _by_gram(x: Tensor, dh: Tensor) -> Size:
    """Return the sizes; gradients of two positions overlap only if their tokens are the same."""
    same = x[:, :, None] == x[:, None, :]
    of_dh = torch.bmm(dh, dh.mT)
    terms = _terms(same, of_dh.diagonal(dim1=1, dim2=2), dh)
    return size_by_gram(of_dh * same, terms, dh.shape[2])


def _terms(same: Tensor, squares: Tensor, dh: Tensor) -> Terms:
    """Return bounds on (sum_s |dh_s| of a row)^2, summed over rows, from squared norms [n, t]."""
    d, t, least = dh.shape[2], dh.shape[1], eta(dh.dtype)
    norms = (squares.double() + 2 * least * d).sqrt()
    together = torch.bmm(same.double(), norms[..., None])[..., 0]
    energy = (together * norms).sum(1) * (1 + raised(d, dh.dtype))
    floor = torch.full_like(energy, least * t * math.sqrt(d))
    return Terms(energy, floor, torch.full_like(energy, 4 * least * d * t * t))


@dataclass(frozen=True)
class EmbeddingGrads:
    """Layer gradients of an Embedding: ids x [n, t] and dh [n, t, d]."""

    x: Tensor
    dh: Tensor
    rows: int
    parameters: tuple[str, ...] = ("weight",)

    @classmethod
    def read(cls, layer: nn.Embedding, x: Tensor, dh: Tensor) -> EmbeddingGrads:
        """Return the layer's gradients, ids reshaped to [n, t]; the padding row gets none.

        Raises:
            ConfigError: if the layer's options make one example's gradient depend on others.
        """
        if layer.scale_grad_by_freq or layer.max_norm is not None:
            raise ConfigError(
                "Expected an Embedding without max_norm and scale_grad_by_freq: both make one "
                "example's gradient depend on the others in the batch. Turn them off."
            )
        n = len(x)
        x, dh = x.reshape(n, -1), dh.reshape(n, -1, dh.shape[-1])
        if layer.padding_idx is not None:
            dh = dh * (x != layer.padding_idx)[..., None]
        return cls(x, dh, layer.num_embeddings)

    def gradient(self, name: str) -> FactoredGrads:
        """Return the table's gradient, [n, rows, d] if materialized."""
        return FactoredGrads(EmbeddingWeight(self.rows), self.x, self.dh)

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dW_i R^T, [n, rows, r], or some of its rows: thin tables, one an example."""
        each = EmbeddingWeight(self.rows).materialize(self.x, self.dh @ right_basis.T)
        return MaterializedGrads(each if rows is None else each.index_select(1, rows))

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return L^T dW_i, [n, r, d], or some of its columns: L's rows of an example's tokens."""
        dh = self.dh if columns is None else self.dh.index_select(2, columns)
        return MaterializedGrads(torch.bmm(left_basis[self.x].mT, dh))

    def scaled(self, factor: float) -> EmbeddingGrads:
        """Return the gradients times a constant."""
        return replace(self, dh=factor * self.dh)


rule(nn.Embedding, parameters=("weight",))(EmbeddingGrads.read)
