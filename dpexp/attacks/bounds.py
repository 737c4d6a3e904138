"""Lower bounds on epsilon from how often an attacker guesses right.

Two kinds of evidence. From one run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846): m
canaries, each in the run or not by its own fair coin; after training the attacker guesses r of the
coins, and v guesses are right. From a distinguishing game: many independent trials with one canary,
as many without; the attacker calls each trial one or the other.

And two kinds of claim they are held against. "(epsilon, delta)" is the run's own. A trade-off
curve (`bounds_curves`) says for every rate of false positives how many true ones are possible; it
says more, so a bound from it is tighter (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235).

Every bound holds with the stated confidence, over the mechanism's noise and the coins, whatever the
attacker does; a poor attacker only makes it low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, betaincinv, ndtr, ndtri

from dpexp.attacks.bounds_curves import Curve

LARGEST = 100.0
"""Epsilon beyond which nothing is searched: no attacker has trials enough to show it."""

TOLERANCE = 1e-3
"""Of a bound, absolute; it is rounded down."""

THRESHOLDS = 200
"""So many are compared by the first half of a distinguishing game's trials (ours)."""

SMALLEST_DEVIATION = 1e-9
"""Of scores, where all are alike."""


def largest_refuted(is_refuted: Callable[[float], bool], most: float = LARGEST) -> float:
    """Find the end of the claims that evidence refutes, from 0 up; 0 if it refutes none.

    Args:
        is_refuted: of a claim; where it refutes one it refutes all that are smaller.
        most: the largest claim that is looked at.
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
    """What an attacker made of one run.

    Attributes:
        canaries: m, each in the run by its own fair coin.
        made: r, how many coins were guessed, in [0, m]; not to be chosen by who was right.
        right: v, how many of them rightly, in [0, r].
    """

    canaries: int
    made: int
    right: int

    def p_value(self, epsilon: float, delta: float) -> float:
        """Bound the chance of so many right guesses under (epsilon, delta)-privacy.

        With W binomial(r, e^eps / (1 + e^eps)), what randomised response would get right,

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
        below = np.arange(1, self.right + 1)  # beyond, the probability grows no more
        short = bdtrc(self.right - 1 - below, self.made, rate) - beta
        return min(1.0, beta + self.canaries * delta * float((2 * short / below).max()))

    def epsilon_lower(self, delta: float, confidence: float) -> float:
        """Bound epsilon from below.

        Args:
            delta: in [0, 1).
            confidence: in (0, 1).
        """
        return largest_refuted(lambda epsilon: self.p_value(epsilon, delta) < 1 - confidence)

    def refutes(self, curve: Curve, confidence: float) -> bool:
        """Return whether so many right guesses are too unlikely under a trade-off curve.

        Let p_w be the probability of w right guesses, F the curve's largest true positive rate at a
        false positive rate (concave). For a coin j and a number c, look at the event that j is
        guessed "in" and that c - 1 or more of the other guesses are right: flipping j turns a right
        guess into a wrong one and leaves the others, so F bounds the one's probability by the
        other's. Likewise for "out"; averaged over coins and guesses, by Jensen,

            R_c = sum_{w >= c} (w / m) p_w  <=  F(H_{c-1}),   H_c = sum_{w >= c} ((r - w) / m) p_w

        for every c. Moving mass from w to w - 1 loosens every such line but the one of c = w + 1.
        So if any law with P[W >= v] = 1 - confidence obeys those of c <= v, then also the one that
        has all of that at v and, going down, at every w no more than the line of w + 1 asks for.
        Where that sums to more than one there is none, nor is there for a larger probability: the
        laws that obey are a convex set, and the one with no right guess at all is among them.

        Args:
            curve: what is claimed.
            confidence: in (0, 1).
        """
        m, r = self.canaries, self.made
        mass = 1 - confidence
        hits, misses = mass * self.right / m, mass * (r - self.right) / m
        for w in range(self.right - 1, -1, -1):
            missing = curve(hits) - misses
            if missing > 0:  # of probability times (r - w) / m
                hits, misses = hits + missing * w / (r - w), misses + missing
            if hits + misses > r / m:
                return True
        return False


@dataclass(frozen=True)
class Errors:
    """What an attacker made of independent trials in a distinguishing game.

    Attributes:
        false_positives: how many trials without the canary were called trials with it; expected
            numbers need not be whole.
        without: how many there were.
        false_negatives: how many trials with the canary were called trials without it.
        within: how many there were.
    """

    false_positives: float
    without: int
    false_negatives: float
    within: int

    def rates(self, confidence: float) -> tuple[float, float]:
        """Bound both error rates from above, together with the confidence (Clopper-Pearson)."""
        each = 1 - (1 - confidence) / 2
        return (
            clopper_pearson(self.false_positives, self.without, each),
            clopper_pearson(self.false_negatives, self.within, each),
        )

    def epsilon_lower(self, delta: float, confidence: float) -> float:
        """Bound epsilon from below: 1 - FNR <= e^eps FPR + delta, and with the roles changed."""
        positive, negative = self.rates(confidence)
        shown = (
            (1 - delta - negative) / positive,
            (1 - delta - positive) / negative,
        )
        return math.log(max(1.0, *shown))

    def mu_lower(self, confidence: float) -> float:
        """Bound mu of Gaussian differential privacy from below (Dong, Roth and Su 2022)."""
        positive, negative = self.rates(confidence)
        return max(0.0, float(-ndtri(positive) - ndtri(negative)))


def clopper_pearson(hits: float, trials: int, confidence: float) -> float:
    """Bound a probability from above, by how often it happened."""
    if hits >= trials:
        return 1.0
    return float(betaincinv(hits + 1, trials - hits, confidence))


def tell_apart(
    without: np.ndarray,
    within: np.ndarray,
    worth: Callable[[Errors], float],
) -> Errors:
    """Choose a threshold by the first half of the trials, and count errors in the second.

    The threshold is the best one for Gaussians with the first half's means and deviations. Where
    scores are not Gaussian it may be a poor choice, but the errors counted are as valid.

    Args:
        without: scores of trials without the canary, [n].
        within: of trials with it, [n'], meant to be higher.
        worth: of a threshold's errors; the one expected to be best is taken.
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
    """Call the highest scores in and as many of the lowest out, and count what is right.

    Args:
        scores: [m]; how many are guessed does not depend on them, or on the coins.
        included: the coins, [m], bool.
        made: how many guesses, even, in [2, m].
    """
    order = np.argsort(-scores, kind="stable")
    high, low = order[: made // 2], order[len(order) - made // 2 :]
    right = int(included[high].sum() + (~included[low]).sum())
    return Guesses(len(scores), made, right)
