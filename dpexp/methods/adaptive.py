"""Adaptive clipping of any method's gradients (Andrew et al. 2019, arXiv 1905.03871, Algorithm 1).

The clip norm C follows the quantile q of examples' norms, at a rate eta. Of a step's examples i:

    g       <- sum_i clip(g_i, C) + N(0, (z_g C)^2 I)
    b       <- (sum_i (b_i - 1/2) + N(0, sigma_b^2)) / B + 1/2      b_i is 1 if |g_i| <= C, else 0
    C       <- C exp(-eta (b - q))
    z_g     = (z^-2 - (2 sigma_b)^-2)^(-1/2)                        Section 2.1, Theorem 1

z is the multiplier that the budget asks for, and B the expected batch size. One example moves the
count by 1/2, so that its noise costs what a multiplier of 2 sigma_b does: it is declared as a
release of its own.

Differences from the paper:
 1. Examples, not users' updates, are clipped, and B is the expected size of a Poisson draw.
 2. Gradients are divided by C over the first C before the clip, and the release is multiplied by
    it. It comes to the same, and clip, noise and declaration stay at the first C.
 3. b_i falls along a ramp of a sixty-fourth of C on either side of C
    (`dpexp.privacy.clipping.centred_bits`).
 4. C stays within 2^24 of the first C, on either side.
 5. An example whose gradient is not finite adds nothing to the count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from dpexp.methods.wrapped import Wrapped
from dpexp.privacy.clipping import Adaptive
from dpexp.types import (
    ConfigError,
    Key,
    LayerGrads,
    Losses,
    Method,
    PerExampleGrads,
    Release,
    State,
)

QUANTILE = "quantile"
COUNT = Key(QUANTILE, QUANTILE, "count")

HALF = 0.5
"""What one example adds to the centred count, at most."""

FARTHEST = 24 * math.log(2)
"""How far the clip norm may move, as a logarithm (ours): in float32 a gradient keeps its bits."""


class AdaptiveClipping(Wrapped):
    """Releases a count beside a method's vector, and scales gradients by what the count says."""

    def __init__(self, method: Method, rule: Adaptive, clip_norm: float, batch_size: int) -> None:
        """Wrap a method.

        Args:
            method: with one release, whose examples are clipped by norm.
            rule: the settings.
            clip_norm: the first, > 0.
            batch_size: B, the expected one.
        """
        super().__init__(method)
        self._rule, self._clip_norm, self._batch_size = rule, clip_norm, batch_size

    def start(self, model: nn.Module) -> State:
        """Start the method at the first clip norm."""
        return {**super().start(model), "log_share": 0.0}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return the method's gradients of those that are divided by C over the first C."""
        scaled = layer_grads.scaled(math.exp(-state["log_share"]))
        return super().per_example_grads(state, layer, scaled)

    def per_example_scalars(self, state: State, losses: Losses) -> Mapping[Key, PerExampleGrads]:
        """Return the method's blocks, which are linear in losses, likewise."""
        share = math.exp(-state["log_share"])
        return super().per_example_scalars(state, lambda *of: share * losses(*of))

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return the method's shapes and the count's."""
        return {**super().release_shapes(state), COUNT: (1,)}

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Return what the method releases, and the count."""
        own = {key: total for key, total in sums.items() if key != COUNT}
        return {**super().compress(state, own), COUNT: sums[COUNT]}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare the method's release, and the count with noise of its own.

        Raises:
            ConfigError: if the method has several releases, or bounds something else than norms.
        """
        declared = super().releases(state, clip_norm)
        if len(declared) != 1 or declared[0].clip != "norm" or declared[0].noise != "gaussian":
            raise ConfigError(
                "Expected a method with one release, clipped by its norm under Gaussian noise, "
                f"beside clipping=adaptive; this one has {_listed(declared)}. Leave clipping out, "
                "or set another method."
            )
        noise = self._rule.count_noise * self._batch_size
        count = Release(QUANTILE, 1, 1.0, HALF, clip="count", noise_multiplier=noise)
        return (*declared, count)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the method's gradients at the scale of C, and the next C.

        The release is multiplied in place.
        """
        log_share, share = state["log_share"], math.exp(state["log_share"])
        own = {key: block.mul_(share) for key, block in noisy.items() if key != COUNT}
        gradients, after = super().reconstruct(state, own)
        within = float(noisy[COUNT]) + HALF
        moved = log_share - self._rule.rate * (within - self._rule.quantile)
        return gradients, {**after, "log_share": min(max(moved, -FARTHEST), FARTHEST)}

    def remarks(
        self, state: State, epsilon_at: Callable[[Sequence[float]], float | None]
    ) -> dict[str, Any]:
        """Return the method's remarks, and the clip norm after the last step."""
        last = self._clip_norm * math.exp(state["log_share"])
        return {**super().remarks(state, epsilon_at), "last_clip_norm": last}


def _listed(releases: Sequence[Release]) -> str:
    kinds = {"norm": "", "coordinates": ", clipped by coordinates"}
    return " and ".join(f"{each.name}{kinds.get(each.clip, '')}" for each in releases)
