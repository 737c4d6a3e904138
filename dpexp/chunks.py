"""Examples in slices, so that what is formed and thrown away stays small."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Ours, measured: slices that stay in a processor's cache are faster than whole batches, and small
# beside any layer's activations; a GPU wants more to do at a time.
BUDGET_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}


ROUNDING = 8.0  # ours: a few roundings of a sum whose terms cancel; see `upper_bound`


def upper_bound(squares: Tensor, energy: Tensor) -> Tensor:
    """Raise squared norms by what rounding may take from them, so that clipping holds.

    A gradient adds terms over positions, which may cancel to something far smaller than they are.
    A Gram form adds the same in another order; and where an example's terms are added to those of
    others, the others lose digits beside them.

    Args:
        squares: [n], as computed.
        energy: [n], which bounds the squared norm of the terms' sizes (`OuterRule.energy`).
    """
    return squares.clamp(min=0) + ROUNDING * torch.finfo(squares.dtype).eps * energy


def trace(gram: Tensor) -> Tensor:
    """Give the traces of Gram matrices [n, t, t]: the squared norms of what they are of, [n]."""
    return gram.diagonal(dim1=1, dim2=2).sum(1)


def over_chunks(norms: Callable[..., Tensor], tensors: tuple[Tensor, ...], numbers: int) -> Tensor:
    """Compute per-example values slice by slice.

    Args:
        norms: maps tensors [m, ...] to [m].
        tensors: each [n, ...].
        numbers: how many numbers `norms` forms per example.

    Returns:
        [n].
    """
    like = tensors[-1]
    budget = BUDGET_BYTES.get(like.device.type, BUDGET_BYTES["cuda"])
    size = max(1, budget // (numbers * like.element_size()))
    if len(tensors[0]) <= size:
        return norms(*tensors)
    slices = zip(*(tensor.split(size) for tensor in tensors), strict=True)
    return torch.cat([norms(*piece) for piece in slices])
