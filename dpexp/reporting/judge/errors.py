"""The error of a difference of two cells, from the seeds that ran and from the test examples.

Whether seed s gets example i right is modelled as a two-way layout of random effects: the seed,
the example, and their interaction. The seeds' term is the sample variance of the seeds' means
divided by the number of seeds; it contains the interaction. The examples' term is the variance over
examples of the accuracy averaged over seeds, divided by the number of examples. It contains the
interaction too, so the interaction is subtracted once. Each term, and in it each side's seeds, has
its own Student's t, and the half-widths add in quadrature: the bound then keeps its level whatever
the spreads (Banerjee 1960). Satterthwaite's degrees of freedom are misled by seeds that agree by
chance, the more so the smaller the level (docs/decisions/tables.md compares both).

Accuracies near 0 or 100 are skewed. Two of them are so alike, and the difference is not. Against a
number the interval's middle is moved by Hall's correction (1992), for a binomial share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

PAIRED, UNPAIRED, ONE_SIDED, SEEDS = "paired", "unpaired", "one cell", "seeds alone"
"""Basis of an error: the same examples on both sides; different or unknown examples; those of one
cell compared with a number; or no examples."""

LEVEL = 0.025
"""The level of each one-sided bound; together they are a 95 % interval."""

Term = tuple[float, float]
"""A variance, and its degrees of freedom."""

EXTRA = 2.0
"""Examples added to each side that differ from its mean by 100 (Agresti and Coull's "plus four").
Without them equal predictions would count as certainty."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: a cell, or a number, which has no error.

    Attributes:
        values: each seed's number, [S] with S >= 1.
        right: for each test set, 100 where a seed's prediction is correct and 0 elsewhere, [S, n];
            the number is the mean over these sets. Empty if no predictions were kept.
        sizes: number of examples of each test set; empty if the number is no accuracy, or if the
            sizes are unknown.
        tests: names of the test sets' data; sides that share one are paired.
        of_examples: variance due to examples that all seeds share, of a number that is no accuracy;
            None if it is an accuracy, or not known.
        is_number: whether it is an exact number of the claim.
    """

    values: np.ndarray
    right: tuple[np.ndarray, ...] = ()
    sizes: tuple[int, ...] = ()
    tests: frozenset[str] = frozenset()
    of_examples: float | None = None
    is_number: bool = False

    @property
    def num_seeds(self) -> int:
        """Number of seeds; 0 for a number."""
        return 0 if self.is_number else len(self.values)

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.values))


def number(value: float) -> Side:
    """Return the side of a number."""
    return Side(np.array([float(value)]), is_number=True)


@dataclass(frozen=True)
class Estimate:
    """A difference and its error.

    Attributes:
        difference: above minus below.
        kind: basis of the error, one of the four above.
        seeds: its variance due to each side's seeds and the degrees of freedom; empty if no side
            has two seeds.
        examples: the same due to examples; None if nothing is known about them.
        shared: the interaction's variance, which both terms contain.
        num_seeds: of each side; 0 for a number.
        num_examples: of each side, over all test sets; 0 for a number or if unknown.
        skew: the third central moment over the variance; 0 but for an accuracy against a number.
    """

    difference: float
    kind: str
    seeds: tuple[Term, ...]
    examples: Term | None
    shared: float
    num_seeds: tuple[int, int]
    num_examples: tuple[int, int]
    skew: float = 0.0

    @property
    def error(self) -> float | None:
        """The standard error; None if it is unknown.

        It is unknown with a single seed and no examples, and for seeds that are exactly equal.
        """
        if self.examples is None and not self.seeds:
            return None
        error = self._combined(lambda term: 1.0)
        return error if error > 0 else None

    def low(self, level: float) -> float:
        """Return the difference's lower bound, which holds with probability 1 - `level`.

        Args:
            level: in (0, 0.5).
        """
        return self._middle(level) - self.half_width(level)

    def high(self, level: float) -> float:
        """Return its upper bound, which holds with probability 1 - `level`."""
        return self._middle(level) + self.half_width(level)

    def half_width(self, level: float) -> float:
        """Return the distance of either bound from their middle; infinite if no error is known."""
        if self.error is None:
            return math.inf
        return self._combined(lambda term: _quantile(term, level))

    def _middle(self, level: float) -> float:
        if self.examples is None:
            return self.difference
        # Hall 1992, The Bootstrap and Edgeworth Expansion, section 3.5
        return self.difference + self.skew * (1 + 2 * _quantile(self.examples, level) ** 2) / 6

    def _combined(self, quantile: Callable[[Term], float]) -> float:
        seeds = sum(term[0] * quantile(term) ** 2 for term in self.seeds)
        if self.examples is None:
            return math.sqrt(seeds)
        square = quantile(self.examples) ** 2
        both = seeds + max(0.0, self.examples[0] - self.shared) * square
        least = max(self.examples[0], self.shared)  # both terms contain the interaction
        return math.sqrt(max(both, least * square))

    @property
    def lacks_seeds(self) -> bool:
        """Whether no side has two seeds, so that the error leaves out the spread of seeds."""
        return not self.seeds


def _quantile(term: Term, level: float) -> float:
    """Return the point that Student's t of a term exceeds with probability `level`."""
    return -float(stdtrit(term[1], level))


def estimate(above: Side, below: Side) -> Estimate:
    """Estimate above minus below and its error.

    Args:
        above: the side that should exceed the other.
        below: the other side; at most one of them is a number.
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
        _skew(above) - _skew(below) if kind == ONE_SIDED else 0.0,
    )


def _skew(side: Side) -> float:
    """Return an accuracy's third central moment over its variance, as of a binomial share."""
    if side.is_number or side.of_examples is not None:
        return 0.0
    return (100 - 2 * side.mean) / sum(side.sizes)


def _seeds(sides: Sequence[Side]) -> tuple[Term, ...]:
    """Return the variance of each side with two seeds or more, and its degrees of freedom.

    A single seed is assumed to vary about its method's mean as the other side's seeds do.
    """
    spreads = [
        (float(np.var(side.values, ddof=1)), side.num_seeds) for side in sides if side.num_seeds > 1
    ]
    alone = any(side.num_seeds == 1 for side in sides)
    return tuple((spread * (1 / count + alone), float(count - 1)) for spread, count in spreads)


def _examples(above: Side, below: Side) -> tuple[str, Term | None]:
    """Return the basis of the examples' error, its variance, and its degrees of freedom."""
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
    """Return a side's variance due to examples; with several test sets, that of their mean."""
    if side.of_examples is not None:
        return side.of_examples
    if side.right:
        means = [right.mean(axis=0) for right in side.right]
        spreads = [float(np.sum((mean - mean.mean()) ** 2)) for mean in means]
    else:  # binomial, with the mean accuracy assumed for each set
        spreads = [n * side.mean * max(0.0, 100 - side.mean) for n in side.sizes]
    extra = EXTRA * 100.0**2
    of_sets = [(spread + extra) / n**2 for spread, n in zip(spreads, side.sizes, strict=True)]
    return sum(of_sets) / len(of_sets) ** 2


def _interaction(side: Side) -> float:
    """Return the part of a side's variance due to the interaction of seeds and examples."""
    if side.num_seeds < 2 or not side.right:
        return 0.0
    parts = []
    for right in side.right:
        num_seeds, n = right.shape
        rest = right - right.mean(axis=0) - right.mean(axis=1, keepdims=True) + right.mean()
        parts.append(float(np.sum(rest**2)) / ((num_seeds - 1) * (n - 1)) / (num_seeds * n))
    return sum(parts) / len(parts) ** 2
