"""Judges a paper's sentences by the measured cells and the spread of their seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpexp.artifacts.collect import Value
from dpexp.artifacts.spec import Artifact, Claim, Key

HOLDS, FAILS, UNCLEAR, NOT_RUN = "holds", "does not hold", "unclear", "not run"


@dataclass(frozen=True)
class Comparison:
    """One pair of cells.

    Attributes:
        above, below: the two cells.
        difference: above minus below; None if either isn't there.
        error: standard error of the difference; None if a side has a single seed.
        verdict: one of the four above.
    """

    above: Key
    below: Key
    difference: float | None
    error: float | None
    verdict: str


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it."""

    claim: Claim
    verdict: str
    comparisons: tuple[Comparison, ...]

    def sentence(self, decimals: int = 1) -> str:
        """Word it: the verdict, how many comparisons say so, and the smallest difference."""
        done = [c for c in self.comparisons if c.difference is not None]
        if not done:
            return NOT_RUN
        count = sum(c.verdict == HOLDS for c in done)
        least = min(done, key=lambda c: c.difference or 0.0)
        so_far = " so far" if len(done) < len(self.comparisons) else ""
        parts = [f"it holds in {count} of {len(self.comparisons)} comparisons"]
        if len(done) < len(self.comparisons):
            parts.append(f"{len(self.comparisons) - len(done)} not run")
        parts.append(f"smallest difference {least.difference:+.{decimals}f} {_spread(least)}")
        return f"**{self.verdict}{so_far}**: " + ", ".join(parts)


def _spread(comparison: Comparison) -> str:
    if comparison.error is None:
        return "(spread unknown: a single seed)"
    return f"(standard error {comparison.error:.2f})"


def judge(artifact: Artifact, values: Mapping[Key, Value]) -> list[Verdict]:
    """Evaluate every claim of an artifact."""
    return [_judge(claim, artifact, values) for claim in artifact.claims]


def _judge(claim: Claim, artifact: Artifact, values: Mapping[Key, Value]) -> Verdict:
    columns = claim.columns or tuple(column.key for column in artifact.columns)
    comparisons = tuple(
        compare(values[above, column], values[below, column], claim.margin)
        for above, below in zip(claim.above, claim.below, strict=True)
        for column in columns
    )
    verdicts = {comparison.verdict for comparison in comparisons}
    worst_first = (FAILS, UNCLEAR, HOLDS, NOT_RUN)
    return Verdict(claim, next(v for v in worst_first if v in verdicts), comparisons)


def compare(above: Value, below: Value, margin: float) -> Comparison:
    """Compare two cells: clear beyond two standard errors, unclear within them.

    With a single seed on either side there is no spread to go by, and the sign decides.
    """
    if above.mean is None or below.mean is None:
        return Comparison(above.cell, below.cell, None, None, NOT_RUN)
    difference = above.mean - below.mean
    error = None
    if above.std is not None and below.std is not None:
        error = math.hypot(
            above.std / math.sqrt(above.num_seeds), below.std / math.sqrt(below.num_seeds)
        )
    verdict = HOLDS if difference > margin else FAILS
    if error is not None and abs(difference - margin) <= 2 * error:
        verdict = UNCLEAR
    return Comparison(above.cell, below.cell, difference, error, verdict)
