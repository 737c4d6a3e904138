"""Learning-rate schedules: maps from a step and the number of steps to a multiplier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpexp.types import ConfigError, one_line

LARGEST = 2.0**100
"""Largest learning rate, and the inverse of the least allowed peak rate. In float32, whose normal
numbers are 2^-126 to 2^128, no step along gradients of usual size then overflows, and some step
does not vanish."""


LOOKED_AT = 10**5
"""Largest number of steps whose rates are checked before the first (ours): a tenth of a second."""


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


class Asked:
    """What a rule gives at each step, which has to be the same whenever it is asked.

    A rule sees the step and the number of steps. One that gives another number later follows
    something else, such as the training loss, which no noise covers, or a count of its calls, which
    an interrupted run would begin anew.
    """

    def __init__(self, name: str, rule: Callable[[int, int], float], num_steps: int) -> None:
        """Take a rule.

        Args:
            name: of the setting, for messages.
            rule: maps a step, from 0, and the number of steps to a number.
            num_steps: of the run.
        """
        self._name, self._rule, self._num_steps = name, rule, num_steps
        self._given: dict[int, float] = {}
        self._is_asked = False

    def __call__(self, step: int) -> float:
        """Return the number at a step.

        Raises:
            ConfigError: it is another than before.
        """
        number = float(self._rule(step, self._num_steps))
        if not self._is_asked:  # a long run would add a million more
            self._given[step] = number
        before = self._given.get(step, number)
        if number != before and not (math.isnan(number) and math.isnan(before)):
            kind = getattr(self._rule, "__name__", type(self._rule).__name__)
            raise ConfigError(
                f"Expected {self._name} to follow from the step and the number of steps alone; "
                f"{kind} gives {before:.6g} at step {step}, and {number:.6g} when it is asked "
                "again. What it reads besides, such as a loss, has no noise; a count of its own is "
                "lost in an interrupted run. Leave that out."
            )
        return number

    def again(self) -> None:
        """Ask again for each step that was asked for; later calls are compared with these steps.

        Raises:
            ConfigError: a number is another than before.
        """
        self._is_asked = True
        for step in self._given:
            self(step)


def require_rates(
    rates: Sequence[float], schedule: Callable[[int, int], float], num_steps: int
) -> Callable[[int], float]:
    """Check that a schedule gives a valid learning rate at every step, and is not zero throughout.

    In runs of more than `LOOKED_AT` steps, evenly spread ones are checked. What gives another
    multiplier when it is asked again may follow the examples, as by their loss, without noise.

    Args:
        rates: the optimizer's initial rates, one per group.
        schedule: maps a step, from 0, and the number of steps to a multiplier.
        num_steps: >= 0.

    Returns:
        The multiplier of a step of the run, which raises ConfigError if it is another than before.

    Raises:
        ConfigError: naming the first invalid step.
    """
    largest = 0.0
    asked = Asked("schedule", schedule, num_steps)
    for step in range(0, num_steps, max(1, num_steps // LOOKED_AT)):
        try:
            multiplier = asked(step)
            told = [float(rate) * multiplier for rate in rates]
        except Exception as error:  # any schedule may fail in its own way
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
    asked.again()
    return asked
