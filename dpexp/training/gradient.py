"""The private gradient: from a logical batch to a gradient per trainable parameter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpexp.data import LossFn, cross_entropy
from dpexp.data.augmentation import Augmentation
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample.passes import Passes
from dpexp.grad_sample.rounding import take_sums_of_products
from dpexp.kernels import fast_kernels
from dpexp.privacy import Mechanism
from dpexp.privacy.clipping import Clipping
from dpexp.privacy.correlation import Past, add_correlated_noise_
from dpexp.privacy.noise import add_noise_
from dpexp.privacy.privatize import FLAT, require_full_precision, require_norms
from dpexp.privacy.seeds import generator, seed_default
from dpexp.training.batch_sum import BatchSum
from dpexp.training.outcome import StepOutcome
from dpexp.training.returned import checked_releases, checked_state, checked_step
from dpexp.training.states import new_tensors
from dpexp.types import Key, Method, State, first_weight

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
        require_norms(clipping, mechanism.releases)
        self._dtype = first_weight(model).dtype
        self._model, self._method, self._mechanism = model, method, mechanism
        self._ranks, self.micro_batch = ranks, micro_batch
        self._batch = BatchSum(model, method, mechanism, ranks, loss, augmentation, clipping, tf32)
        self._public = None if public is None else self.passes(public)

    def __enter__(self) -> PrivateGradient:
        """Return self; leaving the context removes the hooks."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hooks."""
        self._batch.detach()

    @property
    def trained(self) -> tuple[str, ...]:
        """Return the names of the parameters that the method updates."""
        return self._batch.trained

    @property
    def augmentation(self) -> Augmentation | None:
        """Return what makes views of the private examples; None: they are taken as they are."""
        return self._batch.augmentation

    @property
    def clipping(self) -> Clipping:
        """Return how an example's norm is brought down to the clip norm."""
        return self._batch.clipping

    def passes(self, examples: Any, setting: str = "method.public_labels") -> Passes:
        """Return per-example gradients of any set; those of private examples are not private."""
        return self._batch.passes(examples, setting)

    def unhooked(self) -> AbstractContextManager[None]:
        """Remove the hooks within the context, so that autograd trains the model."""
        return self._batch.unhooked()

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
        on_release: Callable[[Collection[Tensor]], None] = lambda released: None,
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
            on_release: called on rank 0 with the noisy releases, before anything else reads them.
        """
        mechanism, ranks, batch = self._mechanism, self._ranks, self._batch
        indices = ranks.share(mechanism.sample(step))

        self._prepare(state, step)
        # Different GPU models draw different numbers from one seed, and sums in different bases
        # cannot be added.
        ranks.broadcast(new_tensors(batch.state, state))
        prepared = batch.state

        def summed(micro_batch: int) -> float:
            with batch.attempt(prepared, micro_batch):
                return batch.add(examples, indices, step, micro_batch, on_part)

        # Each rank halves for itself; nothing here waits for another rank.
        before = self.micro_batch
        loss, self.micro_batch = memory.halving(summed, before, "micro_batch")
        if ranks.is_first:
            batch.add_crafted()
        sums, counts = batch.sums, batch.counts
        batch.forget()  # the sums may become the gradients, so drop this reference
        has_halved = self.micro_batch < before
        tally = _Tally(
            counts.examples, counts.clipped, counts.nonfinite, loss, is_asked_to_stop, has_halved
        )
        told = self._sum_over_ranks(sums, tally)
        if ranks.is_first and _Tally(*told.tolist()).has_halved:
            on_halved()
        released, noise_draws, past_noise = self._release(sums, step, past_noise or [])
        if ranks.is_first:
            on_release(released.values())
        ranks.broadcast([*released.values(), told])
        with torch.no_grad():
            made = self._method.reconstruct(batch.state, released)
            gradients, batch.state = checked_step(made, batch.weights)
        tally = _Tally(*told.tolist())
        if tally.has_halved:  # one size for all ranks, which the checkpoint keeps
            self.micro_batch = -int(ranks.largest(-self.micro_batch))
        return StepOutcome(
            gradients=gradients,
            state=batch.state,
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
        batch, prepared = self._batch, self._batch.state

        @fast_kernels()
        def rehearse(indices: Tensor) -> None:
            with batch.attempt(prepared, len(indices)):
                batch.add(examples, indices, 0, len(indices))
            batch.forget()

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
        batch = self._batch
        with batch.attempt(batch.state, self.micro_batch, is_clipping=is_clipping):
            batch.add(examples, indices, step, self.micro_batch)
        sums = batch.sums
        batch.forget()
        return batch.state, dict(self._method.compress(batch.state, sums))

    @torch.no_grad()
    def _prepare(self, state: State, step: int) -> None:
        seed = self._mechanism.seed
        gen = generator(seed, "method", step, self._ranks.device)
        # Dropout on public examples.
        seed_default(seed, "public", step)
        self._batch.forget()
        self._batch.state = state
        with memory.in_one_line("what the method prepares for a step", PREPARED_LESS):
            made = self._method.prepare(self._model, state, self._public, gen)
        self._batch.state = checked_state(made, "prepare")

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
        found = self._method.compress(self._batch.state, sums)
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
