"""Audit one run: include canaries at random, guess which, and bound epsilon from the guesses.

Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from dpexp.attacks import bounds, mislabelled
from dpexp.attacks.bounds_curves import subsampled_gaussian
from dpexp.attacks.canaries import SCORES, Canaried, weights_of
from dpexp.attacks.directions import KINDS
from dpexp.privacy import Mechanism
from dpexp.privacy.certificate import AUDITED
from dpexp.privacy.seeds import generator
from dpexp.training.parts import Findings, Parts
from dpexp.types import ConfigError, State, require_word

MISLABELLED = "mislabelled"

LEAST_NOISE, MOST_NOISE = 0.5, 64.0
"""Range of the search for the least refuted noise, in multiples of the run's noise (ours)."""

ROUNDING = 1e-9
"""Slack for rounding in a share times a number."""

FINENESS = 0.01
"""Resolution of that search, in the noise's logarithm; the bound is rounded down (ours)."""


def toss(seed: int, m: int) -> Tensor:
    """Return whether each canary is included, by a fair coin each, [m] bool."""
    return torch.rand(m, dtype=torch.float64, generator=generator(seed, "canary/coin", 0)) < 0.5


class OneRun:
    """Includes each of m canaries with probability one half, and guesses which were included."""

    deviation = AUDITED

    def __init__(
        self,
        canaries: str,
        m: int,
        guesses: float,
        confidence: float,
        clip_norm: float,
        batch_size: int,
        sampling: str,
    ) -> None:
        """Set the options.

        Args:
            canaries: "dirac" or "random", crafted gradients (`dpexp.attacks.canaries`), or
                "mislabelled", training examples (`dpexp.attacks.mislabelled`).
            m: number of canaries, >= 2.
            guesses: number of guesses as a share of m, in (0, 1]; one half of them guess
                "included", the other "excluded".
            confidence: of the bounds, in (0, 1).
            clip_norm: the run's.
            batch_size: the run's.
            sampling: the run's.

        Raises:
            ConfigError: for a value outside its range.
        """
        require_word("audit.canaries", canaries, (*KINDS, MISLABELLED))
        self._num_guesses = 2 * math.floor(m * guesses / 2 + ROUNDING)
        if not (0 < guesses <= 1 and 2 <= self._num_guesses <= m):
            raise ConfigError(
                "Expected audit.m >= 2 and audit.guesses in (0, 1], two or more guesses in all; "
                f"got m={m} and guesses={guesses}. Set them."
            )
        if not 0 < confidence < 1:
            raise ConfigError(
                f"Expected audit.confidence in (0, 1); got {confidence}. Set audit.confidence."
            )
        if sampling != "poisson" and canaries != MISLABELLED:
            raise ConfigError(
                "Expected sampling=poisson with crafted gradients, which join each step at random; "
                f"got sampling={sampling}. Set audit.canaries=mislabelled."
            )
        self._canaries, self._m, self._confidence = canaries, m, confidence
        self._clip_norm, self._batch_size = clip_norm, batch_size

    def stage(self, parts: Parts, seed: int) -> Parts:
        """Add the canaries to the run."""
        included = toss(seed, self._m)
        if self._canaries == MISLABELLED:
            return replace(parts, task=mislabelled.mislabel(parts.task, included, seed))
        method = Canaried(
            parts.method,
            kind=self._canaries,
            included=included,
            sampling_prob=self._batch_size / parts.task.dataset_size,
            clip_norm=self._clip_norm,
            batch_size=self._batch_size,
            seed=seed,
        )
        return replace(parts, method=method)

    def begin(self, parts: Parts, mechanism: Mechanism) -> None:
        """Let crafted canaries take part as examples do under this mechanism."""
        if isinstance(parts.method, Canaried):
            parts.method.correlate(mechanism)

    def report(
        self, parts: Parts, state: State, mechanism: Mechanism, device: torch.device
    ) -> Findings:
        """Guess inclusion from scores, and bound epsilon from the number of correct guesses."""
        included = toss(mechanism.seed, self._m).numpy()
        if self._canaries == MISLABELLED:
            train, seed = parts.task.train, mechanism.seed
            scores = mislabelled.scores(parts.model, train, self._m, seed, device)
        else:
            kinds = torch.stack([state[kind] for kind in SCORES if kind in state], 1)
            scores = kinds.cpu() @ torch.from_numpy(weights_of(kinds.cpu().numpy()))
        numbers_of = scores.double().cpu().numpy()
        guesses = bounds.guess(numbers_of, included, self._num_guesses)
        numbers = {
            "audit_canaries": guesses.canaries,
            "audit_guesses": guesses.made,
            "audit_right": guesses.right,
            "audit_confidence": self._confidence,
            "audit_epsilon_lower": guesses.epsilon_lower(mechanism.delta, self._confidence),
            "audit_epsilon_lower_curve": curve_bound(guesses, mechanism, self._confidence),
            "audit_epsilon_accounted": mechanism.epsilon(mechanism.num_steps),
        }
        return Findings(numbers, {"scores": numbers_of, "included": included})


def curve_bound(guesses: bounds.Guesses, mechanism: Mechanism, confidence: float) -> float | None:
    """Return a lower bound on epsilon from the mechanism's trade-off curve.

    A search over noise levels finds the least one that the guesses refute, together with all larger
    ones. The bound assumes that the mechanism is as stated except for its noise: Gaussian, on
    Poisson samples.

    Args:
        guesses: the attacker's.
        mechanism: the run's.
        confidence: in (0, 1).

    Returns:
        The epsilon of the least refuted noise, to within `FINENESS`, by the run's accountant. None
        for other mechanisms, or if the accountant cannot handle the numbers.
    """
    if not mechanism.is_private or mechanism.is_laplace or mechanism.sampling == "shuffle":
        return None
    steps, q = mechanism.participations(mechanism.num_steps), mechanism.participation_prob
    sigma = mechanism.effective_noise_multiplier

    def is_refuted(factor: float) -> bool:
        return guesses.refutes(subsampled_gaussian(q, sigma * factor, steps), confidence)

    try:
        if not is_refuted(MOST_NOISE):
            return 0.0
        low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
        while high - low > FINENESS:
            middle = (low + high) / 2
            low, high = (low, middle) if is_refuted(math.exp(middle)) else (middle, high)
        return mechanism.with_noise(math.exp(high)).epsilon(mechanism.num_steps)
    except (ValueError, RuntimeError, ArithmeticError, IndexError):
        return None
