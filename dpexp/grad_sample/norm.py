"""The rule for LayerNorm, RMSNorm and GroupNorm with affine parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.grad_sample.rules import FormedGrads, rule


@dataclass(frozen=True)
class NormGrads:
    """Layer gradients of a norm: x-hat and dh, both [n, ...], and the axes its weight spans."""

    normalised: Tensor
    dh: Tensor
    summed: tuple[int, ...]
    parameters: tuple[str, ...]

    @classmethod
    def read(
        cls, layer: nn.LayerNorm | nn.RMSNorm | nn.GroupNorm, x: Tensor, dh: Tensor
    ) -> NormGrads:
        """Return the layer's gradients; x-hat is recomputed, which is cheaper than keeping it."""
        names = tuple(own for own in ("weight", "bias") if getattr(layer, own, None) is not None)
        if isinstance(layer, nn.GroupNorm):
            x_hat = F.group_norm(x, layer.num_groups, eps=layer.eps)
            return cls(x_hat, dh, tuple(range(2, x.dim())), names)
        shape = layer.normalized_shape
        if isinstance(layer, nn.RMSNorm):  # eps=None is float32's, as torch takes it of bfloat16
            x_hat = F.rms_norm(x, shape, eps=layer.eps)
        else:
            x_hat = F.layer_norm(x, shape, eps=layer.eps)
        return cls(x_hat, dh, tuple(range(1, x.dim() - len(shape))), names)

    def gradient(self, name: str) -> MaterializedGrads:
        """Return the scale's dh * x-hat or the shift's dh, summed over positions."""
        each = self.dh * self.normalised if name == "weight" else self.dh
        return MaterializedGrads(each.sum(self.summed) if self.summed else each)

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dW_i R^T, [n, p, r], of a norm over several axes, whose scale is a matrix."""
        return self._formed.left(right_basis, rows)

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return L^T dW_i, [n, r, d], likewise."""
        return self._formed.right(left_basis, columns)

    @property
    def _formed(self) -> FormedGrads:
        each = {own: self.gradient(own).materialize() for own in self.parameters}
        return FormedGrads(each, self.parameters)

    def scaled(self, factor: float) -> NormGrads:
        """Return the gradients times a constant."""
        return replace(self, dh=factor * self.dh)


rule(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)(NormGrads.read)
