"""Select the most important (1 - p) of a layer, which a sparse method updates (lsg)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dpexp.linalg import places
from dpexp.types import ConfigError


def require_fraction(p: float) -> None:
    """Check p, the fraction that is frozen.

    Raises:
        ConfigError: for a value outside [0, 1).
    """
    if not 0 <= p < 1:
        raise ConfigError(
            f"Expected method.p, the fraction that is frozen, in [0, 1); got method.p={p}. "
            "Set method.p."
        )


def num_kept(size: int, p: float) -> int:
    """Return how many of `size` remain if a fraction p is frozen, rounded up, so at least one."""
    return max(1, size - math.floor(round(p * size, 9)))


def most_important(importance: Tensor, p: float) -> Tensor | None:
    """Return the indices of the largest (1 - p) of an importance [size].

    Returns:
        Indices in ascending order, [num_kept(size, p)]; None if all are kept.
    """
    count = num_kept(len(importance), p)
    if count == len(importance):
        return None
    return importance.topk(count, sorted=False).indices.sort().values


def is_most_important(importance: Tensor, p: float) -> Tensor | None:
    """Return whether each entry is among the largest (1 - p) of an importance [size].

    Returns:
        Booleans, [size], of which num_kept(size, p) are True; None if all are.
    """
    count = num_kept(len(importance), p)
    if count == len(importance):
        return None
    if importance.device.type == "cpu" and importance.dtype == torch.float32:
        place = len(importance) - count  # NumPy's search takes a tenth of topk's time
        largest = np.partition(importance.detach().numpy(), place)[place:]  # NaN is sorted last
        is_chosen = importance >= float(largest[0])
        if int(is_chosen.count_nonzero()) == count and not np.isnan(largest).any():
            return is_chosen  # else some are equal at the boundary, or one is NaN
    chosen = importance.topk(count, sorted=False).indices
    return torch.zeros_like(importance, dtype=torch.bool).index_fill_(0, chosen, True)


def scattered(kept: Tensor, indices: Tensor | None, size: int, dim: int = 0) -> Tensor:
    """Return kept values at their indices along one axis, zeros elsewhere (None: all were kept)."""
    if indices is None:
        return kept
    shape = list(kept.shape)
    shape[dim] = size
    return torch.zeros(shape, dtype=kept.dtype, device=kept.device).index_copy_(dim, indices, kept)


def spread(kept: Tensor, is_kept: Tensor | None) -> Tensor:
    """Return kept values where a mask [size] is True, in order, zeros elsewhere (None: all)."""
    if is_kept is None:
        return kept
    return kept.new_zeros(len(is_kept)).index_copy_(0, places(is_kept), kept)
