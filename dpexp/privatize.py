"""The only reduction over examples, and the only place where noise is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dpexp.types import Carrier, Key, Release

Blocks = dict[Key, Tensor]


@dataclass
class ClipCounts:
    """What clipping did to one logical batch.

    Attributes:
        examples: how many were drawn.
        clipped: how many had a norm above the clip norm in some release.
        nonfinite: how many had a NaN or infinite norm; they contribute zero.
    """

    examples: int = 0
    clipped: int = 0
    nonfinite: int = 0


class ClippedSum:
    """Sums per-example vectors, each clipped to its release's norm, over micro-batches.

    Formal guarantees: whatever the carriers hold, one example moves the sum of a release by at
    most its clip norm (to floating-point accuracy); an example whose norm is not finite moves it
    by zero. With clipping off there is no such bound, and carriers are summed as they come.
    """

    def __init__(
        self, sums: Blocks, releases: Iterable[Release], *, is_clipping: bool = True
    ) -> None:
        """Start from zeros.

        Args:
            sums: one zero tensor per block; keys the only blocks that may be taken.
            releases: their clip norms.
            is_clipping: False sums the vectors as they are.
        """
        self.sums = sums
        self.counts = ClipCounts()
        self._clip_norms = {release.name: release.clip_norm for release in releases}
        self._is_clipping = is_clipping
        self._held: dict[Key, Carrier] = {}
        self._squares: dict[str, Tensor] = {}

    def take(self, carriers: Mapping[Key, Carrier]) -> None:
        """Take one layer's carriers of the current micro-batch."""
        for key, carrier in carriers.items():
            if not self._is_clipping:
                self.sums[key] += carrier.weighted_sum(None).view_as(self.sums[key])
                continue
            squares, held = carrier.measured()
            seen = self._squares.get(key.release)
            self._squares[key.release] = squares if seen is None else seen + squares
            self._held[key] = held

    def close_micro_batch(self, num_examples: int) -> None:
        """Clip every example jointly over its release's blocks, and add them to the sums."""
        self.counts.examples += num_examples
        if not self._is_clipping:
            return
        norms = {name: squares.sqrt() for name, squares in self._squares.items()}
        finite = torch.stack([norm.isfinite() for norm in norms.values()]).all(0)
        above = torch.stack([norm > self._clip_norms[name] for name, norm in norms.items()]).any(0)
        num_finite = int(finite.sum())
        self.counts.clipped += int((above & finite).sum())
        self.counts.nonfinite += num_examples - num_finite
        weights = {name: clip_weights(norm, self._clip_norms[name]) for name, norm in norms.items()}
        if num_finite < num_examples:  # zero times NaN is NaN, so such examples must go
            weights = {name: weight[finite] for name, weight in weights.items()}
            self._held = {key: carrier.keep(finite) for key, carrier in self._held.items()}
        while self._held:
            key, carrier = self._held.popitem()
            self.sums[key] += carrier.weighted_sum(weights[key.release]).view_as(self.sums[key])
        self._squares = {}


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """Give min(1, C / norm) for norms [n] >= 0; norms of zero give one."""
    return clip_norm / norms.clamp(min=clip_norm)


def add_noise(
    sums: Mapping[Key, Tensor],
    releases: Iterable[Release],
    noise_multiplier: float,
    gen: torch.Generator,
) -> Blocks:
    """Add Gaussian noise to every coordinate of every release.

    Args:
        sums: the clipped sums over the whole logical batch (all ranks).
        releases: each block's noise has standard deviation noise_multiplier * clip_norm of its
            release.
        noise_multiplier: >= 0.
        gen: on the sums' device; blocks draw from it in the order of `sums`.

    Returns:
        New tensors; zero noise returns copies.
    """
    scale = {release.name: noise_multiplier * release.clip_norm for release in releases}
    noisy = {}
    for key, total in sums.items():
        noise = torch.randn(total.shape, generator=gen, device=total.device, dtype=total.dtype)
        noisy[key] = total + scale[key.release] * noise
    return noisy
