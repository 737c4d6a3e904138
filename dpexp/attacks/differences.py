"""Find where two states differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def first_difference(one: Any, other: Any, at: str = "") -> str | None:
    """Compare two states bit for bit.

    Args:
        one: tensors, numbers, strings, and mappings and lists of them.
        other: likewise.
        at: their path.

    Returns:
        The path of the first difference, or None.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype
        if same:
            bytes_of = [t.detach().cpu().contiguous().view(-1) for t in (one, other)]
            same = torch.equal(*(b.view(torch.uint8) if b.numel() else b for b in bytes_of))
        return None if same else at
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            return at
        pairs = [(str(key), one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return at
        pairs = [(str(k), a, b) for k, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        same = type(one) is type(other) and (one == other or (one != one and other != other))
        return None if same else at
    for key, a, b in pairs:
        where = first_difference(a, b, f"{at}.{key}" if at else key)
        if where is not None:
            return where
    return None
