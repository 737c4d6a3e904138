"""Judge a paper's claims by the measured cells and the errors of their differences.

A comparison holds if the lower bound of above minus below exceeds the claim's margin. It is refuted
if the upper bound is below the margin, and unclear otherwise. Each bound is one-sided at 2.5 %. A
claim holds only if every comparison does, which needs no correction. It does not hold if any
comparison is refuted. With many comparisons one is more likely to be refuted by chance, so the
upper bounds are at 2.5 % divided by their number (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpexp.records.rounded import at_least, at_most
from dpexp.reporting.collect.values import SKIPPED, Value
from dpexp.reporting.judge import errors, sides
from dpexp.reporting.judge.errors import LEVEL, Estimate, Side
from dpexp.reporting.judge.sides import Diverged
from dpexp.reporting.schema.artifact import Artifact, Claim, Key

HOLDS, FAILS, UNCLEAR, NOT_RUN = "holds", "does not hold", "unclear", "not run"
SO_FAR = " so far"
"""Appended to the verdict if some comparisons are not run and could be."""
EXPLAINED = (
    "In brackets: the 95 % interval of the difference, by seeds and test examples, its upper end "
    "corrected for the number of comparisons. A comparison holds where the interval lies above "
    "what is to be exceeded, 0 unless it is said. It does not where the interval lies below, and "
    "is unclear elsewhere. Paired: both sides on the same examples. A single seed's verdict is of "
    "its model, and says nothing of other seeds; beside several it is taken to stray as they do."
)
"""Explains the sentences to the reader."""


@dataclass(frozen=True)
class Comparison:
    """One pair of cells, or a cell and a number.

    Attributes:
        above, below: the two sides, each a cell's keys or a number.
        estimate: above minus below with its error; None if either side is missing.
        low, high: the bounds of the difference; infinite if its error is unknown.
        verdict: one of the four above.
        diverged: how many of each cell's seeds have a number that is not finite, of those that have
            such seeds. Then there is no estimate, and the verdict is unclear.
        is_skipped: whether the profile has no run for one of the sides.
    """

    above: Key | float
    below: Key | float
    estimate: Estimate | None
    low: float
    high: float
    verdict: str
    is_skipped: bool = False
    diverged: tuple[Diverged, ...] = ()

    @property
    def difference(self) -> float | None:
        """Above minus below; None if either side is missing."""
        return None if self.estimate is None else self.estimate.difference

    @property
    def error(self) -> float | None:
        """The standard error of the difference; None if it is unknown."""
        return None if self.estimate is None else self.estimate.error

    def words(self, decimals: int) -> str:
        """Return the estimate, its interval, and its numbers of seeds and examples."""
        if self.diverged:
            return f"{_diverged([self])} seeds diverged"
        if self.estimate is None:
            return NOT_RUN
        text = f"{self.estimate.difference:+.{decimals}f}"
        if self.estimate.error is not None:
            text += f" ({_signed(at_least(self.low, decimals))} to "
            text += f"{_signed(at_most(self.high, decimals))})"
        return f"{text}, {_basis(self.estimate)}"


def _signed(number: str) -> str:
    return number if number.startswith("-") else f"+{number}"


def _basis(estimate: Estimate) -> str:
    seeds = [str(n) for n in estimate.num_seeds if n]
    parts = [f"{' and '.join(seeds)} seed{'' if seeds == ['1'] else 's'}"]
    counts = [f"{n:,}" for n in estimate.num_examples if n]
    if estimate.kind == errors.PAIRED:
        parts.insert(0, f"paired on {counts[0]} examples")
    elif counts:
        unpaired = "unpaired " if estimate.kind == errors.UNPAIRED else ""
        parts.insert(0, f"{unpaired}on {' and '.join(counts)} examples")
    elif estimate.error is not None:
        parts[0] = f"by {parts[0]} alone"
    if estimate.error is None:
        why = "a single seed" if estimate.lacks_seeds else "the seeds are equal"
        parts.append(f"no error is known: {why}")
    elif estimate.lacks_seeds:
        parts.append("the spread of seeds is unknown")
    return ", ".join(parts)


@dataclass(frozen=True)
class Verdict:
    """A claim and its verdict.

    Attributes:
        claim: as in the YAML.
        verdict: the worst of the comparisons' verdicts.
        comparisons: one for each pair; two for a pair that should be alike.
        decimals: of the printed differences, the most of any compared cell.
    """

    claim: Claim
    verdict: str
    comparisons: tuple[Comparison, ...]
    decimals: int = 1

    @property
    def word(self) -> str:
        """The verdict, with "so far" if some comparisons are not run and could be."""
        meant = [c for c in self.comparisons if not c.is_skipped]
        if not meant:
            return SKIPPED
        done = sum(c.verdict != NOT_RUN for c in meant)
        return f"{self.verdict}{SO_FAR}" if 0 < done < len(meant) else self.verdict

    def sentence(self) -> str:
        """Return the verdict, how many comparisons that the profile has hold, and the decisive one.

        The decisive one is the comparison with the smallest difference among those with the worst
        verdict.
        """
        done = [c for c in self.comparisons if c.estimate is not None or c.diverged]
        if not done:
            return self.word
        meant = [c for c in self.comparisons if not c.is_skipped]
        count = sum(c.verdict == HOLDS for c in done)
        parts = [f"it holds in {count} of {len(meant)} comparison{'s' * (len(meant) != 1)}"]
        if diverged := [c for c in done if c.diverged]:
            parts.append(f"{len(diverged)} where {_diverged(diverged)} seeds diverged")
        if len(done) < len(meant):
            parts.append(f"{len(meant) - len(done)} {NOT_RUN}")
        if len(meant) < len(self.comparisons):
            parts.append(f"{len(self.comparisons) - len(meant)} more {SKIPPED}")
        text = f"**{self.word}**: {', '.join(parts)}"
        estimated = [c for c in done if c.verdict == self.verdict and c.estimate is not None]
        if not estimated:
            return text
        least = min(estimated, key=lambda c: math.inf if c.difference is None else c.difference)
        words = least.words(self.decimals)
        if self.claim.exceeds:
            head, comma, basis = words.partition(", ")
            words = f"{head}, which has to exceed {self.claim.exceeds:g}{comma}{basis}"
        return f"{text}; smallest difference {words}"


def _diverged(comparisons: Sequence[Comparison]) -> str:
    """Return how many seeds diverged on the sides of comparisons, each count once."""
    counts = (" and ".join(f"{d.count} of {d.num_seeds}" for d in c.diverged) for c in comparisons)
    return " or ".join(dict.fromkeys(counts))


def judge(artifact: Artifact, values: Mapping[Key, Value]) -> list[Verdict]:
    """Return the verdict on every claim of an artifact."""
    return [_judge(claim, artifact, values) for claim in artifact.claims]


def _judge(claim: Claim, artifact: Artifact, values: Mapping[Key, Value]) -> Verdict:
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in artifact.measured_columns}
    pairs = claim.pairs(columns)
    read: dict[Key, Side | Diverged | None] = {}

    def side(cell: Key | float) -> Side | Diverged | None:
        if isinstance(cell, float):
            return errors.number(cell)
        if cell not in read:
            row, column = cell
            metric = artifact.metric_of(rows[row], columns[column]) if column in columns else ()
            read[cell] = sides.side(claim, values[cell], metric)
        return read[cell]

    def is_skipped(pair: tuple[Key | float, Key | float]) -> bool:
        return any(not isinstance(c, float) and values[c].status == SKIPPED for c in pair)

    both = [(side(above), side(below)) for above, below in pairs]
    # Those that are still to be run count as well, so that a cell that is added costs nothing.
    number = sum(not is_skipped(pair) for pair in pairs)
    comparisons = tuple(
        replace(_compared(pair, of_pair, claim.exceeds, number), is_skipped=is_skipped(pair))
        for pair, of_pair in zip(pairs, both, strict=True)
    )
    verdicts = {comparison.verdict for comparison in comparisons}
    worst_first = (FAILS, UNCLEAR, HOLDS, NOT_RUN)
    worst = next(v for v in worst_first if v in verdicts)
    return Verdict(claim, worst, comparisons, _decimals(artifact, pairs))


def _compared(
    pair: tuple[Key | float, Key | float],
    of_pair: tuple[Side | Diverged | None, Side | Diverged | None],
    margin: float,
    number: int,
) -> Comparison:
    """Judge the difference of two sides; it is unclear if seeds of theirs diverged."""
    above, below = of_pair
    if above is None or below is None:
        return compare(*pair, None, margin, number)
    if isinstance(above, Side) and isinstance(below, Side):
        return compare(*pair, errors.estimate(above, below), margin, number)
    diverged = tuple(one for one in of_pair if isinstance(one, Diverged))
    return replace(compare(*pair, None, margin, number), verdict=UNCLEAR, diverged=diverged)


def _decimals(artifact: Artifact, pairs: Sequence[tuple[Key | float, Key | float]]) -> int:
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in artifact.measured_columns}
    cells = (side for pair in pairs for side in pair if isinstance(side, tuple))
    return max(
        artifact.decimals_of(rows[row], columns[column]) if column in columns else artifact.decimals
        for row, column in cells
    )


def compare(
    above: Key | float,
    below: Key | float,
    estimate: Estimate | None,
    margin: float,
    number: int = 1,
) -> Comparison:
    """Judge one difference.

    Args:
        above: the side that should exceed the other, a cell's keys or a number.
        below: the other side.
        estimate: above minus below; None if either side is missing.
        margin: that the difference must exceed.
        number: of comparisons that could refute the claim, >= 1.
    """
    if estimate is None:
        return Comparison(above, below, None, -math.inf, math.inf, NOT_RUN)
    low, high = estimate.low(LEVEL), estimate.high(LEVEL / max(1, number))
    verdict = HOLDS if low > margin else FAILS if high < margin else UNCLEAR
    return Comparison(above, below, estimate, low, high, verdict)
