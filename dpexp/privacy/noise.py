"""Add noise to releases, which happens nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat

import torch
from torch import Tensor

from dpexp.privacy.seeds import spawned, unguessable
from dpexp.types import Key, Release

NOISE_AT_ONCE = {"cpu": 2**18, "gpu": 2**22}
"""Noise values drawn at once (ours): on a CPU what fits in a core's cache, on a GPU what keeps it
busy."""

GRAIN = 2**15
"""Largest size that torch processes on one thread; more would start threads within threads."""


def add_noise_(
    sums: Mapping[Key, Tensor],
    releases: Iterable[Release],
    noise_multiplier: float,
    gen: torch.Generator | None,
    dtype: torch.dtype | None = None,
) -> None:
    """Add independent noise to every coordinate of every release, in place.

    Both are added in float64 and rounded once, so that the result does not reveal the sums'
    precision.

    Args:
        sums: the clipped sums over the whole logical batch (all ranks), or what the method's
            `compress` returned; contiguous. After an error only some have noise.
        releases: each block's noise has standard deviation (Laplace: scale) the noise multiplier
            times the clip norm of its release.
        noise_multiplier: of releases that have none of their own, >= 0.
        gen: on the sums' device; blocks draw from it in the order of `sums`. On a CPU the pieces of
            a large block are drawn in parallel, each from a generator spawned from it, so that the
            noise is the same for any number of threads. None: the operating system's randomness,
            which cannot be computed from other noise, nor drawn again.
        dtype: of the drawn noise, so that it depends on the model's precision alone; None: the
            sums'.

    Raises:
        RuntimeError: for a sum that is not contiguous.
    """
    by_name = {release.name: release for release in releases}

    def add(piece: Tensor, release: Release, gen: torch.Generator | None) -> None:
        noise = _DRAWS[release.noise](piece, gen, dtype or piece.dtype)
        wide = piece.double()  # the same tensor if it is in float64 already
        wide.add_(noise, alpha=release.multiplier(noise_multiplier) * release.clip_norm)
        if wide is not piece:
            piece.copy_(wide)

    @torch.no_grad()  # applies only to the current thread
    def add_by_grains(piece: Tensor, release: Release, gen: torch.Generator | None) -> None:
        for grain in piece.split(GRAIN):
            add(grain, release, gen)

    waiting = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for key, total in sums.items():
            release, device = by_name[key.release], "cpu" if total.device.type == "cpu" else "gpu"
            pieces = total.view(-1).split(NOISE_AT_ONCE[device])  # views, never copies
            if len(pieces) > 1 and device == "cpu":  # torch draws on a single thread there
                gens: Iterable[torch.Generator | None] = repeat(None)
                if gen is not None:
                    gens = spawned(gen, len(pieces))
                waiting.append(pool.map(add_by_grains, pieces, repeat(release), gens))
            else:
                for piece in pieces:
                    add(piece, release, gen)
    for _ in chain(*waiting):  # raises a thread's errors
        pass


FAR = 5.0
"""Standard deviations beyond which normal noise is redrawn."""


def _gaussian(like: Tensor, gen: torch.Generator | None, dtype: torch.dtype) -> Tensor:
    if gen is None:
        return _box_muller(like).to(dtype)
    noise = torch.randn(like.shape, generator=gen, device=like.device, dtype=dtype)
    return with_tails_(noise, gen)


def _box_muller(like: Tensor) -> Tensor:
    """Return standard normal noise of the system's randomness, in float64; it ends at 8.57."""
    half = (like.numel() + 1) // 2
    uniform = unguessable(2 * half).to(like.device)
    radius = uniform[:half].log_().mul_(-2).sqrt_()
    angle = uniform[half:].mul_(2 * math.pi)
    both = torch.cat([radius * angle.cos(), radius * angle.sin()])
    return both[: like.numel()].view(like.shape)


def with_tails_(noise: Tensor, gen: torch.Generator, far: float = FAR) -> Tensor:
    """Redraw the tail of normal noise, in float64 and in place.

    In float32 torch's normal noise ends at 5.77 standard deviations on a CPU. An example is not
    hidden where noise cannot reach. The redrawn tail ends beyond 8.

    Args:
        noise: standard normal.
        gen: on the noise's device.
        far: > 0; values of at least this size are replaced by new ones of at least this size.
    """
    if noise.numel() == 0:
        return noise
    low, high = noise.aminmax()  # one pass without temporaries, usually enough
    if max(-low, high) < far:
        return noise
    is_far = noise.abs() >= far
    old = noise[is_far]
    rest = 1 - torch.rand(old.shape, generator=gen, device=old.device, dtype=torch.float64)
    beyond = -torch.special.ndtri(rest * torch.special.ndtr(rest.new_tensor(-far)))
    noise[is_far] = beyond.to(noise.dtype).copysign(old)
    return noise


def _laplace(like: Tensor, gen: torch.Generator | None, dtype: torch.dtype) -> Tensor:
    """Return the difference of two exponentials, in float64; float32 ends at 17 scales."""
    draws = torch.empty((2, *like.shape), device=like.device, dtype=torch.float64)
    if gen is None:
        draws.copy_(unguessable(draws.numel()).view(draws.shape)).log_().neg_()
    else:
        draws.exponential_(generator=gen)
    plus, minus = draws
    return (plus - minus).to(dtype)


_DRAWS = {"gaussian": _gaussian, "laplace": _laplace}
