"""How an example's gradient is brought down to the clip norm: the guarantee is the same for all."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dpexp.privacy.stated import Stated
from dpexp.types import GROUP, ConfigError, Key, Release

Group = tuple[str, ...]
"""Names blocks whose joint norm is bounded: the release, and a layer of it where they differ."""


class Clipping(Protocol):
    """A rule that bounds an example's contribution to a release by its clip norm C, in l2."""

    def group(self, key: Key) -> Group:
        """Return the group that a block's norm belongs to; its first entry is the release.

        It is asked once a sum for every block (`groups_of`).
        """

    def weights(self, norms: Tensor, bound: float) -> Tensor:
        """Return what examples are multiplied by, [n], so that none exceeds the bound.

        Args:
            norms: of a group, or bounds on them from above, [n].
            bound: of the group, > 0.
        """


LARGEST = 1e12
"""Largest weight of an example in a sum (ours). A gradient of zero is often the product of a zero
and of a number that a larger weight would take beyond float32, to NaN in the sum."""


def held_weights(weights: Tensor, norms: Tensor, bound: float) -> Tensor:
    """Return a rule's weights as a sum takes them, [n]: whatever they are, none exceeds the bound.

    Args:
        weights: that the rule gives, [n]; NaN is taken as 0, and what is beyond LARGEST as that.
        norms: of a group, or bounds on them from above, [n].
        bound: of the group, > 0.
    """
    most = (bound / norms).clamp(max=LARGEST)
    return weights.minimum(most).maximum(-most).nan_to_num(nan=0.0)


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
    """min(1, C_l / |g_l|) in every layer, C_l = C / sqrt(layers) (He et al. 2022, 2212.01539).

    Where a method releases numbers for a group of parameters, the group takes the layer's place.
    """

    def group(self, key: Key) -> Group:
        """Return the release and the layer."""
        name = key.parameter
        return key.release, name if key.part == GROUP else name.rpartition(".")[0]


@dataclass(frozen=True)
class Adaptive(Flat):
    """min(1, C_t / |g|), where C_t follows a quantile of the norms (`dpexp.methods.adaptive`).

    Attributes:
        quantile: share of the examples that are to lie within C_t, in (0, 1).
        rate: > 0 and <= 10; a count that is off by all of the batch moves C_t by exp(rate).
        count_noise: > 0 and <= 1000, standard deviation of the count's noise, as a share of the
            batch.
    """

    quantile: float
    rate: float
    count_noise: float

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: for a value outside its range.
        """
        if not 0 < self.quantile < 1:
            raise ConfigError(
                f"Expected clipping.quantile in (0, 1); got {self.quantile}. Set clipping.quantile."
            )
        for name, largest in (("rate", 10), ("count_noise", 1000)):
            if not 0 < getattr(self, name) <= largest:
                raise ConfigError(
                    f"Expected clipping.{name} above 0 and at most {largest}; got "
                    f"{getattr(self, name)}. Set clipping.{name}."
                )

    @staticmethod
    def stated_releases(config: Mapping[str, Any]) -> list[Stated]:
        """Return the count that verification expects: one example moves it by a half."""
        noise = config["clipping"]["count_noise"] * config["batch_size"]
        noise = noise if config["privacy"]["noise"] else 0.0
        return [Stated("quantile", 1.0, 0.5, "gaussian", "count", 1, noise)]


RAMP = 2.0**-6
"""Half the width of the ramp at the clip norm, in clip norms (ours)."""


def centred_bits(norms: Tensor, bound: float) -> Tensor:
    """Return 1/2 for an example within the bound and -1/2 for another, [n] in float64.

    Near the bound the bit falls along a ramp. A norm's last digits depend on the other examples of
    its micro-batch; where they decided a whole bit, one more example could move any number of bits.

    Args:
        norms: of examples, [n].
        bound: > 0.
    """
    return ((1 - norms.double() / bound) / (2 * RAMP)).clamp(-0.5, 0.5)


def groups_of(
    clipping: Clipping, keys: Collection[Key], releases: Mapping[str, Release]
) -> dict[Key, Group]:
    """Return the group of every block that has a norm.

    Asked once, so that a block has one group from its norm to its weight, whatever the rule is.

    Raises:
        ConfigError: if a group is not its block's release, with or without more words: a release
            would be clipped to the clip norm of another one.
    """
    groups = {}
    for key in keys:
        if releases[key.release].clip == "count":
            continue
        group = clipping.group(key)
        if not isinstance(group, tuple) or not group or group[0] != key.release:
            raise ConfigError(
                "Expected a clipping rule that groups blocks within their release; "
                f"{type(clipping).__name__} gives {key.parameter} of release {key.release} the "
                f"group {group!r}. Return (key.release,), or a tuple that begins with it."
            )
        groups[key] = group
    return groups


def bounds_of(groups: Collection[Group], releases: Mapping[str, Release]) -> dict[Group, float]:
    """Return every group's bound; those of a release have its clip norm as the root of squares."""
    counts: dict[str, int] = {}
    for release, *_ in set(groups):
        counts[release] = counts.get(release, 0) + 1
    return {g: releases[g[0]].clip_norm / math.sqrt(counts[g[0]]) for g in set(groups)}


def require_groups(
    clipping: Clipping, keys: Collection[Key], releases: Mapping[str, Release]
) -> None:
    """Refuse a rule whose groups follow what it has seen, or split releases of one part each.

    Raises:
        ConfigError: if the norms that a rule was given change a group, which would then depend on
            the examples; or if clipping=per_layer would change nothing.
    """
    groups = groups_of(clipping, keys, releases)
    for size in (1e-3, 1e3):
        clipping.weights(torch.full((2,), size, dtype=torch.float64), 1.0)
        if groups_of(clipping, keys, releases) != groups:
            raise ConfigError(
                f"Expected a clipping rule whose groups stay the same; those of "
                f"{type(clipping).__name__} change from call to call. Make each group of its key."
            )
    parts = {*groups.values()}
    if isinstance(clipping, PerLayer) and len(parts) == len({name for name, *_ in parts}):
        raise ConfigError(
            "Expected a method that releases numbers of several layers beside clipping=per_layer; "
            "all that this one releases is of one. Leave clipping out, or set clipping=normalize."
        )
