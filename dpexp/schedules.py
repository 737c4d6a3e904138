"""Learning-rate schedules: a step and how many there are in, a multiplier of the first rate out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpexp.types import ConfigError


@dataclass(frozen=True)
class Milestones:
    """Multiply by a factor at each given fraction of training (Zagoruyko & Komodakis 2016).

    Attributes:
        fractions: increasing, in (0, 1).
        factor: applied once for every fraction passed.
    """

    fractions: Sequence[float]
    factor: float

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: for fractions that do not rise in (0, 1), or a factor that is not positive.
        """
        marks = [0.0, *self.fractions, 1.0]
        are_numbers = all(isinstance(mark, int | float) for mark in (*marks, self.factor))
        if not are_numbers or sorted(set(marks)) != marks or not self.factor > 0:
            raise ConfigError(
                "Expected schedule.fractions to rise in (0, 1) and schedule.factor > 0; got "
                f"{self.fractions} and {self.factor}."
            )

    def __call__(self, step: int, num_steps: int) -> float:
        """Give the multiplier at a step, from 0."""
        progress = step / num_steps
        return self.factor ** sum(progress >= fraction for fraction in self.fractions)


@dataclass(frozen=True)
class LinearDecay:
    """Fall from 1 to 0 in equal parts: BERT's (Devlin et al. 2018), but with no warm-up."""

    def __call__(self, step: int, num_steps: int) -> float:
        """Give the multiplier at a step, from 0."""
        return 1 - step / num_steps


@dataclass(frozen=True)
class InverseRoot:
    """Divide by the square root of the step's number, from 1 (compressive, Theorem 1)."""

    def __call__(self, step: int, num_steps: int) -> float:
        """Give the multiplier at a step, from 0."""
        return 1 / math.sqrt(step + 1)
