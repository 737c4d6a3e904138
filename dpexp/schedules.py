"""Learning-rate schedules: how far along training is in, a multiplier of the initial rate out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Milestones:
    """Multiply by a factor at each given fraction of training (Zagoruyko & Komodakis 2016).

    Attributes:
        fractions: increasing, in (0, 1).
        factor: applied once for every fraction passed.
    """

    fractions: Sequence[float]
    factor: float

    def __call__(self, progress: float) -> float:
        """Give the multiplier at progress in [0, 1)."""
        return self.factor ** sum(progress >= fraction for fraction in self.fractions)
