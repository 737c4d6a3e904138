"""Positions of the large entries of a weight matrix and of its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError, require_word

TENTH = 0.1


def blocks(matrix: Tensor, most: int) -> Tensor:
    """Return the means of a matrix [p, d] over blocks, [min(p, most), min(d, most)].

    If a side is not a multiple of `most`, neighbouring blocks share a row or a column.
    """
    rows, columns = matrix.shape
    size = (min(rows, most), min(columns, most))
    return F.adaptive_avg_pool2d(matrix[None, None], size)[0, 0]


def largest_share(matrix: Tensor, part: float) -> float:
    """Return the share of |A|_F^2 held by the largest `part` of the entries, in [part, 1]."""
    squares = matrix.double().square().flatten()
    count = max(1, round(part * len(squares)))
    return float(squares.topk(count).values.sum() / squares.sum())


def line_share(matrix: Tensor) -> float:
    """Return the share of the variance of |A_ij| explained by row and column means, in [0, 1].

    For independent, identically distributed entries [p, d] it is about (p + d) / (p d).
    """
    values = matrix.double().abs()
    centred = values - values.mean()
    rows, columns = centred.mean(1, keepdim=True), centred.mean(0, keepdim=True)
    return float((rows + columns).expand_as(centred).square().sum() / centred.square().sum())


class Intensity(Analysis):
    """Records images of |W| and |dW| of one matrix (lsg, Ito et al. 2022).

    Section 3.1 and Figure 1: inputs along x, outputs along y. Records the block means `weight` and
    `gradient`. Writes two measures of each to result.json: `..._tenth`, the percentage of the
    squared norm held by the largest tenth of the entries, and `..._lines`, the percentage of the
    variance of the absolute values explained by rows and columns ("contrastive lines").

    Difference from the paper: blocks are averaged, so that an image has at most `blocks` squared of
    them, and both observations are measured, not only shown.
    """

    def __init__(self, parameter: str, when: str, blocks: int, batch: int) -> None:
        """Set the options.

        Args:
            parameter: name of the matrix; kernels are flattened to [p, c k k].
            when: "start", before the first step, or "end", after the last.
            blocks: largest number of blocks along each side, >= 1.
            batch: number of examples for the mean gradient, >= 1.

        Raises:
            ConfigError: for a value outside its range.
        """
        require_word("analysis.intensity.when", when, ("start", "end"))
        if blocks < 1 or batch < 1:
            raise ConfigError(
                "Expected analysis.intensity.blocks >= 1 and analysis.intensity.batch >= 1; got "
                f"{blocks} and {batch}. Set them."
            )
        self._parameter, self._when = parameter, when
        self._blocks, self._batch = blocks, batch

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return both images and their measures, once.

        Raises:
            ConfigError: the method does not train the parameter.
        """
        view.require("analysis.intensity.parameter", [self._parameter])
        if not (view.is_first if self._when == "start" else view.is_last):
            return {}
        some = view.draw("batch", self._batch)
        gradient = view.mean_gradients(view.examples, some, [self._parameter])[self._parameter]
        weight = view.model.get_parameter(self._parameter)
        is_finite(memory, weight, gradient)
        values: dict[str, Any] = {}
        for name, tensor in (("weight", weight), ("gradient", gradient)):
            matrix = tensor.flatten(1) if tensor.ndim > 1 else tensor[None]
            values[name] = blocks(matrix.abs().float(), self._blocks)
            values[f"{name}_tenth"] = 100 * largest_share(matrix, TENTH)
            values[f"{name}_lines"] = 100 * line_share(matrix)
        return values

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return the shares, in percent."""
        return {k: float(v) for k, v in traces.items() if k.endswith(("_tenth", "_lines"))}
