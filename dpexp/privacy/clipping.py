"""How an example's gradient is brought down to the clip norm: the guarantee is the same for all."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dpexp.types import ConfigError, Key, Release

Group = tuple[str, ...]
"""Names blocks whose joint norm is bounded: the release, and a layer of it where they differ."""


class Clipping(Protocol):
    """A rule that bounds an example's contribution to a release by its clip norm C, in l2."""

    def group(self, key: Key) -> Group:
        """Return the group that a block's norm belongs to; its first entry is the release."""

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        """Return what examples are multiplied by, [n], so that none exceeds the bound.

        Args:
            norms: of a group, or bounds on them from above, [n].
            bound: of the group, > 0.
        """


@dataclass(frozen=True)
class Flat:
    """min(1, C / |g|), over all of a release's blocks (Abadi et al. 2016)."""

    def group(self, key: Key) -> Group:
        """Return the release."""
        return (key.release,)

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        """Return min(1, C / norm), 1 for norms of zero."""
        return bound / norms.clamp(min=bound)


@dataclass(frozen=True)
class Normalize(Flat):
    """C / (|g| + gamma): AUTO-S (Bu et al. 2022, arXiv 2206.07136, Section 4).

    Attributes:
        gamma: > 0, so that small gradients stay smaller than large ones.
    """

    gamma: float

    def __post_init__(self) -> None:
        """Check gamma.

        Raises:
            ConfigError: if it is not positive.
        """
        if not 0 < self.gamma < math.inf:
            raise ConfigError(
                f"Expected clipping.gamma above 0; got {self.gamma}. Set clipping.gamma."
            )

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        """Return C / (norm + gamma), which is below C / norm."""
        return bound / (norms + self.gamma)


@dataclass(frozen=True)
class PerLayer(Flat):
    """min(1, C_l / |g_l|) in every layer, C_l = C / sqrt(layers) (He et al. 2022, 2212.01539)."""

    def group(self, key: Key) -> Group:
        """Return the release and the layer."""
        return key.release, key.parameter.rpartition(".")[0]


def bounds_of(
    clipping: Clipping, keys: Collection[Key], releases: Mapping[str, Release]
) -> dict[Group, float]:
    """Return every group's bound; those of a release have its clip norm as the root of squares."""
    groups = {clipping.group(key) for key in keys}
    counts: dict[str, int] = {}
    for release, *_ in groups:
        counts[release] = counts.get(release, 0) + 1
    return {g: releases[g[0]].clip_norm / math.sqrt(counts[g[0]]) for g in groups}
