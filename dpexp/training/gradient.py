"""The private gradient: from a logical batch to a gradient per trainable parameter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpexp.data import LossFn, cross_entropy
from dpexp.data.augmentation import Augmentation
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape
from dpexp.grad_sample.modules import replaced
from dpexp.grad_sample.passes import Passes
from dpexp.grad_sample.rounding import products_in_tf32, take_sums_of_products
from dpexp.kernels import fast_kernels
from dpexp.privacy import Mechanism
from dpexp.privacy.clipping import Clipping
from dpexp.privacy.correlation import Past, add_correlated_noise_
from dpexp.privacy.privatize import (
    FLAT,
    ClippedSum,
    add_noise_,
    require_full_precision,
    require_norms,
)
from dpexp.privacy.seeds import generator, seed_default
from dpexp.training.losses import BatchLosses
from dpexp.training.outcome import StepOutcome
from dpexp.training.returned import checked_releases, checked_step, names_of
from dpexp.training.states import mapped, new_tensors
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

PREPARED_LESS = (
    "Set a smaller method.rank, method.k, method.m or method.directions, a smaller model or "
    "another device."
)


class _Tally(NamedTuple):
    """Counts that are summed over ranks, as in `StepOutcome`; the last two are 0 or 1 per rank."""

    examples: float
    clipped: float
    nonfinite: float
    loss: float
    is_asked_to_stop: float
    has_halved: float


class PrivateGradient:
    """Runs the stages from micro-batches to reconstructed gradients.

    Formal guarantees: the gradients depend on the private examples only through the noisy
    releases. Noise is drawn once per call, on rank 0, after the sum over ranks. If memory runs out
    before that, the same batch is processed again.

    Attributes:
        micro_batch: examples at once; halved on every rank if memory runs out on one.
        trained: the names of the parameters that the method updates.
        augmentation: makes views of the private examples; None: they are taken as they are.
        clipping: how an example's norm is brought down to the clip norm.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        mechanism: Mechanism,
        ranks: Ranks,
        micro_batch: int,
        public: Any = None,
        loss: LossFn = cross_entropy,
        augmentation: Augmentation | None = None,
        clipping: Clipping = FLAT,
        tf32: bool = False,
    ) -> None:
        """Hook the model's trainable layers; leaving the context removes the hooks.

        Args:
            model: on the ranks' device.
            method: turns layer gradients into per-example gradients, and releases into gradients.
            mechanism: sampler and noise.
            ranks: that share the batch.
            micro_batch: examples at once, >= 1.
            public: public examples for `prepare`, with `batch(indices)`; None: there are none.
            loss: of outputs and targets, summed over examples.
            augmentation: makes views of the private examples; None: they are taken as they are.
            clipping: how an example's norm is brought down to the clip norm.
            tf32: whether a GPU may take TF32 for the products of a micro-batch.
        """
        # Norms and sums come from different kernels. In bfloat16 a computed norm would not bound
        # the sum; in TF32 it does with a larger margin, taken where it was asked for.
        take_sums_of_products()
        require_full_precision(model)
        self._dtype = first_weight(model).dtype
        self._model, self._method, self._mechanism = model, method, mechanism
        self._ranks, self.micro_batch = ranks, micro_batch
        self.augmentation, self.clipping = augmentation, clipping
        require_norms(clipping, mechanism.releases)
        self._tf32 = tf32
        self._state: State = {}
        self._sum = ClippedSum({}, (), torch.empty(0))
        self.trained = method.trainable(model)
        named = model.named_parameters()
        self._trained = {name: weight for name, weight in named if name in self.trained}
        self._callback: LayerCallback = self._take
        self._blocks: Collection[Key] = ()
        self._awaited: set[Key] = set()  # blocks still missing in a micro-batch
        self._tape = Tape(
            model, self.trained, lambda layer, layer_grads: self._callback(layer, layer_grads)
        )
        self._loss = loss
        self._public = None
        if public is not None:
            self._public = self.passes(public)

    def __enter__(self) -> PrivateGradient:
        """Return self; leaving the context removes the hooks."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hooks."""
        self._tape.detach()

    def passes(self, examples: Any, setting: str = "method.public_labels") -> Passes:
        """Return per-example gradients of any set; those of private examples are not private."""
        return Passes(examples, self._trained, self._backward, self._ranks.device, setting)

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Remove the hooks within the context, so that autograd trains the model."""
        self._tape.detach()
        try:
            yield
        finally:
            self._tape.attach()

    @fast_kernels()
    def __call__(
        self,
        state: State,
        examples: Any,
        step: int,
        is_asked_to_stop: bool = False,
        on_halved: Callable[[], None] = lambda: None,
        on_part: Callable[[float], None] = lambda part: None,
        past_noise: Past | None = None,
    ) -> StepOutcome:
        """Return the outcome of one step.

        Args:
            state: the method's state after the previous step.
            examples: the training set, with `batch(indices)`.
            step: from 0.
            is_asked_to_stop: whether this rank was asked to stop the run; the outcome has it for
                all ranks.
            on_halved: called on rank 0 if memory ran out on any rank, before anything of the step
                is released. Repeated later, the step's sums may be added in other pieces.
            on_part: called after each micro-batch with the share of this rank's draw that is done.
            past_noise: of the outcome before, if noise is correlated.
        """
        mechanism, ranks = self._mechanism, self._ranks
        indices = ranks.share(mechanism.sample(step))

        self._prepare(state, step)
        # Different GPU models draw different numbers from one seed, and sums in different bases
        # cannot be added.
        ranks.broadcast(new_tensors(self._state, state))
        prepared = self._state

        def summed(micro_batch: int) -> float:
            with self._attempt(prepared, micro_batch):
                return self._micro_batches(examples, indices, step, micro_batch, on_part)

        # Each rank halves for itself; nothing here waits for another rank.
        before = self.micro_batch
        loss, self.micro_batch = memory.halving(summed, before, "micro_batch")
        if ranks.is_first:
            self._take_crafted()
        sums, counts = self._sum.sums, self._sum.counts
        self._forget()  # the sums may become the gradients, so drop this reference
        has_halved = self.micro_batch < before
        tally = _Tally(
            counts.examples, counts.clipped, counts.nonfinite, loss, is_asked_to_stop, has_halved
        )
        told = self._sum_over_ranks(sums, tally)
        if ranks.is_first and _Tally(*told.tolist()).has_halved:
            on_halved()
        released, noise_draws, past_noise = self._release(sums, step, past_noise or [])
        ranks.broadcast([*released.values(), told])
        with torch.no_grad():
            made = self._method.reconstruct(self._state, released)
            gradients, self._state = checked_step(made, self._trained)
        tally = _Tally(*told.tolist())
        if tally.has_halved:  # one size for all ranks, which the checkpoint keeps
            self.micro_batch = -int(ranks.largest(-self.micro_batch))
        return StepOutcome(
            gradients=gradients,
            state=self._state,
            noise_draws=noise_draws,
            examples=int(tally.examples),
            clipped=int(tally.clipped),
            nonfinite=int(tally.nonfinite),
            loss=tally.loss,
            is_asked_to_stop=tally.is_asked_to_stop > 0,
            has_halved=tally.has_halved > 0,
            micro_batch=self.micro_batch,
            past_noise=past_noise,
        )

    @fast_kernels()
    def rehearsal(self, state: State, examples: Any) -> Callable[[Tensor], None]:
        """Return a function that computes and discards a clipped sum; it releases nothing.

        Args:
            state: the method's; it is not changed.
            examples: the training set.

        Returns:
            A function of example indices.
        """
        self._prepare(state, 0)
        prepared = self._state

        @fast_kernels()
        def rehearse(indices: Tensor) -> None:
            with self._attempt(prepared, len(indices)):
                self._micro_batches(examples, indices, 0, len(indices))
            self._forget()

        return rehearse

    @torch.no_grad()
    @fast_kernels()
    def without_noise(
        self, state: State, examples: Any, indices: Tensor, step: int, *, is_clipping: bool
    ) -> tuple[State, dict[Key, Tensor]]:
        """Return what a step would release of some examples if it had no noise; for analyses.

        Args:
            state: the method's after the previous step; it is not changed.
            examples: the training set.
            indices: of the examples that stand for the step's draw, [m].
            step: whose bases, masks and views are taken.
            is_clipping: False leaves the examples' vectors as they are.

        Returns:
            The method's state in that step, and the sums over the examples.
        """
        self._prepare(state, step)
        with self._attempt(self._state, self.micro_batch, is_clipping=is_clipping):
            self._micro_batches(examples, indices, step, self.micro_batch)
        sums = self._sum.sums
        self._forget()
        return self._state, dict(self._method.compress(self._state, sums))

    @torch.no_grad()
    def _prepare(self, state: State, step: int) -> None:
        seed = self._mechanism.seed
        gen = generator(seed, "method", step, self._ranks.device)
        # Dropout on public examples.
        seed_default(seed, "public", step)
        self._forget()
        self._state = state
        with memory.in_one_line("what the method prepares for a step", PREPARED_LESS):
            self._state = self._method.prepare(self._model, state, self._public, gen)

    @contextmanager
    def _attempt(
        self, prepared: State, micro_batch: int, *, is_clipping: bool = True
    ) -> Iterator[None]:
        """Start a sum; if the attempt fails, drop all references so that memory is freed."""
        self._start_sum(prepared, micro_batch, is_clipping=is_clipping)
        try:
            yield
        except BaseException:
            self._forget()
            self._state = prepared
            raise

    def _start_sum(self, prepared: State, micro_batch: int, *, is_clipping: bool) -> None:
        self._forget()
        self._state = mapped(
            lambda leaf: leaf, prepared
        )  # `per_example_grads` adds to it, for one attempt
        like = first_weight(self._model)
        blocks = self._method.release_shapes(self._state)
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

    def _forget(self) -> None:
        """Drop a step's sums and inputs, also after it ran out of memory."""
        self._tape.expect(0)
        self._sum = ClippedSum({}, (), torch.empty(0))

    def _take(self, layer: str, layer_grads: LayerGrads) -> None:
        per_example = self._method.per_example_grads(self._state, layer, layer_grads)
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

    def _micro_batches(
        self,
        examples: Any,
        indices: Tensor,
        step: int,
        micro_batch: int,
        on_part: Callable[[float], None] = lambda part: None,
    ) -> float:
        # Dropout's seed depends on the step, so that a resumed run draws the same masks. It derives
        # from `root`: one more example shifts all dropout masks, which is harmless only while the
        # masks are unknown.
        axis = f"forward/{self._ranks.rank}"
        seed_default(self._mechanism.root, axis, step)
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
        moved = self._trained if self._method.is_forward_only else ()  # by the method itself
        before = look_at(self._model, moved)
        weights = self._method.forward_weights(self._state)
        draws = self._draws(examples, step)
        for some in examples.micro_batches(indices, micro_batch):
            batch = examples.batch(some).to(self._ranks.device)
            if self.augmentation is not None and draws is not None:
                batch = self.augmentation.views(batch, draws[some.to(draws.device)])
            self._awaited = set(self._blocks)
            if self._method.is_forward_only:
                loss = self._forward(batch)
            else:
                loss = float(self._backward(batch, self._take, weights))
            self._check_carried()
            self._sum.close_micro_batch(len(some))
            total += loss
            done += len(batch)
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
        return self.augmentation.draws(len(examples), gen)

    @torch.no_grad()
    def _take_crafted(self) -> None:
        num_examples, per_example = self._method.crafted(self._state)
        if num_examples:
            self._sum.take(per_example)
            self._sum.close_micro_batch(num_examples)

    def _forward(self, batch: Batch) -> float:
        losses = BatchLosses(self._model, self._trained, self._loss, batch)
        with self.unhooked(), torch.no_grad():
            per_example = self._method.per_example_scalars(self._state, losses)
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

    def _sum_over_ranks(self, sums: Mapping[Key, Tensor], tally: _Tally) -> Tensor:
        """Reduce the sums to rank 0, in place, and return the summed tally of all ranks."""
        told = torch.tensor(tally, dtype=torch.float64).to(self._ranks.device)
        self._ranks.reduce([*sums.values(), told])
        return told

    @torch.no_grad()
    def _release(
        self, sums: dict[Key, Tensor], step: int, past: Past
    ) -> tuple[dict[Key, Tensor], int, Past]:
        """Return the noisy releases on rank 0; on other ranks tensors of the same shapes.

        Also how often noise was drawn, and the noise that later steps need.

        The sums, twice as large as the model, are freed.
        """
        mechanism, ranks = self._mechanism, self._ranks
        sizes = {key: total.numel() for key, total in sums.items()}
        found = self._method.compress(self._state, sums)
        released = checked_releases(found, mechanism.releases, sizes)
        sums.clear()
        if mechanism.noise and ranks.is_first:
            gen = mechanism.noise_generator(step, ranks.device)
            sigma = mechanism.noise_multiplier
            if mechanism.correlation is None:
                add_noise_(released, mechanism.releases, sigma, gen, self._dtype)
            else:
                past = add_correlated_noise_(
                    released,
                    mechanism.releases,
                    sigma,
                    gen,
                    mechanism.correlation,
                    past,
                    self._dtype,
                )
        # Round to the model's precision only after noise: a sum's last digits reveal an example.
        for key, total in released.items():
            released[key] = total.to(self._dtype).div_(mechanism.batch_size)
        return released, int(bool(mechanism.noise)), past
