"""Noiseless steps of a method on given examples, in float64, with what it released kept.

`dpexp.attacks.soundness` compares such steps on two sets of examples.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.distributed.ranks import Ranks
from dpexp.models.copies import copied
from dpexp.privacy import Mechanism, whole_batch
from dpexp.privacy.seeds import generator
from dpexp.training.gradient import PrivateGradient
from dpexp.training.outcome import StepOutcome
from dpexp.training.returned import checked_declaration, checked_state
from dpexp.types import Batch, Key, Method, State, first_weight

MICRO_BATCH = 12
"""Examples at once where a caller names no number: all that `dpexp.attacks.soundness` has."""

RATE = 0.1
"""Learning rate of an update of the weights between steps (ours)."""


class Injected:
    """A method that releases the same random vectors for all sums.

    The method's `compress` is still called, so that state it keeps there is detected.
    """

    def __init__(self, method: Method, seed: int = 0, scale: float = 1.0) -> None:
        """Wrap a method; seed and scale decide the released vectors."""
        self.inner, self._seed, self._scale, self._calls = method, seed, scale, 0

    def __getattr__(self, name: str) -> Any:
        """Delegate to the method."""
        if name == "inner":  # copy looks it up before it is set
            raise AttributeError(name)
        return getattr(self.inner, name)

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        """Return normal numbers in place of the method's releases."""
        gen = generator(self._seed, "injected", self._calls)
        self._calls += 1
        released = self.inner.compress(state, sums)
        return {
            key: (self._scale * torch.randn(block.shape, generator=gen)).to(block)
            for key, block in released.items()
        }


class Watching:
    """A method that records the arguments and results of `compress`."""

    def __init__(self, method: Method) -> None:
        """Watch a method."""
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Compress as the method does; keep its arguments and its results."""
        self.state, self.sums = state, {key: total.clone() for key, total in sums.items()}
        released = dict(self._method.compress(state, sums))
        self.changes_sums = any(not torch.equal(sums[k], v) for k, v in self.sums.items())
        self.released = {key: block.clone() for key, block in released.items()}
        return released

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Reconstruct as the method does; keep its state."""
        self.given = state
        return self._method.reconstruct(state, noisy)


@dataclass(frozen=True)
class Made:
    """Normalised examples, in float64 if they are floats."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, examples: Any, indices: Tensor) -> Made:
        """Return these of some examples."""
        batch = examples.batch(indices)
        is_number = batch.inputs.is_floating_point()
        return cls(batch.inputs.double() if is_number else batch.inputs, batch.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of these indices, as all examples do."""
        return Batch(self.inputs[indices], self.targets[indices])

    def micro_batches(self, indices: Tensor, size: int) -> Any:
        """Return the indices of micro-batches of at most `size` examples."""
        return indices.split(size) if len(indices) else ()

    def take(self, indices: Tensor) -> Made:
        """Return these alone."""
        return Made(self.inputs[indices], self.targets[indices])

    def with_one(self, inputs: Tensor, target: Tensor) -> Made:
        """Return these and one more."""
        targets = torch.cat([self.targets, target.to(self.targets)[None]])
        return Made(torch.cat([self.inputs, inputs.to(self.inputs)[None]]), targets)


class Public:
    """A public set in float64."""

    def __init__(self, examples: Any) -> None:
        """Take the public set."""
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of these indices, as all examples do."""
        made = Made.of(self._examples, indices)
        return Batch(made.inputs, made.targets)

    def micro_batches(self, indices: Tensor, size: int) -> Any:
        """Return the indices of micro-batches of at most `size` examples."""
        return self._examples.micro_batches(indices, size)


class _Empty(Mechanism):
    """A mechanism that draws no example."""

    def sample(self, step: int) -> Tensor:
        """Return no index."""
        return torch.zeros(0, dtype=torch.long)


class Bench:
    """Runs noiseless steps of a method on given examples, in float64."""

    def __init__(self, parts: Any, clip_norm: float) -> None:
        """Copy the model of a run's parts; `clip_norm` is the run's."""
        self.model: nn.Module = copied(parts.model).double()
        for module in self.model.modules():  # one more example would change all dropout masks
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        self._method, self._loss, self._clipping = parts.method, parts.task.loss, parts.clipping
        self._public = None if parts.task.public is None else Public(parts.task.public)
        self._clip_norm = clip_norm
        self._ranks = Ranks(0, 1, first_weight(self.model).device)

    def start(self) -> State:
        """Return the state before the first step."""
        return checked_state(copy.deepcopy(self._method).start(self.model), "start")

    def releases(self, state: State, share: float = 1.0) -> tuple:
        """Return the declared releases, at a share of the clip norm."""
        return checked_declaration(self._method.releases(state, share * self._clip_norm))

    def step(
        self,
        method: Any,
        state: State,
        examples: Made,
        step: int,
        share: float = 1.0,
        micro_batch: int = MICRO_BATCH,
    ) -> tuple[StepOutcome, Watching]:
        """Run a step on all the examples at a share of the clip norm, without an update.

        Where there are none the step expects one, by which it divides.
        """
        watching = Watching(method)
        releases = self.releases(state, share)
        mechanism = whole_batch(max(1, len(examples)), releases)
        if not len(examples):
            mechanism = _Empty(**vars(mechanism))
        with PrivateGradient(
            self.model,
            watching,
            mechanism,
            self._ranks,
            max(1, min(micro_batch, len(examples))),
            self._public,
            self._loss,
            clipping=self._clipping,
        ) as gradient:
            return gradient(state, examples, step), watching

    def scale(self, factor: float) -> None:
        """Multiply all trained weights by a factor."""
        with torch.no_grad():
            for name in self._method.trainable(self.model):
                self.model.get_parameter(name).mul_(factor)

    def update(self, outcome: StepOutcome) -> None:
        """Take a gradient step on the weights."""
        with torch.no_grad():
            for name, gradient in outcome.gradients.items():
                self.model.get_parameter(name).sub_(RATE * gradient)
