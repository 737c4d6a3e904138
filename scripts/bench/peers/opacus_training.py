"""Opacus's training loop as its tutorials write it, and what its engine says of the privacy."""

from __future__ import annotations

from typing import Any

from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn


def epoch(engine: PrivacyEngine, private: tuple, physical: int) -> tuple[int, int]:
    """Train for an epoch, `physical` examples in memory at once.

    Args:
        engine: which made the model private.
        private: what it returned: model, optimizer, with ghost clipping the criterion, the loader.
        physical: the most examples of one forward pass.

    Returns:
        The numbers of steps and of examples.
    """
    model, optimizer, *given, loader = private
    criterion = given[0] if given else nn.CrossEntropyLoss()
    before, seen = steps_of(engine), 0
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as parts:
        for inputs, labels in parts:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            seen += len(labels)
    return steps_of(engine) - before, seen


def steps_of(engine: PrivacyEngine) -> int:
    """Return the steps that the engine's accountant has heard of."""
    return sum(steps for *_, steps in engine.accountant.history)


def privacy_of(engine: PrivacyEngine, private: tuple, delta: float) -> dict[str, Any]:
    """Return eps as the engine's accountant has it, the noise, and how batches were drawn."""
    _, optimizer, *_, loader = private
    sampler = type(loader.batch_sampler).__name__
    is_poisson = sampler == "UniformWithReplacementSampler"
    return {
        "epsilon": engine.get_epsilon(delta),
        "delta": delta,
        "noise_multiplier": optimizer.noise_multiplier,
        "sampling": "poisson" if is_poisson else sampler,
    }
