"""Compare a certificate's epsilons with a recomputed one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dpexp.records.rounded import at_most

TOLERANCE = 0.01
"""Fraction by which a stated epsilon may be below ours. PRV's and RDP's are upper bounds, which may
be above: PRV's error is a share of RDP's epsilon, which is loose where epsilon is small."""

UNDER_TARGET = 2e-3
"""Fraction by which a calibrated epsilon may be below its target; calibration guarantees half."""

OF_A_VERSION = 1e-3
"""Fraction by which an accountant's epsilon may differ between versions of it."""

ROUNDING = 1e-6
"""Relative tolerance for numbers that both sides compute by the same formula."""

ACCOUNTANTS = ("prv", "rdp", "pure", "pld")
"""Accountants whose epsilon a certificate may state."""


def _six(epsilon: float) -> str:
    """Return an epsilon with six digits, rounded up."""
    return at_most(epsilon, digits=6)


def differences(
    stated: Mapping[str, Any], by: str, target: float, ours: float, due: float | None
) -> Iterator[str]:
    """Yield the differences, one sentence each.

    Args:
        stated: the certificate's epsilon by accountant.
        by: the accountant that the noise was calibrated with.
        target: the epsilon that it was calibrated to.
        ours: the recomputed epsilon.
        due: what that accountant gives for the stated noise; None where it fails.
    """
    if not ours <= target * (1 + ROUNDING):
        yield f"epsilon: recomputed {_six(ours)}, above the target {target:g}"
    least = target * (1 - UNDER_TARGET)
    if not least <= stated[by] <= target:
        yield (
            f"epsilon: {by} states {_six(stated[by])}; calibration would give {least:.6g} to "
            f"{target:g}"
        )
    if due is not None and not math.isclose(stated[by], due, rel_tol=OF_A_VERSION):
        yield f"epsilon: {by} states {_six(stated[by])}; the stated noise gives {_six(due)} by it"
    for accountant, value in stated.items():
        if isinstance(value, bool) or accountant not in ACCOUNTANTS:
            yield f"epsilon: {accountant} states {value}, which nothing here computes"
            continue
        # Upper bounds are looser by design; the others should agree with ours.
        is_bound = accountant in ("rdp", "prv")
        least = ours * (1 - (TOLERANCE if is_bound else ROUNDING))
        if not least <= value <= (math.inf if is_bound else ours * (1 + ROUNDING)):
            yield f"epsilon: {accountant} states {_six(value)}; recomputed {_six(ours)}"
