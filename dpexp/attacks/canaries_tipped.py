"""A worst-case canary for methods that clip coordinates and keep the largest ones.

In compressive SGD (`dpexp.methods.compressive`) one example hardly changes a mean, but it can
change which entries are kept. In all trials the other examples put the first half of the
coordinates at the bound and the second half slightly below. The canary lowers the first half and
raises the second, so that entirely different entries are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpexp.attacks.canaries import TOO_LONG
from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.methods.wrapped import Wrapped
from dpexp.types import Key, Method, PerExampleGrads, PublicGradients, State, first_weight


class Tipped(Wrapped):
    """Replaces a method's examples by crafted ones, with or without the canary."""

    def __init__(self, method: Method, *, included: bool, clip_norm: float, batch_size: int):
        """Set whether the canary is included.

        Args:
            method: to audit; it clips coordinates.
            included: whether the canary is an example.
            clip_norm: bound on each coordinate.
            batch_size: number of other examples; all are used in every step.
        """
        super().__init__(method)
        self._included, self._clip_norm, self._batch_size = included, clip_norm, batch_size

    def start(self, model: nn.Module) -> State:
        """Start the method, with the score at zero."""
        return {**super().start(model), "scores": torch.zeros(1, dtype=torch.float64)}

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Prepare the method's step, and craft the examples, one row each, the canary last."""
        state = super().prepare(model, state, public, gen)
        dimension = sum(math.prod(shape) for shape in self.release_shapes(state).values())
        canary = first_weight(model).new_ones(dimension)
        canary[: dimension // 2] = -1
        others = torch.where(canary < 0, 1.0, 1 - 1 / (2 * self._batch_size))
        rows = torch.stack([*[others] * self._batch_size, TOO_LONG * canary])
        return {**state, "rows": self._clip_norm * rows}

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return the crafted examples."""
        rows = state["rows"] if self._included else state["rows"][:-1]
        return len(rows), {
            key: MaterializedGrads(block) for key, block in self._in_blocks(state, rows).items()
        }

    def _in_blocks(self, state: State, rows: Tensor) -> dict[Key, Tensor]:
        """Split vectors [..., d] into the method's blocks, [..., *shape]."""
        shapes = self.release_shapes(state)
        pieces = rows.split([math.prod(shape) for shape in shapes.values()], dim=-1)
        return {
            key: piece.reshape(*rows.shape[:-1], *shape)
            for (key, shape), piece in zip(shapes.items(), pieces, strict=True)
        }

    def _expected(self, state: State, rows: Tensor) -> Tensor:
        """Return the noiseless release of these rows, flattened."""
        total = rows.clamp(-self._clip_norm, self._clip_norm).sum(0)
        released = self.compress(state, self._in_blocks(state, total))
        return torch.cat([block.flatten() for block in released.values()])

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Score the canary by the log-likelihood ratio under Laplace noise, up to its scale."""
        released = self._batch_size * torch.cat([block.flatten() for block in noisy.values()])
        without, within = (self._expected(state, state["rows"][:last]) for last in (-1, None))
        ratio = (released - without).abs() - (released - within).abs()
        scores = state["scores"] + ratio.double().sum().cpu() / self._clip_norm
        gradients, after = super().reconstruct(state, noisy)
        return gradients, {"method": after["method"], "scores": scores}
