"""Learning-rate schedules: a step and how many there are in, a multiplier of the first rate out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpexp.types import ConfigError, one_line

LARGEST = 2.0**100
"""Of a learning rate, and one over the least that the largest of a run may be: in float32, whose
numbers end at 2^-126 and 2^128, some step along gradients of usual sizes then does not vanish, and
none overflows."""


LOOKED_AT = 10**5
"""Steps whose rates are looked at before the first (ours): a tenth of a second."""


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
        """Return the multiplier at a step, from 0."""
        progress = step / num_steps
        return self.factor ** sum(progress >= fraction for fraction in self.fractions)


@dataclass(frozen=True)
class LinearDecay:
    """Fall from 1 to 0 in equal parts: BERT's (Devlin et al. 2018), but with no warm-up."""

    def __call__(self, step: int, num_steps: int) -> float:
        """Return the multiplier at a step, from 0."""
        return 1 - step / num_steps


@dataclass(frozen=True)
class InverseRoot:
    """Divide by the square root of the step's number, from 1 (compressive, Theorem 1)."""

    def __call__(self, step: int, num_steps: int) -> float:
        """Return the multiplier at a step, from 0."""
        return 1 / math.sqrt(step + 1)


def require_rates(
    rates: Sequence[float], schedule: Callable[[int, int], float], num_steps: int
) -> None:
    """Refuse a schedule that gives no learning rate at some step, or none at any.

    Of runs of more than `LOOKED_AT` steps some are passed over, evenly.

    Args:
        rates: the optimizer's first ones, one a group.
        schedule: maps a step, from 0, and how many there are to a multiplier.
        num_steps: how many, >= 0.

    Raises:
        ConfigError: naming the first such step.
    """
    largest = 0.0
    for step in range(0, num_steps, max(1, num_steps // LOOKED_AT)):
        try:
            told = [float(rate) * float(schedule(step, num_steps)) for rate in rates]
        except Exception as error:  # as many ways as there are schedules
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ConfigError(
                f"Expected schedule to give a number at every step; at step {step} of {num_steps} "
                f"it fails ({reason}). Set schedule."
            ) from error
        wrong = [rate for rate in told if not 0 <= rate <= LARGEST]
        if wrong:
            raise ConfigError(
                f"Expected learning rates between 0 and {LARGEST:.2g}; at step {step} of "
                f"{num_steps} optimizer.lr and schedule give {wrong[0]:.3g}. Set one of them."
            )
        largest = max(largest, *told)
    if num_steps and largest < 1 / LARGEST:
        raise ConfigError(
            f"Expected a learning rate above {1 / LARGEST:.2g} at some step; optimizer.lr and "
            f"schedule give {largest:.3g} at most. Set one of them."
        )
