"""Residual of a gradient outside the principal subspace of an earlier one, and of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError


def principal(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the first singular vectors of a matrix [p, d]: U [p, r] and V [d, r], in float64."""
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left[:, :rank], right[:rank].T


def projection_residual(matrix: Tensor, left: Tensor, right: Tensor) -> float:
    """Return |(I - U U^T) A (I - V V^T)|_F / |A|_F, in [0, 1] (rgp, Eqs. 5-6).

    Args:
        matrix: A [p, d].
        left: U [p, r] with orthonormal columns.
        right: V [d, r] with orthonormal columns.
    """
    matrix = matrix.double()
    rest = matrix - left @ (left.T @ matrix)
    rest = rest - (rest @ right) @ right.T
    return float(rest.norm() / matrix.norm())


class ProjectionResidual(Analysis):
    """Tracks the historical and the self projection residual (rgp, arXiv 2106.09352).

    Section 4.2, Eqs. (5) and (6), Figure 3: the gradient of one fixed batch, projected on its
    principal subspace now and at the previous observation. Records `historical` and `self`. Both
    are NaN at the first observation, so that their means cover the same ones, and if the gradient
    is not finite now or was not at the previous observation.

    Difference from the paper: "an epoch before" is an evaluation before (`eval_every`).
    """

    def __init__(self, parameter: str, rank: int, batch: int) -> None:
        """Set the options.

        Args:
            parameter: name of the matrix; kernels are flattened to [p, c k k].
            rank: r >= 1.
            batch: number of examples for the mean gradient, >= 1.

        Raises:
            ConfigError: for a value outside its range.
        """
        if rank < 1 or batch < 1:
            raise ConfigError(
                "Expected analysis.residual.rank >= 1 and analysis.residual.batch >= 1; got "
                f"{rank} and {batch}. Set them."
            )
        self._parameter, self._rank, self._batch = parameter, rank, batch

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return both residuals; keep the subspace in memory.

        Raises:
            ConfigError: the method does not train the parameter, or the rank leaves no residual.
        """
        view.require("analysis.residual.parameter", [self._parameter])
        some = view.draw("batch", self._batch)
        gradient = view.mean_gradients(view.examples, some, [self._parameter])[self._parameter]
        matrix = gradient.flatten(1) if gradient.ndim > 1 else gradient[None]
        if self._rank >= min(matrix.shape):
            raise ConfigError(
                f"Expected analysis.residual.rank below {min(matrix.shape)}, the smaller side of "
                f"{self._parameter}; got {self._rank}. Set it."
            )
        if not is_finite(memory, matrix):
            memory.pop("principal", None)  # so the next observation has no previous subspace
            return {"historical": math.nan, "self": math.nan}
        now, before = principal(matrix, self._rank), memory.get("principal")
        memory["principal"] = list(now)
        if before is None:
            return {"historical": math.nan, "self": math.nan}
        return {
            "historical": projection_residual(matrix, *before),
            "self": projection_residual(matrix, *now),
        }
