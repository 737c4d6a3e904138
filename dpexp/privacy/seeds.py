"""Seeds and generators, by named axes; and randomness that nobody can compute."""

from __future__ import annotations

import hashlib
import os
import random
import secrets

import numpy as np
import torch
from torch import Tensor

_WORDS = 624  # the Mersenne twister's state, in 32-bit words
_STATE_OFFSET = 24  # bytes before those words in torch's saved state (each word takes eight bytes)

AXES = {
    "init": "dpexp.cli.parts",
    "sampling": "dpexp.privacy.sampling",
    "groups": "dpexp.privacy.sampling",
    "noise": "dpexp.privacy.mechanism",
    "noise/": "dpexp.pate.votes",
    "spawned": "dpexp.privacy.seeds",
    "method": "dpexp.training.gradient",
    "public": "dpexp.training.gradient",
    "forward/": "dpexp.training.batch_sum",
    "augmentation": "dpexp.training.batch_sum",
    "teachers": "dpexp.pate.stages",
    "teacher": "dpexp.pate.stages",
    "teacher/weights": "dpexp.pate.stages",
    "student": "dpexp.pate.stages",
    "student/masks": "dpexp.pate.stages",
    "queries": "dpexp.pate.loop",
    "test-half": "dpexp.pate.loop",
    "analysis/": "dpexp.training.observation",
    "attack": "dpexp.attacks.membership",
    "shadow": "dpexp.attacks.shadow",
    "canary/coin": "dpexp.attacks.audit",
    "canary/group": "dpexp.attacks.canaries",
    "canary/draw": "dpexp.attacks.canaries",
    "canary/length": "dpexp.attacks.canaries",
    "canary/direction/": "dpexp.attacks.canaries",
    "canary/label": "dpexp.attacks.mislabelled",
    "canary/example": "dpexp.attacks.mislabelled",
    "neighbours": "dpexp.attacks.soundness",
    "injected": "dpexp.attacks.noiseless",
    "influence": "dpexp.attacks.influence",
    "made-up": "dpexp.training.probing.made_up",
    "made-up/views": "dpexp.training.probing.options",
    "made-up/targets": "dpexp.training.probing.options",
    "made-up/outputs": "dpexp.training.probing.options",
    "made-up/norms": "dpexp.training.probing.options",
    "probe": "dpexp.training.probing.draws",
    "shaken": "dpexp.training.probing.stage",
}
"""Every axis, with the one module that draws from it; a name that ends in "/" is a prefix. Making
and choosing data has seeds of its own, `data_seed` and `subset_seed`."""


def new_secret() -> int:
    """Return 256 random bits from the operating system, for a run that cannot be replayed."""
    return secrets.randbits(256)


def unguessable(size: int) -> Tensor:
    """Return uniform numbers from the operating system's own cryptographic generator.

    What a torch generator draws can be computed from earlier draws of it: the Mersenne twister is
    linear. These cannot, even by someone who knows all the others.

    Returns:
        [size], float64 on the CPU, in (0, 1]; multiples of 2^-53.
    """
    return _of_bytes(os.urandom(8 * size))


def named_unguessable(secret: int, axis: str, index: int, size: int) -> Tensor:
    """Return uniform numbers by SHAKE-256 of a secret, so that all ranks draw the same.

    Args:
        secret: of `new_secret`.
        axis: what the numbers are for, one of `AXES`.
        index: which draw, e.g. the step.
        size: how many.

    Returns:
        As `unguessable`.
    """
    return _of_bytes(hashlib.shake_256(f"{secret}/{axis}/{index}".encode()).digest(8 * size))


def _of_bytes(drawn: bytes) -> Tensor:
    """Return 53 of every 64 bits as a number in (0, 1]."""
    words = np.frombuffer(drawn, dtype="<u8")
    return torch.from_numpy(((words >> np.uint64(11)) + np.uint64(1)) * 2.0**-53)


def generator(
    seed: int, axis: str, index: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """Return a generator seeded by named axes, so that any draw can be made without earlier ones.

    On the CPU torch uses 32 bits of a seed; in one of a hundred runs two of 10,000 steps would
    share their noise. The generator's whole state is filled from a hash instead.

    Args:
        seed: the run's seed, or its secret.
        axis: what the numbers are for, one of `AXES`.
        index: which draw, e.g. the step.
        device: of the generator.
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


def seed_default(seed: int, axis: str, index: int) -> None:
    """Seed the default generators of every device, which e.g. dropout uses.

    And Python's and NumPy's own, by which some networks skip a layer: a step that is repeated after
    a kill would else have another sum under the same noise.

    Args:
        seed: as in `generator`; on the CPU the whole state is filled here too.
        axis: what the numbers are for.
        index: which draw.
    """
    gen = generator(seed, axis, index)
    if torch.accelerator.is_available():  # takes a millisecond
        torch.manual_seed(gen.initial_seed())
    torch.default_generator.set_state(gen.get_state())
    digest = hashlib.shake_256(f"{seed}/{axis}/{index}/others".encode()).digest(32)
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, "<u4"))


def spawned(gen: torch.Generator, count: int) -> list[torch.Generator]:
    """Return CPU generators for parallel draws.

    Args:
        gen: four 63-bit numbers are drawn from it, and hashed to all states.
        count: >= 0; a smaller count gives the first generators of a larger one.
    """
    key = 0
    for number in torch.randint(2**63 - 1, (4,), generator=gen).tolist():
        key = key << 63 | number
    return [generator(key, "spawned", k) for k in range(count)]
