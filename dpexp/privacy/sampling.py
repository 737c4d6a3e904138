"""Poisson and shuffled sampling."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from dpexp.privacy.seeds import generator, named_unguessable


def poisson(
    seed: int, step: int, dataset_size: int, probability: float, *, is_secret: bool = False
) -> Tensor:
    """Return a Poisson sample: every example independently with the same probability.

    Args:
        seed: the run's seed, or its secret.
        step: from 0.
        dataset_size: how many examples there are.
        probability: of each example, in (0, 1]; draws are float64, so that it is exact to 1e-16.
        is_secret: whether no coin may be computed from the others.

    Returns:
        Indices in ascending order, [n]; n may be 0.
    """
    if is_secret:
        coins = named_unguessable(seed, "sampling", step, dataset_size)
        return torch.nonzero(coins <= probability).flatten()
    coins = torch.rand(
        dataset_size, dtype=torch.float64, generator=generator(seed, "sampling", step)
    )
    return torch.nonzero(coins < probability).flatten()


def cyclic(
    seed: int,
    step: int,
    dataset_size: int,
    probability: float,
    bands: int,
    *,
    is_secret: bool = False,
) -> Tensor:
    """Return a Poisson sample of one of `bands` groups: at step t of group t mod bands.

    Every example is of one group, drawn once and independently of all others. With one band it is
    `poisson`.

    Args:
        seed: the run's seed.
        step: from 0.
        dataset_size: how many examples there are.
        probability: of each example of the group, in (0, 1].
        bands: >= 1.
        is_secret: as in `poisson`.

    Returns:
        Indices in ascending order, [n]; n may be 0.
    """
    drawn = poisson(seed, step, dataset_size, probability, is_secret=is_secret)
    if bands == 1:
        return drawn
    return drawn[groups(seed, dataset_size, bands)[drawn] == step % bands]


@lru_cache(maxsize=2)
def groups(seed: int, dataset_size: int, bands: int) -> Tensor:
    """Return every example's group, [dataset_size] of 0 to bands - 1; not to be written to."""
    gen = generator(seed, "groups", bands)
    return torch.randint(bands, (dataset_size,), generator=gen, dtype=torch.int32)


def shuffled(seed: int, step: int, dataset_size: int, batch_size: int) -> Tensor:
    """Return the step's slice of its epoch's permutation; an epoch's last slice may be shorter.

    Returns:
        Indices, [n] with 1 <= n <= batch_size.
    """
    epoch, position = divmod(step, math.ceil(dataset_size / batch_size))
    order = torch.randperm(dataset_size, generator=generator(seed, "sampling", epoch))
    return order[position * batch_size : (position + 1) * batch_size]
