"""The result of one private step."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dpexp.privacy.correlation import Past
from dpexp.types import State


@dataclass(frozen=True)
class StepOutcome:
    """The result of one step.

    The guarantee covers `gradients` and `state` alone. The counts and the loss are computed on
    private training data; not covered by the guarantee.

    Attributes:
        gradients: one per trainable parameter, divided by the expected batch size.
        state: the method's, for the next step.
        noise_draws: how often noise was drawn.
        examples: number of examples in the batch, over all ranks.
        clipped: number of them with a norm above the clip norm.
        nonfinite: number of them with a NaN or infinite norm; they contributed zero.
        loss: summed over the examples.
        is_asked_to_stop: whether any rank was asked to stop the run.
        has_halved: whether memory ran out on any rank, which halved its micro-batch.
        micro_batch: examples at once from now on, on every rank.
        past_noise: that later steps need if noise is correlated, on the first rank.
    """

    gradients: dict[str, Tensor]
    state: State
    noise_draws: int
    examples: int
    clipped: int
    nonfinite: int
    loss: float
    is_asked_to_stop: bool
    has_halved: bool
    micro_batch: int
    past_noise: Past = field(default_factory=list)
