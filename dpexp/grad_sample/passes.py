"""Gradients of examples outside a step's batch: public ones, or those that an analysis asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpexp.types import Batch, ConfigError, LayerCallback, LayerGrads, PerExampleGrads, full_name

PUBLIC_BATCH = 125
"""Public examples in memory at once (ours). `micro_batch` is not used: it must change no result,
and rounding in anchor gradients would move the bases."""


@dataclass(frozen=True)
class Passes:
    """Gradients of examples outside the step's batch, by the same tape at the model's own weights.

    Attributes:
        examples: a set, usually the public one, with `batch(indices)`.
        parameters: names of those whose gradients are wanted.
        backward: runs a batch forward and backward, with a callback for its layers.
        device: the model's.
        setting: the setting that asks for the set's own labels, for errors.
    """

    examples: Any
    parameters: Mapping[str, Tensor]
    backward: Callable[[Batch, LayerCallback], Tensor]
    device: torch.device
    setting: str = "method.public_labels"

    def __len__(self) -> int:
        return len(self.examples)

    def micro_batches(
        self, indices: Tensor, targets: Tensor | None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Yield every trainable parameter's gradients, [m, ...], m examples at a time."""
        for batch in self._batches(indices, targets):
            yield self._collect(batch, lambda _, grads: grads.materialize())

    def total(self, indices: Tensor, targets: Tensor | None) -> Mapping[str, Tensor]:
        """Return every trainable parameter's gradient, summed over the examples."""
        sums = {name: torch.zeros_like(weight) for name, weight in self.parameters.items()}
        for batch in self._batches(indices, targets):
            self._collect(batch, lambda name, grads: grads.add_to(sums[name], None))
        return sums

    def visit_layers(
        self, indices: Tensor, targets: Tensor | None, callback: LayerCallback
    ) -> None:
        """Call `callback` for every hooked layer, m examples at a time."""
        for batch in self._batches(indices, targets):
            self.backward(batch, callback)

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

    def _collect(self, batch: Batch, take: Callable[[str, PerExampleGrads], Any]) -> dict[str, Any]:
        """Return `take` of every parameter's gradients, layer by layer as backward reaches them."""
        taken: dict[str, Any] = {}

        def take_all(layer: str, layer_grads: LayerGrads) -> None:
            for name in layer_grads.parameters:
                full = full_name(layer, name)
                if full in self.parameters:
                    taken[full] = take(full, layer_grads.gradient(name))

        self.backward(batch, take_all)
        return taken
