"""What a planted break is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

# The papers' setting on CIFAR10 (rgp, Section 5.1).
Q, STEPS = 1000 / 50_000, 10_000


@dataclass(frozen=True)
class Break:
    """One way to break the mechanism.

    Attributes:
        apply: changes dpexp, given pytest's MonkeyPatch.
        test: the one that must fail.
        says: what its failing assertion shows, as a regular expression.
        excess: how many times larger, beside the noise, a step's sensitivity can be than what is
            accounted for; infinite where something leaves without noise; None where what leaves is
            no Gaussian mechanism that an accountant knows.
        noise: "gaussian", or "laplace" for pure epsilon.
        q: sampling probability of a draw.
        accounted: draws that are accounted for.
        drawn: draws that there are.
    """

    apply: Callable[[pytest.MonkeyPatch], None]
    test: str
    says: str
    excess: float | None
    noise: str = "gaussian"
    q: float = Q
    accounted: int = STEPS
    drawn: int = STEPS
