"""Rules for layers of transformers that compute what layers of torch compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample import rule
from dpexp.grad_sample.linear import LinearGrads
from dpexp.grad_sample.norm import NormGrads
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from dpexp.grad_sample.rules import has_rule

ROOT_MEAN_SQUARE = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "T5LayerNorm")
"""Types whose scale multiplies x over its root mean square, taken in float32."""

TRANSPOSED = ("Conv1D",)
"""Types of linear layers whose weight is [d, p], GPT-2's."""


def is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer is a linear one of transformers whose weight is [d, p]."""
    kind = type(layer)
    return kind.__module__.startswith("transformers.") and kind.__name__ in TRANSPOSED


def register(model: nn.Module) -> None:
    """Register rules for those layers of a model that have one here."""
    for kind in {type(module) for module in model.modules()}:
        if not kind.__module__.startswith("transformers.") or has_rule(kind):
            continue
        if kind.__name__ in ROOT_MEAN_SQUARE:
            rule(kind)(root_mean_square)
        elif kind.__name__ in TRANSPOSED:
            rule(kind)(TransposedGrads.read)


def root_mean_square(layer: Any, x: Tensor, dh: Tensor) -> NormGrads:
    """Return the gradients of a scale, for x [n, ..., d]."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)
    of_t5 = type(layer).__name__ == "T5LayerNorm"  # which scales x itself, in its precision
    x_hat = x * scale if of_t5 else (wide * scale).to(x.dtype)
    return NormGrads(x_hat, dh, tuple(range(1, x.dim() - 1)), ("weight",))


@dataclass(frozen=True)
class TransposedGrads:
    """Layer gradients of a linear layer whose weight is [d, p]: dW_i = x_i^T dh_i.

    Attributes:
        of_weight: those of a linear layer with input and output gradient in each other's place.
        dh: [n, t, p].
        parameters: their names.
    """

    of_weight: LinearGrads
    dh: Tensor
    parameters: tuple[str, ...] = ("weight", "bias")

    @classmethod
    def read(cls, layer: nn.Module, x: Tensor, dh: Tensor) -> TransposedGrads:
        """Return the layer's gradients, inputs of any rank reshaped to [n, t, d]."""
        x, dh = (each.reshape(len(each), -1, each.shape[-1]) for each in (x, dh))
        return cls(LinearGrads(dh, x, ("weight",)), dh)

    def gradient(self, name: str) -> FactoredGrads | MaterializedGrads:
        """Return dW_i [n, d, p] or the bias's dh_i summed over positions [n, p]."""
        if name == "bias":
            return MaterializedGrads(self.dh.sum(1))
        return self.of_weight.gradient("weight")

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dW_i R^T, [n, d, r], or its rows alone."""
        return self.of_weight.left(right_basis, rows)

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return L^T dW_i, [n, r, p], or its columns alone."""
        return self.of_weight.right(left_basis, columns)

    def scaled(self, factor: float) -> TransposedGrads:
        """Return the gradients times a constant."""
        return replace(self, of_weight=self.of_weight.scaled(factor), dh=factor * self.dh)
