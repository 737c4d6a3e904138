"""The worst canary where coordinates are clipped and the largest of them kept: it tips the balance.

Of compressive SGD (`dpexp.methods.compressive`) one example can change but little of a mean, but it
can change which entries are kept. In all trials the other examples hold the first half of the
coordinates at the bound and the second half a trifle below; the canary pulls the first half down
and pushes the second up, and what is kept are other entries altogether.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpexp.attacks.canaries import TOO_LONG
from dpexp.attacks.canaries_wrapped import Wrapped
from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.types import Key, Method, PerExampleGrads, PublicGradients, State


class Tipped(Wrapped):
    """A method whose examples are all made up; in half of the trials the canary is among them."""

    def __init__(self, method: Method, *, included: bool, clip_norm: float, batch_size: int):
        """Choose the world.

        Args:
            method: what is audited; it clips coordinates.
            included: whether the canary is there.
            clip_norm: bound on each coordinate.
            batch_size: how many other examples there are; all take part in every step.
        """
        super().__init__(method)
        self._included, self._clip_norm, self._batch_size = included, clip_norm, batch_size

    def start(self, model: nn.Module) -> State:
        """Begin with an empty record."""
        return {**super().start(model), "scores": torch.zeros(1, dtype=torch.float64)}

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Prepare the method's step, and make the examples up, one row each, the canary last."""
        state = super().prepare(model, state, public, gen)
        dimension = sum(math.prod(shape) for shape in self.release_shapes(state).values())
        canary = next(model.parameters()).new_ones(dimension)
        canary[: dimension // 2] = -1
        others = torch.where(canary < 0, 1.0, 1 - 1 / (2 * self._batch_size))
        rows = torch.stack([*[others] * self._batch_size, TOO_LONG * canary])
        return {**state, "rows": self._clip_norm * rows}

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return the world's examples."""
        rows = state["rows"] if self._included else state["rows"][:-1]
        return len(rows), {
            key: MaterializedGrads(block) for key, block in self._in_blocks(state, rows).items()
        }

    def _in_blocks(self, state: State, rows: Tensor) -> dict[Key, Tensor]:
        """Cut vectors [..., d] into the method's blocks, [..., *shape]."""
        shapes = self.release_shapes(state)
        pieces = rows.split([math.prod(shape) for shape in shapes.values()], dim=-1)
        return {
            key: piece.reshape(*rows.shape[:-1], *shape)
            for (key, shape), piece in zip(shapes.items(), pieces, strict=True)
        }

    def _expected(self, state: State, rows: Tensor) -> Tensor:
        """Return what would be released of these rows without noise, flattened."""
        total = rows.clamp(-self._clip_norm, self._clip_norm).sum(0)
        released = self.compress(state, self._in_blocks(state, total))
        return torch.cat([block.flatten() for block in released.values()])

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Score the canary: the log-likelihood ratio under Laplace noise but for its scale."""
        heard = self._batch_size * torch.cat([block.flatten() for block in noisy.values()])
        without, within = (self._expected(state, state["rows"][:last]) for last in (-1, None))
        loudness = (heard - without).abs() - (heard - within).abs()
        scores = state["scores"] + loudness.double().sum().cpu() / self._clip_norm
        gradients, after = super().reconstruct(state, noisy)
        return gradients, {"method": after["method"], "scores": scores}
