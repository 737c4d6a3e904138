"""Averages of the weights over steps: post-processing of what was released."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from dpexp.models.copies import copied
from dpexp.training.schedules import Asked
from dpexp.types import ConfigError

ASKED = 1000
"""About how many steps' shares are asked for before the first (ours), evenly spread."""


class Averaging(Protocol):
    """How much of the average so far stays at a step."""

    def keeps(self, step: int, num_steps: int) -> float:
        """Return the old average's weight, in [0, 1]; the new weights get the rest.

        Args:
            step: just taken, from 0.
            num_steps: of the whole run.
        """


@dataclass(frozen=True)
class EMA:
    """The exponential moving average (De et al. 2022, arXiv 2204.13650, Section 3.4).

    Attributes:
        decay: weight of the old average, in [0, 1).
        warm_up: whether it is at most (1 + t) / (10 + t) at step t.
    """

    decay: float
    warm_up: bool

    def __post_init__(self) -> None:
        """Check the decay.

        Raises:
            ConfigError: if it is out of range.
        """
        if not 0 <= self.decay < 1:
            raise ConfigError(
                f"Expected averaging.decay in [0, 1); got {self.decay}. Set averaging.decay."
            )

    def keeps(self, step: int, num_steps: int) -> float:
        """Return the old average's weight."""
        return min(self.decay, (1 + step) / (10 + step)) if self.warm_up else self.decay


@dataclass(frozen=True)
class Last:
    """The mean of the iterates of a run's last steps (Polyak and Juditsky 1992).

    Attributes:
        share: of all steps, in (0, 1].
    """

    share: float

    def __post_init__(self) -> None:
        """Check the share.

        Raises:
            ConfigError: if it is out of range.
        """
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"Expected averaging.share in (0, 1]; got {self.share}. Set averaging.share."
            )

    def keeps(self, step: int, num_steps: int) -> float:
        """Return the old average's weight: none before the mean begins."""
        first = num_steps - max(1, round(self.share * num_steps))
        return max(0, step - first) / (max(0, step - first) + 1)


class Averaged:
    """A copy of a model whose parameters are averages.

    Under DP-LoRA these are adapters: the model that is kept merges the average of each factor, and
    so has adapters of that rank. The mean of merged matrices would have none.

    Iterates that were lost, since a killed process had released their steps, have no part in it:
    the weights of the others are as they would be, up to a common factor.

    Attributes:
        model: the copy; buffers are the model's latest.
        mass: what the others' weights add up to, in [0, 1]; 1 as long as none was lost.
    """

    def __init__(self, model: nn.Module, averaging: Averaging, num_steps: int) -> None:
        """Start the average at the model's weights.

        Args:
            model: before the first step, without hooks.
            averaging: how to average.
            num_steps: of the whole run.

        Raises:
            ConfigError: a share is not in [0, 1], or another one when it is asked for again.
        """
        self.model = copied(model)
        self.mass = 1.0
        self._kind = type(averaging).__name__
        self._keeps = Asked("averaging", averaging.keeps, num_steps)
        for step in range(0, num_steps, max(1, num_steps // ASKED)):
            self._kept(step)
        self._keeps.again()

    def lose(self, steps: Iterable[int]) -> None:
        """Leave out the iterates of steps that are not in the weights, in their order."""
        for step in steps:
            self.mass *= self._kept(step)

    @torch.no_grad()
    def add(self, model: nn.Module, step: int) -> None:
        """Take in a step's weights.

        Args:
            model: after the step.
            step: just taken, from 0.

        Raises:
            ConfigError: the average so far is to stay by no share of it.
        """
        keeps = self._kept(step)
        weight = 1.0 - keeps
        if self.mass < 1:
            self.mass = keeps * self.mass + weight
            weight = weight / self.mass if self.mass else 0.0
        for average, parameter in zip(self.model.parameters(), model.parameters(), strict=True):
            if average.is_floating_point():
                average.lerp_(parameter, weight)
            else:  # whole numbers, which stay what they are
                average.copy_(parameter)
        for kept, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            kept.copy_(buffer)

    def tensors(self) -> list[Any]:
        """Return the averages and buffers."""
        return [*self.model.parameters(), *self.model.buffers()]

    def _kept(self, step: int) -> float:
        keeps = self._keeps(step)
        if not 0 <= keeps <= 1:  # of a rule of someone's own; the average would run away
            raise ConfigError(
                f"Expected the old average's weight in [0, 1]; `keeps` of "
                f"{self._kind} gives {keeps} at step {step}. Correct it."
            )
        return keeps
