"""The only reduction over examples, and the only place where noise is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, repeat

import torch
from torch import Tensor

from dpexp.carriers import Explicit
from dpexp.seeds import spawned
from dpexp.types import Carrier, Key, Release

Blocks = dict[Key, Tensor]


@dataclass
class ClipCounts:
    """What clipping did to one logical batch.

    Attributes:
        examples: how many were drawn.
        clipped: how many had a norm, or a coordinate, above the clip norm in some release.
        nonfinite: how many had a NaN or infinite norm; they contribute zero.
    """

    examples: int = 0
    clipped: int = 0
    nonfinite: int = 0


class ClippedSum:
    """Sums per-example vectors, each clipped as its release says, over micro-batches.

    Formal guarantees: whatever the carriers hold, one example moves the sum of a release by at
    most its clip norm (to floating-point accuracy), or each of its coordinates by at most that
    where the release is clipped by coordinates; an example whose norm is not finite moves it by
    zero. With clipping off there is no such bound, and carriers are summed as they come.
    """

    def __init__(
        self,
        shapes: Mapping[Key, tuple[int, ...]],
        releases: Iterable[Release],
        like: Tensor,
        *,
        is_clipping: bool = True,
    ) -> None:
        """Start from zeros.

        Args:
            shapes: of the blocks, the only ones that may be taken.
            releases: their clip norms.
            like: a tensor with the sums' device and precision.
            is_clipping: False sums the vectors as they are.
        """
        self.counts = ClipCounts()
        self._shapes, self._like = shapes, like
        self._sums: Blocks = {}
        self._releases = {release.name: release for release in releases}
        self._is_clipping = is_clipping
        self._held: dict[Key, Carrier] = {}
        self._sizes: dict[str, Tensor] = {}  # squared norms, or largest coordinates

    @property
    def sums(self) -> Blocks:
        """Every block's sum so far, in the order of the shapes."""
        return {key: self._sum(key) for key in self._shapes}

    def _sum(self, key: Key) -> Tensor:
        # Only once there is something to add: before that, activations want the memory.
        if key not in self._sums:
            self._sums[key] = self._like.new_zeros(self._shapes[key])
        return self._sums[key]

    def take(self, carriers: Mapping[Key, Carrier]) -> None:
        """Take one layer's carriers of the current micro-batch."""
        for key, carrier in carriers.items():
            if not self._is_clipping:
                carrier.add_to(self._sum(key), None)
                continue
            release = self._releases[key.release]
            seen = self._sizes.get(release.name)
            if release.clip == "coordinates":
                size, self._held[key] = clip_coordinates(carrier.each(), release.clip_norm)
                self._sizes[release.name] = size if seen is None else seen.maximum(size)
            else:
                size, self._held[key] = carrier.measured()
                self._sizes[release.name] = size if seen is None else seen + size

    def close_micro_batch(self, num_examples: int) -> None:
        """Clip every example jointly over its release's blocks, and add them to the sums."""
        self.counts.examples += num_examples
        if not self._is_clipping:
            return
        bounds = {name: self._releases[name].clip_norm for name in self._sizes}
        by_norm = {name for name in self._sizes if self._releases[name].clip == "norm"}
        sizes = {n: size.sqrt() if n in by_norm else size for n, size in self._sizes.items()}
        finite = torch.stack([size.isfinite() for size in sizes.values()]).all(0)
        above = torch.stack([size > bounds[name] for name, size in sizes.items()]).any(0)
        num_finite = int(finite.sum())
        self.counts.clipped += int((above & finite).sum())
        self.counts.nonfinite += num_examples - num_finite
        weights = {name: clip_weights(sizes[name], bounds[name]) for name in by_norm}
        if num_finite < num_examples:  # zero times NaN is NaN, so such examples must go
            weights = {name: weight[finite] for name, weight in weights.items()}
            self._held = {key: carrier.keep(finite) for key, carrier in self._held.items()}
        while self._held:
            key, carrier = self._held.popitem()
            carrier.add_to(self._sum(key), weights.get(key.release))
        self._sizes = {}


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """Give min(1, C / norm) for norms [n] >= 0; norms of zero give one."""
    return clip_norm / norms.clamp(min=clip_norm)


