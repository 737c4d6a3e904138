"""The epsilons that a certificate states, held to a recomputed one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

TOLERANCE = 0.01
"""Share by which a stated PRV epsilon may differ from ours: PRV states its upper bound, which on 12
settings (epsilon 0.05 to 100, 1 to 14,652 steps) was 0.2 to 0.4 % above."""

UNDER_TARGET = 2e-3
"""Share by which a calibrated epsilon may lie below its target; calibration promises half of it."""

ROUNDING = 1e-6
"""Of what both sides compute by one formula, in floating point."""

ACCOUNTANTS = ("prv", "rdp", "pure", "pld")
"""Whose epsilon a certificate may state."""


def differences(stated: Mapping[str, Any], by: str, target: float, ours: float) -> Iterator[str]:
    """Say what does not agree, one sentence each.

    Args:
        stated: accountant to epsilon, as the certificate has them.
        by: whose epsilon the noise was calibrated to.
        target: what it was to be.
        ours: recomputed.
    """
    if not ours <= target * (1 + ROUNDING):
        yield f"epsilon: recomputed {ours:.6g}, above the target {target:g}"
    least = target * (1 - UNDER_TARGET)
    if not least <= stated[by] <= target:
        yield (
            f"epsilon: {by} states {stated[by]:.6g}; calibration would give {least:.6g} to "
            f"{target:g}"
        )
    for accountant, value in stated.items():
        if isinstance(value, bool) or accountant not in ACCOUNTANTS:
            yield f"epsilon: {accountant} states {value}, which nothing here computes"
            continue
        # RDP is looser by design; the others compute what we do.
        share = {"rdp": math.inf, "prv": TOLERANCE}.get(accountant, ROUNDING)
        if not ours * (1 - min(share, TOLERANCE)) <= value <= ours * (1 + share):
            yield f"epsilon: {accountant} states {value:.6g}; recomputed {ours:.6g}"
