"""Process examples in slices, to bound temporary memory."""

from __future__ import annotations

from collections.abc import Callable

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
    like = tensors[-1]
    budget = BUDGET_BYTES.get(like.device.type, BUDGET_BYTES["cuda"])
    size = max(1, budget // (numbers * like.element_size()))
    if len(tensors[0]) <= size:
        return size_of(*tensors)
    slices = zip(*(tensor.split(size) for tensor in tensors), strict=True)
    return Size(*map(torch.cat, zip(*(size_of(*piece) for piece in slices), strict=True)))
