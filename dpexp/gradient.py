"""One private gradient: a logical batch in, a gradient per trainable parameter out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dpexp.mechanism import Mechanism, generator
from dpexp.privatize import ClippedSum, add_noise
from dpexp.ranks import Ranks
from dpexp.taps import Tape
from dpexp.types import Key, Method, State, Tap


@dataclass(frozen=True)
class Outcome:
    """What one step gives.

    Only `gradients` and `state` come out of the mechanism; the counts and the loss are private
    diagnostics that no guarantee covers.

    Attributes:
        gradients: one per trainable parameter, divided by the expected batch size.
        state: the method's, for the next step.
        noise_draws: how often noise was drawn.
        examples: how many were drawn, over all ranks.
        clipped: how many of them had a norm above the clip norm.
        nonfinite: how many had a NaN or infinite norm, and contributed zero.
        loss: summed over the examples.
    """

    gradients: dict[str, Tensor]
    state: State
    noise_draws: int
    examples: int
    clipped: int
    nonfinite: int
    loss: float


class PrivateGradient:
    """Runs the stages from micro-batches to reconstructed gradients.

    Formal guarantees: the gradients depend on the private examples only through the noisy
    releases; noise is drawn once per call, after the sum over ranks, alike on every rank.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        mechanism: Mechanism,
        ranks: Ranks,
        micro_batch: int,
    ) -> None:
        """Tap the model's trainable layers; leaving the context removes the taps.

        Args:
            model: on the ranks' device.
            method: turns taps into carriers and releases into gradients.
            mechanism: sampler and noise.
            ranks: who shares the batch.
            micro_batch: how many examples go through the model at once, >= 1.
        """
        # Norms and sums come from different kernels: at TF32's precision one would not bound the
        # other.
        torch.backends.cudnn.allow_tf32 = False
        self._model, self._method, self._mechanism = model, method, mechanism
        self._ranks, self._micro_batch = ranks, micro_batch
        self._state: State = {}
        self._sum = ClippedSum({}, ())
        self._tape = Tape(model, method.trainable(model), self._take)

    def __enter__(self) -> PrivateGradient:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the taps."""
        self._tape.detach()

    def __call__(self, state: State, examples: Any, step: int) -> Outcome:
        """Take the step's draw through the whole line.

        Args:
            state: the method's state after the step before.
            examples: the training set, with `batch(indices)`.
            step: from 0.
        """
        mechanism, ranks = self._mechanism, self._ranks
        self._prepare(state, step)
        loss = self._micro_batches(examples, ranks.share(mechanism.sample(step)), step)
        sums, counts = self._sum.sums, self._sum.counts
        told = torch.tensor(
            [counts.examples, counts.clipped, counts.nonfinite, loss], dtype=torch.float64
        ).to(ranks.device)
        ranks.all_reduce([*sums.values(), told])
        gradients, noise_draws = self._release(sums, step)
        drawn, clipped, nonfinite, loss = told.tolist()
        return Outcome(
            gradients=gradients,
            state=self._state,
            noise_draws=noise_draws,
            examples=int(drawn),
            clipped=int(clipped),
            nonfinite=int(nonfinite),
            loss=loss,
        )

    @torch.no_grad()
    def _prepare(self, state: State, step: int) -> None:
        gen = generator(self._mechanism.seed, "method", step, self._ranks.device)
        self._state = self._method.prepare(self._model, state, None, gen)
        like = next(self._model.parameters())
        blocks = self._method.blocks(self._state)
        zeros = {key: like.new_zeros(shape) for key, shape in blocks.items()}
        mechanism = self._mechanism
        self._sum = ClippedSum(zeros, mechanism.releases, is_clipping=mechanism.clip)

    def _take(self, layer: str, tap: Tap) -> None:
        self._sum.take(self._method.carry(self._state, layer, tap))

    def _micro_batches(self, examples: Any, indices: Tensor, step: int) -> float:
        # Dropout's seed comes from the step, so that a resumed run draws what an unbroken one did.
        axis = f"forward/{self._ranks.rank}"
        torch.manual_seed(generator(self._mechanism.seed, axis, step).initial_seed())
        total = 0.0
        for some in indices.split(self._micro_batch) if len(indices) else ():
            batch = examples.batch(some).to(self._ranks.device)
            self._tape.expect(len(batch))
            logits = self._forward(batch.inputs)
            loss = F.cross_entropy(logits, batch.targets, reduction="sum")
            loss.backward()
            self._tape.check_complete()
            self._sum.close_micro_batch(len(batch))
            total += float(loss.detach())
        return total

    def _forward(self, inputs: Tensor) -> Tensor:
        weights = self._method.forward_weights(self._state)
        if weights:
            return functional_call(self._model, dict(weights), (inputs,))
        return self._model(inputs)

    @torch.no_grad()
    def _release(self, sums: dict[Key, Tensor], step: int) -> tuple[dict[str, Tensor], int]:
        mechanism, noise_draws = self._mechanism, 0
        if mechanism.noise:
            gen = mechanism.noise_generator(step, self._ranks.device)
            sums = add_noise(sums, mechanism.releases, mechanism.noise_multiplier, gen)
            noise_draws += 1
        means = {key: total / mechanism.batch_size for key, total in sums.items()}
        gradients, self._state = self._method.reconstruct(self._state, means)
        return gradients, noise_draws
