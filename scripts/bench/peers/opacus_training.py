"""Opacus's training loop as its tutorials write it, and what its engine says of the privacy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, Dataset

from scripts.bench.peers.clock import Clock, finish, keep


def train(
    given: argparse.Namespace,
    clock: Clock,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    test: Dataset,
    evaluate: Callable[[nn.Module, Dataset], float],
) -> None:
    """Make a model private, train it, evaluate and report.

    Args:
        given: the script's words.
        clock: whose phase "setup" has not ended.
        model: in training mode.
        optimizer: of its parameters.
        loader: of batches that are not yet drawn by Poisson sampling.
        test: examples.
        evaluate: see `finish`.
    """
    engine = PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        epochs=given.epochs,
        target_epsilon=given.eps,
        target_delta=given.delta,
        max_grad_norm=given.clip_norm,
        grad_sample_mode=given.mode,
    )
    clock.end("setup")
    steps = seen = 0
    for _ in range(given.epochs):
        more, examples = epoch(engine, private, given.physical)
        steps, seen = steps + more, seen + examples
        keep(model, private[1], given.out)
    privacy = partial(privacy_of, engine, private, given.delta)
    finish(clock, model, test, evaluate, privacy, steps=steps, seen=seen)


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
