"""Gradients of examples outside a step's draw: public ones, or those that an analysis looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpexp.types import Batch, Carrier, ConfigError, Listener, Tap

PUBLIC_BATCH = 125
"""Public examples in memory at once (ours): not `micro_batch`, which may change no result, for
rounding in anchor gradients would move the bases."""


@dataclass(frozen=True)
class Passes:
    """Gradients of examples outside the step's draw: the same tape, at the model's own weights.

    Attributes:
        examples: a set, usually the public one, with `batch(indices)`.
        parameters: those whose gradients are wanted, by name.
        backward: takes a batch through the model and lets a listener hear the tape.
        device: the model's.
        setting: what asks for the set's own labels, for errors.
    """

    examples: Any
    parameters: Mapping[str, Tensor]
    backward: Callable[[Batch, Listener], Tensor]
    device: torch.device
    setting: str = "method.public_labels"

    def __len__(self) -> int:
        return len(self.examples)

    def micro_batches(
        self, indices: Tensor, targets: Tensor | None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Give every trainable parameter's gradients, [m, ...], some m examples at a time."""
        for batch in self._batches(indices, targets):
            yield self._listen(batch, lambda _, carrier: carrier.each())

    def total(self, indices: Tensor, targets: Tensor | None) -> Mapping[str, Tensor]:
        """Give every trainable parameter's gradient, summed over some examples."""
        sums = {name: torch.zeros_like(weight) for name, weight in self.parameters.items()}
        for batch in self._batches(indices, targets):
            self._listen(batch, lambda name, carrier: carrier.add_to(sums[name], None))
        return sums

    def hear(self, indices: Tensor, targets: Tensor | None, listener: Listener) -> None:
        """Let a listener hear every tapped layer of some examples, some m of them at a time."""
        for batch in self._batches(indices, targets):
            self.backward(batch, listener)

    def _batches(self, indices: Tensor, targets: Tensor | None) -> Iterator[Batch]:
        for piece in torch.arange(len(indices)).split(PUBLIC_BATCH):
            batch = self.examples.batch(indices[piece]).to(self.device)
            if targets is not None:
                batch = Batch(batch.inputs, targets[piece])
            elif (batch.targets < 0).any():
                raise ConfigError(
                    "Expected public examples labelled with the task's own classes; this set's "
                    f"have no such labels. Set {self.setting}=random, or another public set."
                )
            yield batch

    def _listen(self, batch: Batch, take: Callable[[str, Carrier], Any]) -> dict[str, Any]:
        """Take every parameter's gradients as backward gives them; no layer's are held for long."""
        taken: dict[str, Any] = {}

        def hear(layer: str, tap: Tap) -> None:
            for name in tap.parameters:
                full = f"{layer}.{name}"
                if full in self.parameters:
                    taken[full] = take(full, tap.gradient(name))

        self.backward(batch, hear)
        return taken
