"""Process examples in slices, to bound temporary memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dpexp.types import Size

# Ours, measured. Slices that fit in a CPU's cache are faster than whole batches, and small next to
# any layer's activations. A GPU needs larger slices to be busy.
BUDGET_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}


def over_chunks(size_of: Callable[..., Size], tensors: tuple[Tensor, ...], numbers: int) -> Size:
    """Return the sizes of all examples, computed slice by slice.

    Args:
        size_of: maps tensors [m, ...] to sizes [m].
        tensors: each [n, ...].
        numbers: how many numbers `size_of` forms per example.
    """
    sizes = [size_of(*piece) for piece in slices_of(tensors, numbers)]
    return sizes[0] if len(sizes) == 1 else Size(*map(torch.cat, zip(*sizes, strict=True)))


def slices_of(tensors: tuple[Tensor, ...], numbers: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors in slices of examples, for each of which so many numbers are formed."""
    like = tensors[-1]
    budget = BUDGET_BYTES.get(like.device.type, BUDGET_BYTES["cuda"])
    size = max(1, budget // (numbers * like.element_size()))
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)
