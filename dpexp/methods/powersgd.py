"""PowerSGD on a private gradient: noise in full dimension, then a low-rank projection.

A baseline of rgp (Yu et al. 2021, arXiv 2106.09352, Section 5). The projection is PowerSGD's
(Vogels, Karimireddy and Jaggi 2019, arXiv 1905.13727). For DP-SGD's g~ and each weight matrix
[p, d] (a kernel flattened to [p, d k k]):

    M    <- g~ + E                      E = 0 without error feedback
    P    <- orthonormal columns of M Q  [p, r]
    Q    <- M^T P                       [d, r], the next step's Q with warm start
    E    <- M - P Q^T
    g    <- P Q^T                       for the optimizer

The projection uses nothing but g~, so it costs no privacy. Sensitivity, noise and run time are
DP-SGD's. Without clipping and noise this is PowerSGD (N.P.).

Differences from the papers:
 1. Each of PowerSGD's workers has a part of the gradient, and they average P and Q. Here M is the
    whole logical batch's gradient, for which their averages are the same numbers.
 2. QR (`dpexp.linalg`) replaces Gram-Schmidt: the same span, more stable in floating point.
 3. rgp prints the choices of rank and one power iteration, but not whether Q or E is kept. Q is
    kept by default, as PowerSGD's single iteration continues from the last one. E is not, as rgp
    mentions only a projection.
 4. Every parameter trains. The classifier (as in RGP) and vectors (as in PowerSGD) are not
    projected. Nor are matrices whose smaller side is at most the rank; their projection would be
    exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.linalg import orthonormal_bases
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.selection import require_rank
from dpexp.models.matrices import matrix_parameters
from dpexp.privacy.stated import Stated
from dpexp.types import ConfigError, Key, PublicGradients, State, first_weight


class PowerSGD(DPSGD):
    """Releases the same as DP-SGD, and projects the noisy gradient."""

    is_in_fixed_coordinates = False

    def __init__(self, rank: int, warm_start: bool, error_feedback: bool, head: str) -> None:
        """Set the options.

        Args:
            rank: r >= 1, below the smaller side of the largest layer.
            warm_start: True starts from the last step's Q; False draws Q anew at every step.
            error_feedback: add a step's projection error to the next step's gradient.
            head: the classifier's name in the model; it is not projected.
        """
        super().__init__("all", head)
        self._rank = rank
        self._warm_start = warm_start
        self._error_feedback = error_feedback

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the release that verification expects: the whole gradient, clipped jointly."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]), dimension=size)]

    def start(self, model: nn.Module) -> State:
        """Return the shapes, and which matrices are projected.

        Raises:
            ConfigError: if no layer is larger than the rank, or no matrix has two rows and columns.
        """
        state = super().start(model)
        shapes = {
            name: model.get_parameter(name).flatten(1).shape
            for name in matrix_parameters(model, self._head)
        }
        matrices = {name: sides for name, sides in shapes.items() if min(sides) > 1}
        require_rank(1, model, matrices)
        largest = max(min(shape) for shape in matrices.values())
        if not 1 <= self._rank < largest:
            raise ConfigError(
                f"Expected rank in [1, {largest - 1}], below the smaller side of the largest "
                f"layer; got rank={self._rank}. Set method.rank."
            )
        widths = {name: d for name, (p, d) in matrices.items() if min(p, d) > self._rank}
        return {**state, "widths": widths, "right": {}, "error": {}}

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with Q [d, r]: drawn Gaussian, or the last step's."""
        if self._warm_start and state["right"]:
            return state
        like = first_weight(model)
        right = {
            name: torch.randn(d, self._rank, generator=gen, device=like.device, dtype=like.dtype)
            for name, d in state["widths"].items()
        }
        return {**state, "right": right}

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the gradients, large matrices projected to rank r by one iteration from Q."""
        gradients, _ = super().reconstruct(state, noisy)
        right, error, matrices = {}, {}, {}
        for name in state["widths"]:
            matrices[name] = gradients[name].flatten(1)
            if self._error_feedback and name in state["error"]:
                matrices[name] = matrices[name] + state["error"][name]
        products = [matrix @ state["right"][name] for name, matrix in matrices.items()]
        for name, left in zip(list(matrices), orthonormal_bases(products), strict=True):
            shape, matrix = gradients[name].shape, matrices.pop(name)
            right[name] = matrix.T @ left
            projected = left @ right[name].T
            if self._error_feedback:
                error[name] = matrix - projected
            gradients[name] = projected.view(shape)
        return gradients, {**state, "right": right, "error": error}
