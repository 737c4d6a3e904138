"""Stable rank of every layer's gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError


def stable_rank(matrix: Tensor) -> float:
    """Return |A|_F^2 / |A|_2^2 of a matrix [p, d], in [1, min(p, d)].

    NaN if the matrix is zero or not finite. Computed from the eigenvalues of the smaller Gram
    matrix in float64. This is faster than singular values and accurate enough, because the largest
    eigenvalue is the best conditioned.
    """
    matrix = matrix.double()
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    gram = wide @ wide.T
    if not gram.isfinite().all():
        return math.nan
    return float(gram.trace() / torch.linalg.eigvalsh(gram)[-1])


class StableRank(Analysis):
    """Tracks the stable rank of each weight matrix's gradient (rgp, arXiv 2106.09352).

    Section 4.1 and Figure 2. Records `<parameter>` for every matrix that the method trains; kernels
    are flattened to [p, c k k].

    Difference from the paper: it does not name a batch; here one fixed batch is used throughout.
    """

    def __init__(self, batch: int) -> None:
        """Set the options.

        Args:
            batch: number of examples for the mean gradient, >= 1.

        Raises:
            ConfigError: for a value outside its range.
        """
        if batch < 1:
            raise ConfigError(f"Expected analysis.stable_rank.batch >= 1; got {batch}. Set it.")
        self._batch = batch

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return the stable rank of a fixed batch's mean gradient, for each matrix."""
        matrices = [name for name in view.trained if view.model.get_parameter(name).ndim > 1]
        some = view.draw("batch", self._batch)
        gradients = view.mean_gradients(view.examples, some, matrices)
        is_finite(memory, *gradients.values())
        return {name: stable_rank(gradients[name].flatten(1)) for name in matrices}
