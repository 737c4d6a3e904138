"""Lower bounds on epsilon from an attacker's correct guesses.

There are two kinds of evidence. One run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846): each
of m canaries is included by a fair coin; after training the attacker guesses r of the coins, v of
them correctly. A distinguishing game: many independent trials, half of them with a canary; the
attacker classifies each trial.

The evidence is tested against two kinds of claim: (epsilon, delta)-privacy, and a trade-off curve
(`bounds_curves`), which bounds true positives for every rate of false positives. A curve states
more, so its bound is tighter (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235).

Every bound holds with the stated confidence, over the mechanism's noise and the coins, for any
attacker; a weak attacker only makes it lower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, betaincinv, ndtr, ndtri

from dpexp.attacks.bounds_curves import Curve

LARGEST = 100.0
"""Largest epsilon searched: no attacker has enough trials to show more."""

TOLERANCE = 1e-3
"""Absolute tolerance of a bound; it is rounded down."""

THRESHOLDS = 200
"""Number of thresholds compared on the first half of a distinguishing game's trials (ours)."""

SMALLEST_DEVIATION = 1e-9
"""Lower limit of the scores' standard deviation, for equal scores."""


def largest_refuted(is_refuted: Callable[[float], bool], most: float = LARGEST) -> float:
    """Return the largest claim that evidence refutes; 0 if it refutes none.

    Args:
        is_refuted: whether a claim is refuted; if it is, so are all smaller ones.
        most: the largest claim tested.
    """
    if is_refuted(most):
        return most
    low, high = 0.0, most
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Guesses:
    """An attacker's guesses in one run.

    Attributes:
        canaries: m, each included by a fair coin.
        made: r, the number of guesses, in [0, m]; must not depend on which are correct.
        right: v, the number of correct guesses, in [0, r].
    """

    canaries: int
    made: int
    right: int

    def p_value(self, epsilon: float, delta: float) -> float:
        """Bound the probability of v or more correct guesses under (epsilon, delta)-privacy.

        With W binomial(r, e^eps / (1 + e^eps)), the correct guesses under randomised response,

            P[W >= v] + m delta max_{1 <= i <= m} (2 / i) P[v > W >= v - i]

        (Steinke et al. 2023, the theorem for approximate privacy).

        Args:
            epsilon: >= 0.
            delta: in [0, 1).
        """
        rate = 1 / (1 + math.exp(-epsilon))
        beta = float(bdtrc(self.right - 1, self.made, rate))  # P[W > v - 1]
        if delta == 0 or self.right == 0:
            return min(1.0, beta)
        below = np.arange(1, self.right + 1)  # larger i do not change the probability
        short = bdtrc(self.right - 1 - below, self.made, rate) - beta
        return min(1.0, beta + self.canaries * delta * float((2 * short / below).max()))

    def epsilon_lower(self, delta: float, confidence: float) -> float:
        """Return a lower bound on epsilon.

        Args:
            delta: in [0, 1).
            confidence: in (0, 1).
        """
        return largest_refuted(lambda epsilon: self.p_value(epsilon, delta) < 1 - confidence)

    def refutes(self, curve: Curve, confidence: float) -> bool:
        """Return whether v or more correct guesses are too unlikely under a trade-off curve.

        Let p_w be the probability of w correct guesses, and F the curve's largest true positive
        rate at a false positive rate (concave). For a coin j and a number c, consider the event
        that j is guessed "in" and at least c - 1 of the other guesses are correct. Flipping j turns
        a correct guess into a wrong one and keeps the others, so F bounds the probability of the
        one event by that of the other. The same holds for "out". Averaged over coins and guesses,
        by Jensen,

            R_c = sum_{w >= c} (w / m) p_w  <=  F(H_{c-1}),   H_c = sum_{w >= c} ((r - w) / m) p_w

        for every c. Moving mass from w to w - 1 relaxes every such constraint except that of
        c = w + 1. So if any distribution with P[W >= v] = 1 - confidence satisfies those of c <= v,
        so does the one that puts all of that mass on v and then, going down, on every w the least
        that the constraint of w + 1 requires. If its mass exceeds one, no distribution satisfies
        them. Nor does one with a larger probability: the feasible distributions are a convex set,
        and the one without correct guesses is among them.

        Args:
            curve: the claim.
            confidence: in (0, 1).
        """
        m, r = self.canaries, self.made
        mass = 1 - confidence
        hits, misses = mass * self.right / m, mass * (r - self.right) / m
        for w in range(self.right - 1, -1, -1):
            missing = curve(hits) - misses
            if missing > 0:  # in units of probability times (r - w) / m
                hits, misses = hits + missing * w / (r - w), misses + missing
            if hits + misses > r / m:
                return True
        return False


