"""Stable rank of per-example gradients, and of their residuals outside an anchor subspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpexp.analysis.anchors import Anchors, residual, shares_of
from dpexp.analysis.stable_rank import stable_rank
from dpexp.methods.anchor import anchor_gradients
from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError


class GradientRank(Analysis):
    """Tracks the stable rank of a batch's per-example gradients (gep, arXiv 2102.12677).

    Section 1, Figure 2 and Section 3.2, Figure 5. For the matrix G [n, p] of a group's per-example
    gradients it records `<group>`, |G|_F^2 / |G|_2^2, and `residual/<group>`, the same for
    R = G - G B^T B with a basis B from public images at the same weights. result.json holds their
    mean ratio, residual over original, as `ratio/<group>`.

    Difference from the paper: Figure 5 uses the full batch; here `batch` examples are used, the
    same at every observation, so that a group's gradients fit in memory.
    """

    def __init__(
        self,
        batch: int,
        m: int,
        k: int,
        groups: str,
        power_iterations: int,
        public_labels: str | bool,
    ) -> None:
        """Set the options.

        Args:
            batch: n >= 1 examples.
            m: anchor gradients, >= k.
            k: basis vectors of all groups together, distributed as in gep.
            groups: "stages", "layers" or "all".
            power_iterations: t >= 1.
            public_labels: "random" or "true".

        Raises:
            ConfigError: for a value outside its range.
        """
        if batch < 1 or not 1 <= k <= m:
            raise ConfigError(
                "Expected analysis.gradient_rank.batch >= 1 and k in [1, m]; got "
                f"batch={batch}, k={k}, m={m}. Set them."
            )
        self._batch, self._k = batch, k
        self._anchors = Anchors("gradient_rank", m, groups, power_iterations, public_labels)
        self.public_size = m

    @staticmethod
    def stated_public_examples(settings: Mapping[str, Any]) -> int:
        """Return the m anchors that verification expects."""
        return settings["m"]

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return each group's stable rank, before and after the projection."""
        groups = self._anchors.groups(view)
        anchors = self._anchors.gradients(view, groups)
        share = shares_of(anchors, self._k, "analysis.gradient_rank.k")
        batch = view.examples.take(view.draw("batch", self._batch))
        gradients = anchor_gradients(view.per_example(batch), len(batch), None, groups)
        is_finite(memory, *gradients.values(), *anchors.values())
        ranks = {}
        for group, matrix in gradients.items():
            basis = self._anchors.basis(view, anchors.pop(group), share[group])
            ranks[group] = stable_rank(matrix)
            ranks[f"residual/{group}"] = stable_rank(residual(matrix, basis))
        return ranks

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return each group's mean ratio of the residuals' stable rank to the gradients'."""
        residuals = {
            name.partition("/")[2]: name for name in traces if name.startswith("residual/")
        }
        return {
            f"ratio/{group}": float((traces[name] / traces[group]).mean())
            for group, name in residuals.items()
        }
