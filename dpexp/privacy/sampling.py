"""Who takes part in a step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpexp.privacy.seeds import generator


def poisson(seed: int, step: int, dataset_size: int, probability: float) -> Tensor:
    """Toss an independent coin for every example.

    Args:
        seed: the run's seed.
        step: from 0.
        dataset_size: how many examples there are.
        probability: of heads, in (0, 1]; coins are float64, whose 53 bits make the true
            probability equal the stated one to 1e-16.

    Returns:
        Indices in rising order, [n]; n may be 0.
    """
    coins = torch.rand(
        dataset_size, dtype=torch.float64, generator=generator(seed, "sampling", step)
    )
    return torch.nonzero(coins < probability).flatten()


def shuffled(seed: int, step: int, dataset_size: int, batch_size: int) -> Tensor:
    """Take the step's slice of its epoch's permutation; an epoch's last slice may be short.

    Returns:
        Indices, [n] with 1 <= n <= batch_size.
    """
    epoch, position = divmod(step, math.ceil(dataset_size / batch_size))
    order = torch.randperm(dataset_size, generator=generator(seed, "sampling", epoch))
    return order[position * batch_size : (position + 1) * batch_size]