@dataclass(frozen=True)
class Errors:
    """An attacker's errors in the trials of a distinguishing game.

    Attributes:
        false_positives: trials without the canary, classified as with it; expected numbers need not
            be whole.
        without: number of trials without the canary.
        false_negatives: trials with the canary, classified as without it.
        within: number of trials with the canary.
    """

    false_positives: float
    without: int
    false_negatives: float
    within: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """Return upper bounds on both error rates, jointly at the confidence (Clopper-Pearson)."""
        split = 1 - (1 - confidence) / 2
        return (
            clopper_pearson(self.false_positives, self.without, split),
            clopper_pearson(self.false_negatives, self.within, split),
        )

    def epsilon_lower(self, delta: float, confidence: float) -> float:
        """Return a lower bound on epsilon: 1 - FNR <= e^eps FPR + delta, and with roles swapped."""
        positive, negative = self.rates(confidence)
        ratios = (
            (1 - delta - negative) / positive,
            (1 - delta - positive) / negative,
        )
        return math.log(max(1.0, *ratios))

    def mu_lower(self, confidence: float) -> float:
        """Return a lower bound on mu of Gaussian differential privacy (Dong, Roth and Su 2022)."""
        positive, negative = self.rates(confidence)
        return max(0.0, float(-ndtri(positive) - ndtri(negative)))


def clopper_pearson(hits: float, trials: int, confidence: float) -> float:
    """Return an upper confidence bound on a probability, from its number of hits."""
    if hits >= trials:
        return 1.0
    return float(betaincinv(hits + 1, trials - hits, confidence))


def tell_apart(
    without: np.ndarray,
    within: np.ndarray,
    worth: Callable[[Errors], float],
) -> Errors:
    """Choose a threshold on the first half of the trials; return its errors in the second.

    The threshold is the best one for Gaussians with the first half's means and deviations. For
    other scores it may be a poor choice, but the errors remain valid.

    Args:
        without: scores of trials without the canary, [n].
        within: of trials with it, [n'], expected to be higher.
        worth: value of a threshold's errors; the threshold with the largest expected value is used.
    """
    first = without[: len(without) // 2], within[: len(within) // 2]
    second = without[len(without) // 2 :], within[len(within) // 2 :]

    def expected(threshold: float) -> Errors:
        above, below = (
            sign * (scores.mean() - threshold) / max(scores.std(), SMALLEST_DEVIATION)
            for sign, scores in zip((1, -1), first, strict=True)
        )
        return Errors(
            len(second[0]) * float(ndtr(above)),
            len(second[0]),
            len(second[1]) * float(ndtr(below)),
            len(second[1]),
        )

    pooled = np.concatenate(first)
    places = np.linspace(pooled.min(), pooled.max(), THRESHOLDS)
    best = max(places, key=lambda place: worth(expected(place)))
    return _errors(*second, best)


def _errors(without: np.ndarray, within: np.ndarray, threshold: float) -> Errors:
    return Errors(
        false_positives=int((without >= threshold).sum()),
        without=len(without),
        false_negatives=int((within < threshold).sum()),
        within=len(within),
    )


def guess(scores: np.ndarray, included: np.ndarray, made: int) -> Guesses:
    """Guess that the highest scores are included and as many of the lowest are not.

    Args:
        scores: [m].
        included: the coins, [m], bool.
        made: number of guesses, even, in [2, m]; independent of scores and coins.
    """
    order = np.argsort(-scores, kind="stable")
    high, low = order[: made // 2], order[len(order) - made // 2 :]
    right = int(included[high].sum() + (~included[low]).sum())
    return Guesses(len(scores), made, right)
