"""The clipped sum of a batch's per-example gradients, a micro-batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data import LossFn
from dpexp.data.augmentation import FEWER, Augmentation
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape
from dpexp.grad_sample.modules import replaced
from dpexp.grad_sample.passes import Passes
from dpexp.grad_sample.rounding import products_in_tf32
from dpexp.privacy import Mechanism
from dpexp.privacy.clipping import Clipping
from dpexp.privacy.privatize import ClipCounts, ClippedSum
from dpexp.privacy.seeds import generator, seed_default
from dpexp.training.losses import BatchLosses
from dpexp.training.probing.own_sets import in_parts, require_each
from dpexp.training.returned import checked_blocks, checked_shapes, names_of, require_rows
from dpexp.training.states import mapped
from dpexp.training.unwritten import look_at, require_unwritten
from dpexp.types import (
    Batch,
    ConfigError,
    Key,
    LayerCallback,
    LayerGrads,
    Method,
    PerExampleGrads,
    State,
    first_weight,
)


class BatchSum:
    """Sums a method's per-example gradients of a batch, clipped by their norms over all blocks.

    It releases nothing. Its sums are of private examples, and have no noise yet.

    Attributes:
        trained: the names of the parameters that the method updates.
        weights: those parameters, by name.
        state: the method's, in this step; `per_example_grads` adds to it.
        augmentation: makes views of the private examples; None: they are taken as they are.
        clipping: how an example's norm is brought down to the clip norm.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        mechanism: Mechanism,
        ranks: Ranks,
        loss: LossFn,
        augmentation: Augmentation | None,
        clipping: Clipping,
        tf32: bool,
    ) -> None:
        """Hook the model's trainable layers, until `detach`.

        Args:
            model: on the ranks' device.
            method: turns layer gradients into per-example gradients.
            mechanism: has the releases and seeds.
            ranks: that share the batch.
            loss: of outputs and targets, summed over examples.
            augmentation: makes views of the private examples; None: they are taken as they are.
            clipping: how an example's norm is brought down to the clip norm.
            tf32: whether a GPU may take TF32 for the products of a micro-batch.
        """
        self._model, self._method, self._mechanism, self._ranks = model, method, mechanism, ranks
        self._loss, self._tf32 = loss, tf32
        self.augmentation, self.clipping = augmentation, clipping
        self.state: State = {}
        self._sum = ClippedSum({}, (), torch.empty(0))
        self.trained = method.trainable(model)
        named = model.named_parameters()
        self.weights = {name: weight for name, weight in named if name in self.trained}
        self._callback: LayerCallback = self._take
        self._blocks: Collection[Key] = ()
        self._awaited: set[Key] = set()  # blocks still missing in a micro-batch
        self._tape = Tape(
            model, self.trained, lambda layer, layer_grads: self._callback(layer, layer_grads)
        )

    @property
    def sums(self) -> dict[Key, Tensor]:
        """Return the sums so far, by block."""
        return self._sum.sums

    @property
    def counts(self) -> ClipCounts:
        """Return how many examples were summed, clipped and dropped so far."""
        return self._sum.counts

    def detach(self) -> None:
        """Remove the hooks."""
        self._tape.detach()

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Remove the hooks within the context, so that autograd trains the model."""
        self._tape.detach()
        try:
            yield
        finally:
            self._tape.attach()

    def passes(self, examples: Any, setting: str) -> Passes:
        """Return per-example gradients of any set; those of private examples are not private."""
        return Passes(examples, self.weights, self._backward, self._ranks.device, setting)

    @contextmanager
    def attempt(
        self, prepared: State, micro_batch: int, *, is_clipping: bool = True
    ) -> Iterator[None]:
        """Start a sum; if the attempt fails, drop all references so that memory is freed."""
        self._start_sum(prepared, micro_batch, is_clipping=is_clipping)
        try:
            yield
        except BaseException:
            self.forget()
            self.state = prepared
            raise

    def _start_sum(self, prepared: State, micro_batch: int, *, is_clipping: bool) -> None:
        self.forget()
        # `per_example_grads` adds to it, for one attempt.
        self.state = mapped(lambda leaf: leaf, prepared)
        like = first_weight(self._model)
        blocks = checked_shapes(self._method.release_shapes(self.state))
        mechanism = self._mechanism
        made = {release.name for release in mechanism.releases if release.clip == "count"}
        self._blocks = {key for key in blocks if key.release not in made}
        self._sum = ClippedSum(
            blocks,
            mechanism.releases,
            like,
            is_clipping=is_clipping and mechanism.clip,
            is_wide=self._ranks.size > 1,
            micro_batch=micro_batch,
            clipping=self.clipping,
        )

    def forget(self) -> None:
        """Drop a step's sums and inputs, also after it ran out of memory."""
        self._tape.expect(0)
        self._sum = ClippedSum({}, (), torch.empty(0))

    def _take(self, layer: str, layer_grads: LayerGrads) -> None:
        per_example = self._method.per_example_grads(self.state, layer, layer_grads)
        checked_blocks(per_example, "per_example_grads")
        self._take_blocks(per_example, f"of layer {layer!r}")

    def _take_blocks(self, per_example: Mapping[Key, PerExampleGrads], place: str) -> None:
        if unknown := per_example.keys() - self._blocks:
            raise ConfigError(
                f"Expected the method to give the blocks that it declares; {place} it "
                f"gives {names_of(unknown)}. Declare them in `release_shapes`."
            )
        self._awaited -= per_example.keys()
        self._sum.take(per_example)

    def _check_carried(self) -> None:
        """Check that a micro-batch gave a gradient for every declared block.

        A missing block would be pure noise, released and accounted like a gradient.
        """
        if self._awaited:
            raise ConfigError(
                "Expected a gradient for every block that the method releases; "
                f"{names_of(self._awaited)} got none. Freeze those parameters, or let the method's "
                "`per_example_grads` return their gradients."
            )

    def add(
        self,
        examples: Any,
        indices: Tensor,
        step: int,
        micro_batch: int,
        on_part: Callable[[float], None] = lambda part: None,
    ) -> float:
        """Add a draw's clipped gradients, in micro-batches; return the sum of their losses.

        Args:
            examples: the training set, with `batch(indices)`.
            indices: of this rank's draw, [m].
            step: whose views and dropout masks are taken.
            micro_batch: examples at once, >= 1.
            on_part: called after each micro-batch with the share of the draw that is done.

        Raises:
            ConfigError: if the method gives other blocks than it declares.
        """
        # Dropout's seed depends on the step, so that a resumed run draws the same masks. It derives
        # from `root`: one more example shifts all dropout masks, which is harmless only while the
        # masks are unknown.
        seed_default(self._mechanism.root, f"forward/{self._ranks.rank}", step)
        with products_in_tf32(self._tf32):
            return self._summed(examples, indices, step, micro_batch, on_part)

    def _summed(
        self,
        examples: Any,
        indices: Tensor,
        step: int,
        micro_batch: int,
        on_part: Callable[[float], None],
    ) -> float:
        """Return the loss of all micro-batches, whose clipped gradients are summed."""
        total, done = 0.0, 0
        moved = self.weights if self._method.is_forward_only else ()  # by the method itself
        before = look_at(self._model, moved)
        weights = self._method.forward_weights(self.state)
        draws = self._draws(examples, step)
        for some in in_parts(examples, indices, micro_batch):
            batch = examples.batch(some).to(self._ranks.device)
            require_each(batch, len(some), type(examples).__name__)
            if self.augmentation is not None and draws is not None:
                batch = self.augmentation.views(batch, draws[some.to(draws.device)])
            self._awaited = set(self._blocks)
            if self._method.is_forward_only:
                loss = self._forward(batch)
            else:
                loss = float(self._backward(batch, self._take, weights))
            self._check_carried()
            require_rows(self._sum.rows, len(some))
            self._sum.close_micro_batch(len(some))
            total += loss
            done += len(some)
            on_part(done / len(indices))
        require_unwritten(before, self._model, moved)
        return total

    def _draws(self, examples: Any, step: int) -> Tensor | None:
        """Return the random numbers of a step's views, one row an example of the whole set.

        So no example's views depend on which others are in the batch, nor on the micro-batch.
        """
        if self.augmentation is None:
            return None
        gen = generator(self._mechanism.root, "augmentation", step)
        with memory.in_one_line("the random numbers of all examples' views", FEWER):
            return self.augmentation.draws(len(examples), gen)

    @torch.no_grad()
    def add_crafted(self) -> None:
        """Add the examples that the method makes up, as audits do."""
        num_examples, per_example = self._method.crafted(self.state)
        if num_examples:
            self._sum.take(per_example)
            self._sum.close_micro_batch(num_examples)

    def _forward(self, batch: Batch) -> float:
        losses = BatchLosses(self._model, self.weights, self._loss, batch)
        with self.unhooked(), torch.no_grad():
            per_example = self._method.per_example_scalars(self.state, losses)
            checked_blocks(per_example, "per_example_scalars")
            self._take_blocks(per_example, "from losses")
        return losses.total

    @torch.enable_grad()
    def _backward(
        self, batch: Batch, callback: LayerCallback, weights: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        self._callback = callback
        self._tape.expect(len(batch), batch.views, batch.inputs.shape[1:])
        # Around backward as well: what is computed again there takes the same weights.
        with replaced(self._model, weights or {}):
            loss = self._loss(self._model(batch.inputs), batch.targets)
            loss = loss if batch.views == 1 else loss / batch.views
            self._tape.backward(loss)
        return loss.detach()
