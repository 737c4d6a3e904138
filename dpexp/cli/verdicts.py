"""Simulate how often a verdict on two cells is wrong, and how often it finds a difference.

    python -m scripts.verdicts              # 2,000 draws a setting
    python -m scripts.verdicts draws=500    # quicker, and rougher
    python -m scripts.verdicts others=true  # also with other intervals: one t, and a bootstrap

Two methods of equal or different accuracy are run with several seeds and evaluated on test
examples. An example's difficulty has a part shared by both methods, a part for one method alone,
and chance for each seed. A seed makes a whole model better or worse. Prints for each setting how
often the verdict puts the first method above the second. A bound is one-sided at 2.5 %; without a
difference, at most 5 % is acceptable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from dpexp.cli.arguments import exit_code_of, only, truth, whole
from dpexp.reporting.judge import errors
from dpexp.reporting.judge.errors import LEVEL


@dataclass(frozen=True)
class Setting:
    """A simulated comparison.

    Attributes:
        seeds: of each method, >= 1.
        examples: in the test set.
        spread: standard deviation of the seeds' accuracies, in points; 0 with one seed, which
            compares models.
        other: the same for the second method's seeds; None: equal to `spread`.
        own: standard deviation of an example's difficulty for one method alone, in logits, beside
            1.5 for both; with 0 the methods agree as two seeds of one method do.
        points: the first method's accuracy minus the second's, in points.
        accuracy: of the second method, in percent.
        paired: whether the predictions are known.
        others: seeds of the second method; None: equal to `seeds`.
    """

    seeds: int
    examples: int = 1000
    spread: float = 0.0
    other: float | None = None
    own: float = 0.5
    points: float = 0.0
    accuracy: float = 80.0
    paired: bool = True
    others: int | None = None


SHARED = 1.5
"""Standard deviation of an example's difficulty shared by both methods, in logits."""


class Draws:
    """Draws the two methods' predictions of a setting, repeatedly."""

    def __init__(self, setting: Setting, seed: int = 0) -> None:
        """Find the mean logits that give the methods their accuracies."""
        self._setting, self._random = setting, np.random.default_rng(seed)
        deviation = float(np.hypot(SHARED, setting.own))
        logits = stats.norm.ppf((np.arange(4000) + 0.5) / 4000) * deviation
        grid = np.linspace(-8, 8, 1601)
        accuracy = [float(100 * _sigmoid(logits + centre).mean()) for centre in grid]
        self._centres = [
            float(np.interp(wanted, accuracy, grid))
            for wanted in (setting.accuracy + setting.points, setting.accuracy)
        ]
        p = _sigmoid(logits + self._centres[1])
        self._per_point = 1 / (100 * float(np.mean(p * (1 - p))))

    def __call__(self) -> tuple[errors.Side, errors.Side]:
        """Draw both sides."""
        setting = self._setting
        shared = self._random.normal(0, SHARED, setting.examples)
        spreads = (setting.spread, setting.spread if setting.other is None else setting.other)
        counts = (setting.seeds, setting.others or setting.seeds)
        sides = zip(self._centres, spreads, counts, strict=True)
        above, below = (self._side(shared, *side) for side in sides)
        return above, below

    def _side(self, shared: np.ndarray, centre: float, spread: float, count: int) -> errors.Side:
        setting, draw = self._setting, self._random
        of_seeds = draw.normal(0, spread * self._per_point, (count, 1))
        of_examples = shared + draw.normal(0, setting.own, setting.examples)
        chance = _sigmoid(centre + of_seeds + of_examples)
        right = 100.0 * (draw.random(chance.shape) < chance)
        kept = (right,) if setting.paired else ()
        tests = frozenset({"test"} if setting.paired else ())
        return errors.Side(right.mean(axis=1), kept, (setting.examples,), tests)


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


Rule = Callable[[errors.Side, errors.Side], bool]
"""Decides whether the first side is above the second."""


def ours(above: errors.Side, below: errors.Side) -> bool:
    """Decide as a verdict does."""
    return errors.estimate(above, below).low(LEVEL) > 0


