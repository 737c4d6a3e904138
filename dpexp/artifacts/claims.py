"""Judges a paper's sentences by the measured cells and the spread of their seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from dpexp import records
from dpexp.artifacts.collect import Value
from dpexp.artifacts.readings import mean_and_std, numbers, reduced
from dpexp.artifacts.words import Artifact, Claim, Key

HOLDS, FAILS, UNCLEAR, NOT_RUN = "holds", "does not hold", "unclear", "not run"
SO_FAR = " so far"
"""After the verdict on a claim of which some comparisons are not run."""


@dataclass(frozen=True)
class Comparison:
    """One pair of cells, or a cell and a number.

    Attributes:
        above, below: the two sides, by the cell's keys or as the number.
        difference: above minus below; None if either isn't there.
        error: standard error of the difference; None if a side has a single seed.
        verdict: one of the four above.
    """

    above: Key | float
    below: Key | float
    difference: float | None
    error: float | None
    verdict: str


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it.

    Attributes:
        claim: as the YAML says it.
        verdict: the worst of the comparisons'.
        comparisons: one a pair.
        decimals: how many the differences are printed with: the most of the cells compared.
    """

    claim: Claim
    verdict: str
    comparisons: tuple[Comparison, ...]
    decimals: int = 1

    @property
    def word(self) -> str:
        """Give the verdict, "so far" where some comparisons are not run."""
        done = sum(c.verdict != NOT_RUN for c in self.comparisons)
        return f"{self.verdict}{SO_FAR}" if 0 < done < len(self.comparisons) else self.verdict

    def sentence(self) -> str:
        """Word it: the verdict, how many comparisons say so, and the smallest difference."""
        done = [c for c in self.comparisons if c.difference is not None]
        if not done:
            return NOT_RUN
        count = sum(c.verdict == HOLDS for c in done)
        least = min(done, key=lambda c: c.difference or 0.0)
        parts = [f"it holds in {count} of {len(self.comparisons)} comparisons"]
        if len(done) < len(self.comparisons):
            parts.append(f"{len(self.comparisons) - len(done)} not run")
        spread = _spread(least, self.decimals)
        parts.append(f"smallest difference {least.difference:+.{self.decimals}f} {spread}")
        if self.claim.margin:
            parts.append(f"which has to exceed {self.claim.margin:g}")
        return f"**{self.word}**: " + ", ".join(parts)


def _spread(comparison: Comparison, decimals: int) -> str:
    if comparison.error is None:
        return "(spread unknown: a single seed)"
    return f"(standard error {comparison.error:.{decimals + 1}f})"


def judge(artifact: Artifact, values: Mapping[Key, Value]) -> list[Verdict]:
    """Evaluate every claim of an artifact."""
    return [_judge(claim, artifact, values) for claim in artifact.claims]


def _judge(claim: Claim, artifact: Artifact, values: Mapping[Key, Value]) -> Verdict:
    pairs = claim.pairs(column.key for column in artifact.measured_columns)
    comparisons = tuple(
        compare(_side(claim, above, values), _side(claim, below, values), claim.margin)
        for above, below in pairs
    )
    verdicts = {comparison.verdict for comparison in comparisons}
    worst_first = (FAILS, UNCLEAR, HOLDS, NOT_RUN)
    worst = next(v for v in worst_first if v in verdicts)
    return Verdict(claim, worst, comparisons, _decimals(artifact, pairs))


def _decimals(artifact: Artifact, pairs: Sequence[tuple[Key | float, Key | float]]) -> int:
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in artifact.measured_columns}
    cells = (side for pair in pairs for side in pair if isinstance(side, tuple))
    return max(
        artifact.decimals_of(rows[row], columns[column]) if column in columns else artifact.decimals
        for row, column in cells
    )


def _side(claim: Claim, given: Key | float, values: Mapping[Key, Value]) -> Value | float:
    """Give what a claim compares of a cell: every seed's number, then their mean and spread."""
    if isinstance(given, float):
        return given
    value = values[given]
    if not value.readings:
        return value
    try:
        if claim.metric:
            of_seeds = [numbers(result, [claim.metric])[0] for result in value.results]
        else:
            of_seeds = [reduced(reading, claim.reduce) for reading in value.readings]
    except records.NoSeries:
        of_seeds = []
    mean, std = mean_and_std(of_seeds)
    return replace(value, mean=mean, std=std, num_seeds=len(of_seeds))


def compare(above: Value | float, below: Value | float, margin: float) -> Comparison:
    """Compare two cells, or a cell and a number: clear outside Welch's 95 % interval, else unclear.

    With a single seed on either side there is no spread to go by, and the sign decides. A number
    has no spread.
    """
    sides = [_place(side) for side in (above, below)]
    means = [side if isinstance(side, float) else side.mean for side in (above, below)]
    if None in means or not all(map(math.isfinite, means)):
        return Comparison(*sides, None, None, NOT_RUN)
    difference = means[0] - means[1]
    errors = [_error(side) for side in (above, below)]
    error = None if None in errors else math.hypot(*errors)
    verdict = HOLDS if difference > margin else FAILS
    if error and abs(difference - margin) <= _quantile(above, below) * error:
        verdict = UNCLEAR
    return Comparison(*sides, difference, error, verdict)


def _place(side: Value | float) -> Key | float:
    return side if isinstance(side, float) else side.cell


def _quantile(above: Value | float, below: Value | float) -> float:
    """Give the 97.5 % quantile of Student's t at Welch and Satterthwaite's degrees of freedom."""
    variances = [(_error(side) ** 2, side.num_seeds - 1) for side in (above, below)
                 if not isinstance(side, float)]  # fmt: skip
    total = sum(variance for variance, _ in variances)
    return float(stdtrit(total**2 / sum(v**2 / freedom for v, freedom in variances), 0.975))


def _error(side: Value | float) -> float | None:
    """Give the standard error of a side's mean; None if nothing is known of it."""
    if isinstance(side, float):
        return 0.0
    return None if side.std is None else side.std / math.sqrt(side.num_seeds)
