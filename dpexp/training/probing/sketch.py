"""Sketches of gradients and fingerprints of weights: both are kept in place of a large model's own.

A model is tried on several batches, and gradients of single examples are compared: whole, they
would be a dozen copies of the model, in float64. Only lengths and distances are asked for, and a
random projection keeps both (Johnson and Lindenstrauss 1984). With entries of ± 1 / sqrt(k) a
squared length is right in the mean, and its standard deviation is at most sqrt(2 / k) of it.

Of weights it is asked whether any was moved. A sum of their bits times random odd numbers, modulo
2^64, tells any change of one of them, and another with a probability of 1 - 2^-63 or so.
"""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SUMS = 16
"""k (ours): lengths are right to a third, where what is compared differs a thousandfold."""

COLUMNS = 512
"""Columns of the matrix that a gradient is written as, each of which is projected (ours)."""

LARGEST = 8 * SUMS * COLUMNS
"""Numbers of the largest gradient that is kept whole (ours); a sketch has an eighth of them."""

ROWS = 2**12
"""Rows of that matrix that are read at once (ours): 16 MB in float64."""

WORDS, BASE = 2**16, 0x9E3779B97F4A7C15
"""How many numbers a fingerprint reads at once, and by what the sum of those before is multiplied
(ours): an odd number, so that no change is lost."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Fingerprint = tuple[torch.Size, torch.dtype, int]


def sketch(gradient: Tensor) -> Tensor:
    """Return a small gradient itself, and of a large one k random sums of each column.

    Sums are in float64, so that of a gradient in float32 two sketches are equal only where the
    gradients are, but for changes of less than a billionth of a sum.

    Args:
        gradient: of any shape; not changed.

    Returns:
        The gradient, or its sketch [k, columns] in float64. The signs are the same in every call.
    """
    if gradient.numel() <= LARGEST:
        return gradient
    sums = gradient.new_zeros(SUMS, COLUMNS, dtype=torch.double)
    for part, numbers in enumerate(gradient.reshape(-1).split(ROWS * COLUMNS)):
        rows = F.pad(numbers.double(), (0, -len(numbers) % COLUMNS)).view(-1, COLUMNS)
        sums += torch.from_numpy(_signs(part)[:, : len(rows)]).to(rows) @ rows
    return sums / sqrt(SUMS)


@cache
def _signs(part: int) -> np.ndarray:
    """Return random signs [k, rows] by numpy: torch's draws are fixed where a model is tried."""
    signs = np.random.default_rng(part).integers(2, size=(SUMS, ROWS), dtype=np.int8)
    signs *= 2
    signs -= 1
    return signs


def fingerprint(weight: Tensor) -> Fingerprint:
    """Return what tells a weight from what it is after a change.

    Args:
        weight: of any shape and real type; zeros of either sign are the same.

    Returns:
        Its shape, its type, and a sum of its bits times random odd numbers.
    """
    total = 0
    for numbers in weight.reshape(-1).split(WORDS):
        whole = numbers + 0 if numbers.is_floating_point() else numbers  # -0 + 0 is 0
        bits = whole.view(BITS[whole.element_size()]).long()
        odd = torch.from_numpy(_odd()[: len(bits)]).to(bits.device)
        total = (total * BASE + int((bits * odd).sum())) % 2**64
    return weight.shape, weight.dtype, total


@cache
def _odd() -> np.ndarray:
    """Return random odd numbers of 64 bits."""
    return np.random.default_rng(0).integers(-(2**63), 2**63 - 1, WORDS, endpoint=True) | 1