def clip_coordinates(values: Tensor, bound: float) -> tuple[Tensor, Explicit]:
    """Clamp per-example vectors [n, ...] to [-bound, bound] in every coordinate.

    Returns:
        Each example's largest absolute coordinate before that, [n] (NaN where it has one), and the
        clamped vectors.
    """
    return values.flatten(1).abs().amax(1), Explicit(values.clamp(-bound, bound))


NOISE_AT_ONCE = {"cpu": 2**18, "gpu": 2**22}
"""Ours: numbers drawn before they are added; on a CPU what stays in a core's cache, on a GPU what
keeps it busy."""

GRAIN = 2**15
"""Numbers that torch works on with one thread; more would start threads of a thread's own."""


def add_noise_(
    sums: Mapping[Key, Tensor],
    releases: Iterable[Release],
    noise_multiplier: float,
    gen: torch.Generator,
) -> None:
    """Add independent noise to every coordinate of every release, in place.

    Args:
        sums: the clipped sums over the whole logical batch (all ranks), or what a method made of
            them; contiguous. After an error some hold noise and some do not.
        releases: each block's noise has standard deviation (Laplace: scale)
            noise_multiplier * clip_norm of its release.
        noise_multiplier: >= 0.
        gen: on the sums' device; blocks draw from it in the order of `sums`. On a CPU the pieces of
            a large block draw side by side, each from a generator spawned from it, so that the
            noise is the same on any number of threads.

    Raises:
        RuntimeError: for a sum that is not contiguous.
    """
    by_name = {release.name: release for release in releases}

    def add(piece: Tensor, release: Release, gen: torch.Generator) -> None:
        noise = _DRAWS[release.noise](piece, gen)
        piece.add_(noise, alpha=noise_multiplier * release.clip_norm)

    @torch.no_grad()  # which holds for the thread that says it
    def add_by_grains(piece: Tensor, release: Release, gen: torch.Generator) -> None:
        for grain in piece.split(GRAIN):
            add(grain, release, gen)

    waiting = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for key, total in sums.items():
            release, device = by_name[key.release], "cpu" if total.device.type == "cpu" else "gpu"
            pieces = total.view(-1).split(NOISE_AT_ONCE[device])  # views, never copies
            if len(pieces) > 1 and device == "cpu":  # where torch draws on one thread alone
                gens = spawned(gen, len(pieces))
                waiting.append(pool.map(add_by_grains, pieces, repeat(release), gens))
            else:
                for piece in pieces:
                    add(piece, release, gen)
    for _ in chain(*waiting):  # raises a thread's errors
        pass


FAR = 5.0
"""Standard deviations beyond which normal noise is drawn by other means."""


def _gaussian(like: Tensor, gen: torch.Generator) -> Tensor:
    noise = torch.randn(like.shape, generator=gen, device=like.device, dtype=like.dtype)
    return with_tails_(noise, gen)


def with_tails_(noise: Tensor, gen: torch.Generator, far: float = FAR) -> Tensor:
    """Draw normal noise's far values again, in float64 and in place.

    In float32 torch's own end at 5.77 standard deviations on a CPU, and an example that shows
    where noise cannot reach is not hidden; these end beyond 8.

    Args:
        noise: standard normal.
        gen: on its device.
        far: values of at least that size are replaced by ones of at least that size, > 0.
    """
    if noise.numel() == 0:
        return noise
    low, high = noise.aminmax()  # one pass without temporaries, and mostly all there is to do
    if max(-low, high) < far:
        return noise
    is_far = noise.abs() >= far
    old = noise[is_far]
    rest = 1 - torch.rand(old.shape, generator=gen, device=old.device, dtype=torch.float64)
    beyond = -torch.special.ndtri(rest * torch.special.ndtr(rest.new_tensor(-far)))
    noise[is_far] = beyond.to(noise.dtype).copysign(old)
    return noise


def _laplace(like: Tensor, gen: torch.Generator) -> Tensor:
    """Subtract two exponentials, in float64: float32's has no tail beyond 17 scales."""
    draws = torch.empty((2, *like.shape), device=like.device, dtype=torch.float64)
    plus, minus = draws.exponential_(generator=gen)
    return (plus - minus).to(like.dtype)


_DRAWS = {"gaussian": _gaussian, "laplace": _laplace}
