"""How far a difference of two cells may be off: by the seeds that ran and by the test examples.

Right or wrong of seed s on example i is taken as a two-way layout of random effects: the seed's,
the example's, and their interaction. The seeds' term is the sample variance of the seeds' means
over their number, and holds the interaction. The examples' term is the variance over examples of
what the seeds got right on average, over their number, and holds it too; so it is taken off once.
Either term has a Student's t of its own, and their half-widths add up as squares do. That is wider
than one t at Satterthwaite's degrees of freedom, which two seeds that came out alike by chance
would deceive (docs/decisions.md has both, simulated).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

PAIRED, UNPAIRED, ONE_SIDED, SEEDS = "paired", "unpaired", "one cell", "seeds alone"
"""What an error rests on: the same examples on both sides, other ones or unknown ones, those of one
cell beside a number, or no examples."""

LEVEL = 0.025
"""Of each one-sided bound: both together are a 95 % interval."""

EXTRA = 2.0
"""Examples of either side that are taken to stray from its mean by 100 besides those that do, as
Agresti and Coull's "plus four" has it: equal predictions are no certainty."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: a cell, or a number where it has no seeds to differ by.

    Attributes:
        values: each seed's number, [S] with S >= 1.
        right: of each test set, 100 where a seed's model got an example right, else 0,
            [S, n]; the number is the mean over these sets. Empty where nothing was kept.
        sizes: how many examples each test set has; empty where the number is no accuracy, or
            where nobody knows.
        tests: names of the test sets' data; sides that share one are paired.
        is_number: whether it is exact, given by whoever claims.
    """

    values: np.ndarray
    right: tuple[np.ndarray, ...] = ()
    sizes: tuple[int, ...] = ()
    tests: frozenset[str] = frozenset()
    is_number: bool = False

    @property
    def num_seeds(self) -> int:
        """Give how many seeds it has; 0 for a number."""
        return 0 if self.is_number else len(self.values)

    @property
    def mean(self) -> float:
        """Give the mean over the seeds."""
        return float(np.mean(self.values))


def number(value: float) -> Side:
    """Give the side that is a number."""
    return Side(np.array([float(value)]), is_number=True)


@dataclass(frozen=True)
class Estimate:
    """A difference and what is known of its error.

    Attributes:
        difference: above minus below.
        kind: what the error rests on, one of the four above.
        seeds: the seeds' variance of it and its degrees of freedom; None where no side has two.
        examples: the same of the examples; None where nothing is known of them.
        shared: how much of either is the interaction, which both hold.
        num_seeds: of either side; 0 for a number.
        num_examples: of either side, in all test sets; 0 for a number, or where nobody knows.
    """

    difference: float
    kind: str
    seeds: tuple[float, float] | None
    examples: tuple[float, float] | None
    shared: float
    num_seeds: tuple[int, int]
    num_examples: tuple[int, int]

    @property
    def error(self) -> float | None:
        """Give the standard error; None where nothing tells it.

        With a single seed and no examples nothing does, and seeds that came out equal to the digit
        measure no spread.
        """
        if self.examples is None and self.seeds is None:
            return None
        error = self._combined(1.0, 1.0)
        return error if error > 0 else None

    def half_width(self, level: float) -> float:
        """Give how far the one-sided confidence bound at `level`, in (0, 0.5), lies off.

        It holds with probability 1 - `level`. Infinite where the error is not known.
        """
        if self.error is None:
            return math.inf
        return self._combined(_quantile(self.seeds, level), _quantile(self.examples, level))

    def _combined(self, of_seeds: float, of_examples: float) -> float:
        seeds = self.seeds[0] * of_seeds**2 if self.seeds else 0.0
        if self.examples is None:
            return math.sqrt(seeds)
        both = seeds + max(0.0, self.examples[0] - self.shared) * of_examples**2
        least = max(self.examples[0], self.shared)  # the interaction is in either term
        return math.sqrt(max(both, least * of_examples**2))

    @property
    def lacks_seeds(self) -> bool:
        """Tell whether no side has two seeds, so that the spread of seeds is not in it."""
        return self.seeds is None


def _quantile(term: tuple[float, float] | None, level: float) -> float:
    return 0.0 if term is None else float(stats.t.isf(level, term[1]))


def estimate(above: Side, below: Side) -> Estimate:
    """Estimate above minus below and its error.

    Args:
        above: the side that is to exceed the other.
        below: the other; not both are a number.
    """
    kind, examples = _examples(above, below)
    counts = [sum(side.sizes) if examples else 0 for side in (above, below)]
    return Estimate(
        above.mean - below.mean,
        kind,
        _seeds((above, below)),
        examples,
        _interaction(above) + _interaction(below) if examples else 0.0,
        (above.num_seeds, below.num_seeds),
        (counts[0], counts[1]),
    )


def _seeds(sides: Sequence[Side]) -> tuple[float, float] | None:
    """Give the seeds' variance and Welch and Satterthwaite's degrees of freedom.

    A single seed beside several is taken to stray from its method's mean as these do from theirs.
    """
    spreads = [
        (float(np.var(side.values, ddof=1)), side.num_seeds) for side in sides if side.num_seeds > 1
    ]
    if not spreads:
        return None
    if any(side.num_seeds == 1 for side in sides):
        ((spread, count),) = spreads
        return spread * (1 / count + 1), float(count - 1)
    terms = [(spread / count, count - 1) for spread, count in spreads]
    total = sum(variance for variance, _ in terms)
    if total == 0:
        return 0.0, float(min(freedom for _, freedom in terms))
    return total, total**2 / sum(variance**2 / freedom for variance, freedom in terms)


def _examples(above: Side, below: Side) -> tuple[str, tuple[float, float] | None]:
    """Give what the examples' error rests on, and its variance and degrees of freedom."""
    cells = [side for side in (above, below) if not side.is_number]
    if not all(side.sizes for side in cells):
        return SEEDS, None
    freedom = float(min(n for side in cells for n in side.sizes) - 1)
    if not freedom:
        return SEEDS, None
    variance = sum(map(_variance, cells))
    if len(cells) < 2:
        return ONE_SIDED, (variance, freedom)
    if not (above.right and below.right and above.tests & below.tests):
        return UNPAIRED, (variance, freedom)
    sets = zip(above.right, below.right, strict=True)
    means = [(a.mean(axis=0), b.mean(axis=0)) for a, b in sets]
    shared = sum(float(np.mean((a - a.mean()) * (b - b.mean()))) / a.size for a, b in means)
    return PAIRED, (max(0.0, variance - 2 * shared / len(means) ** 2), freedom)


def _variance(side: Side) -> float:
    """Give the variance of a side's number by its examples, of several sets as of their mean."""
    if side.right:
        means = [right.mean(axis=0) for right in side.right]
        spreads = [float(np.sum((mean - mean.mean()) ** 2)) for mean in means]
    else:  # binomial: each set as accurate as the mean of them all
        spreads = [n * side.mean * max(0.0, 100 - side.mean) for n in side.sizes]
    extra = EXTRA * 100.0**2
    of_sets = [(spread + extra) / n**2 for spread, n in zip(spreads, side.sizes, strict=True)]
    return sum(of_sets) / len(of_sets) ** 2


def _interaction(side: Side) -> float:
    """Give the part of a side's variance that is the interaction of its seeds and examples."""
    if side.num_seeds < 2 or not side.right:
        return 0.0
    parts = []
    for right in side.right:
        num_seeds, n = right.shape
        rest = right - right.mean(axis=0) - right.mean(axis=1, keepdims=True) + right.mean()
        parts.append(float(np.sum(rest**2)) / ((num_seeds - 1) * (n - 1)) / (num_seeds * n))
    return sum(parts) / len(parts) ** 2
