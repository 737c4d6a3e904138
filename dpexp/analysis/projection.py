"""Projection error of a gradient on an anchor subspace, and on a random one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dpexp.analysis.anchors import Anchors, projection_error, random_rows, shares_of
from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError


class Projection(Analysis):
    """Tracks the projection error rate |r / n| / |g| during a run (gep, arXiv 2102.12677).

    Section 3.2, Figure 4, for anchor bases and Appendix C, Figure 7, for random ones. Records
    `anchor/<group>/<share>` and `random/<group>/<share>`, in [0, 1], for bases of k = share * m
    vectors; the share is written as "0.25", independent of m.

    Differences from the paper:
     1. k counts the basis vectors of all groups, of which each group gets its share, as in
        training; Figure 4's caption counts those of the one group shown.
     2. g is the mean gradient of the same examples at every observation.
    """

    def __init__(
        self,
        batch: int,
        m: int,
        shares: Sequence[float],
        groups: str,
        power_iterations: int,
        public_labels: str | bool,
    ) -> None:
        """Set the options.

        Args:
            batch: number of examples for the mean gradient, >= 1.
            m: anchor gradients, >= 1.
            shares: k over m, each in (0, 1]; k is for all groups together, distributed as in gep.
            groups: "stages", "layers" or "all".
            power_iterations: t >= 1.
            public_labels: "random" or "true".

        Raises:
            ConfigError: for a value outside its range.
        """
        if batch < 1 or not shares or not 0 < min(shares) <= max(shares) <= 1:
            raise ConfigError(
                "Expected analysis.projection.batch >= 1 and shares in (0, 1]; got "
                f"batch={batch}, shares={list(shares)}. Set them."
            )
        self._batch, self._shares = batch, {f"{share:g}": round(share * m) for share in shares}
        self._anchors = Anchors("projection", m, groups, power_iterations, public_labels)
        self.public_size = m

    @staticmethod
    def stated_public_examples(settings: Mapping[str, Any]) -> int:
        """Return the m anchors that verification expects."""
        return settings["m"]

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return each group's error rate for every k and both kinds of basis."""
        groups = self._anchors.groups(view)
        anchors = self._anchors.gradients(view, groups)
        names = [name for names in groups.values() for name in names]
        some = view.draw("batch", self._batch)
        gradients = view.mean_gradients(view.examples, some, names)
        is_finite(memory, *gradients.values(), *anchors.values())
        errors = {}
        for name, k in self._shares.items():
            share = shares_of(anchors, k, "analysis.projection.shares")
            for group, rows in anchors.items():
                mean = torch.cat([gradients[name].flatten() for name in groups[group]])
                bases = {
                    "anchor": self._anchors.basis(view, rows, share[group]),
                    "random": random_rows(view, share[group], rows),
                }
                for kind, basis in bases.items():
                    errors[f"{kind}/{group}/{name}"] = projection_error(mean, basis)
        return errors