def one_t(above: errors.Side, below: errors.Side) -> bool:
    """Decide by one Student's t with Satterthwaite's degrees of freedom over all terms."""
    found = errors.estimate(above, below)
    terms = [term for term in (*found.seeds, found.examples) if term and term[0] > 0]
    total = sum(variance for variance, _ in terms)
    freedom = total**2 / sum(variance**2 / freedom for variance, freedom in terms)
    return found.difference > float(stats.t.isf(LEVEL, freedom)) * (found.error or 0.0)


def bootstrap(above: errors.Side, below: errors.Side, times: int = 400) -> bool:
    """Decide by the percentile of a bootstrap over both sides' seeds and the examples."""
    weights, random = _drawn(above.sizes[0], times), np.random.default_rng(0)
    of_sides = []
    for side in (above, below):
        of_seeds = side.right[0] @ weights  # [S, times]
        drawn = random.integers(side.num_seeds, size=of_seeds.shape)
        of_sides.append(np.take_along_axis(of_seeds, drawn, axis=0).mean(axis=0))
    return float(np.quantile(of_sides[0] - of_sides[1], LEVEL)) > 0


@functools.cache
def _drawn(n: int, times: int) -> np.ndarray:
    """Return each of n examples' share of each bootstrap draw, [n, times]."""
    return np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), times).T / n


def share(setting: Setting, draws: int, rule: Rule = ours, seed: int = 0) -> float:
    """Return the share of draws in which the rule puts the first method above the second.

    Args:
        setting: to draw from.
        draws: number of draws, >= 1.
        rule: the decision rule.
        seed: of the draws.
    """
    draw = Draws(setting, seed)
    return sum(rule(*draw()) for _ in range(draws)) / draws


NULLS = tuple(
    Setting(seeds, spread=spread, own=own)
    for own in (0.0, 0.5, 1.5)
    for seeds in (1, 2, 3)
    for spread in ((0.0,) if seeds == 1 else (0.0, 0.3, 1.0, 3.0))
) + (
    *(Setting(seeds, spread=spread, other=0.0) for seeds in (2, 3) for spread in (1.0, 3.0)),
    *(Setting(seeds, 10_000, 3.0, other) for seeds in (2, 3) for other in (3.0, 1.0, 0.3)),
    *(Setting(2, 10_000, spread, other, others=3) for spread, other in ((3.0, 0.3), (0.3, 3.0))),
    *(Setting(1, 10_000, spread, others=n) for n in (2, 3, 5) for spread in (0.3, 2.0)),
)
"""Settings without a difference: few examples, and seeds that differ by more than examples do."""

FOUND = tuple(
    replace(Setting(seeds, spread=spread, own=own), examples=10_000, points=2.0)
    for own in (0.5, 1.5)
    for seeds in (1, 2, 3, 5)
    for spread in ((0.0,) if seeds == 1 else (0.1, 0.3, 0.5))
)
"""Settings with a difference of two points, on as many test examples as CIFAR-10 has."""

UNPAIRED = (Setting(1, paired=False), Setting(2, spread=1.0, paired=False),
            Setting(1, 10_000, points=2.0, paired=False))  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    given = only(words, {"draws": whole(1), "others": truth})
    draws = given.get("draws", 2000)
    rules = {"ours": ours}
    if given.get("others"):
        rules |= {"one t": one_t, "bootstrap": bootstrap}
    print(f"{draws} draws per setting; share with the first above, in %, by {', '.join(rules)}")
    for setting in (*NULLS, *FOUND, *UNPAIRED):
        bootstraps = setting.paired and not setting.points
        used = [rule for name, rule in rules.items() if bootstraps or name != "bootstrap"]
        shares = "  ".join(f"{100 * share(setting, draws, rule):5.1f}" for rule in used)
        print(
            f"{shares}  difference {setting.points:g}, {setting.seeds} "
            f"{'' if setting.others is None else f'and {setting.others} '}seeds of spread "
            f"{setting.spread:g}{'' if setting.other is None else f' and {setting.other:g}'}, "
            f"{setting.examples:,} examples, own {setting.own:g}, "
            f"{'paired' if setting.paired else 'unpaired'}",
            flush=True,
        )
    return 0
