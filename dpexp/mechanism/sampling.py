"""Who takes part in a step, and where randomness comes from."""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
import torch
from torch import Tensor

_WORDS = 624  # the Mersenne twister's state, in 32-bit words
_STATE_OFFSET = 24  # bytes before those words in torch's saved state (each word takes eight bytes)


def new_secret() -> int:
    """Draw 63 bits from the operating system, for noise that nobody can replay."""
    return secrets.randbits(63)


def generator(
    seed: int, axis: str, index: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Seed a generator by named axes, so that any draw can be made without the ones before it.

    On the CPU torch uses 32 bits of a seed, with which two of 10,000 steps share their noise once
    in a hundred runs; the generator's whole state is filled from the hash instead.

    Args:
        seed: the run's seed, or its secret.
        axis: what the numbers are for, e.g. "noise".
        index: which draw, e.g. the step.
        device: where the numbers are to be drawn.
    """
    digest = hashlib.shake_256(f"{seed}/{axis}/{index}".encode()).digest(4 * _WORDS)
    gen = torch.Generator(device=device)
    gen.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    if gen.device.type == "cpu":
        words = np.frombuffer(digest, dtype="<u4").astype(np.uint64)
        state = gen.get_state()
        state[_STATE_OFFSET : _STATE_OFFSET + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
        gen.set_state(state)
    return gen


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
