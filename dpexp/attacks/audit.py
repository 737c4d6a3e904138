"""Audits of one run: canaries go in by coins, and what is learnt of the coins bounds epsilon.

Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from dpexp.attacks import bounds, mislabelled
from dpexp.attacks.bounds_curves import subsampled_gaussian
from dpexp.attacks.canaries import Canaried
from dpexp.attacks.directions import KINDS
from dpexp.privacy import Mechanism
from dpexp.privacy.seeds import generator
from dpexp.training.train import Findings, Parts
from dpexp.types import ConfigError, State, joint_sensitivity, require_word

MISLABELLED = "mislabelled"

LEAST_NOISE, MOST_NOISE = 0.5, 64.0
"""Between these multiples of the run's noise the one that its scores would fit is sought (ours)."""

ROUNDING = 1e-9
"""Of a share times a number."""

FINENESS = 0.01
"""Of that search, in the noise's logarithm; the bound is rounded down (ours)."""


def toss(seed: int, m: int) -> Tensor:
    """Toss every canary's fair coin, [m], bool."""
    return torch.rand(m, dtype=torch.float64, generator=generator(seed, "canary/coin", 0)) < 0.5


class OneRun:
    """Puts m canaries into a run, each with probability one half, and guesses which are in."""

    deviation = "audited: canaries were among the examples, the model is not for use"

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
            canaries: "dirac" or "random", gradients made up (`dpexp.attacks.canaries`), or
                "mislabelled", examples (`dpexp.attacks.mislabelled`).
            m: how many, >= 2.
            guesses: how many of them are guessed in or out, half of them either, as a share of m in
                (0, 1].
            confidence: of the bounds, in (0, 1).
            clip_norm: the run's.
            batch_size: the run's.
            sampling: the run's.

        Raises:
            ConfigError: for a value outside its range.
        """
        require_word("audit.canaries", canaries, (*KINDS, MISLABELLED))
        self._made = 2 * math.floor(m * guesses / 2 + ROUNDING)
        if not (0 < guesses <= 1 and 2 <= self._made <= m):
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
                "Expected sampling=poisson with canaries in gradients, which join each step by a "
                f"coin; got sampling={sampling}. Set audit.canaries=mislabelled."
            )
        self._canaries, self._m, self._confidence = canaries, m, confidence
        self._clip_norm, self._batch_size = clip_norm, batch_size

    def stage(self, parts: Parts, seed: int) -> Parts:
        """Put the canaries in."""
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

    def report(
        self, parts: Parts, state: State, mechanism: Mechanism, device: torch.device
    ) -> Findings:
        """Guess coins from scores, and bound epsilon by how many guesses are right."""
        included = toss(mechanism.seed, self._m).numpy()
        if self._canaries == MISLABELLED:
            train, seed = parts.task.train, mechanism.seed
            scores = mislabelled.scores(parts.model, train, self._m, seed, device)
        else:
            scores = state["scores"]
        scores = scores.double().cpu().numpy()
        guesses = bounds.guess(scores, included, self._made)
        numbers = {
            "audit_canaries": guesses.canaries,
            "audit_guesses": guesses.made,
            "audit_right": guesses.right,
            "audit_confidence": self._confidence,
            "audit_epsilon_lower": guesses.epsilon_lower(mechanism.delta, self._confidence),
            "audit_epsilon_lower_curve": curve_bound(guesses, mechanism, self._confidence),
            "audit_epsilon_accounted": mechanism.epsilon(mechanism.num_steps),
        }
        return Findings(numbers, {"scores": scores, "included": included})


def curve_bound(guesses: bounds.Guesses, mechanism: Mechanism, confidence: float) -> float | None:
    """Bound epsilon by the noise with which the run's own mechanism might have let so much through.

    The mechanism's trade-off curve is compared for one noise after the other; what is refuted is
    that there was as much noise, or more. The bound supposes the mechanism to be what it says but
    for that: a Gaussian one, on Poisson samples.

    Args:
        guesses: of the run's coins.
        mechanism: the run's.
        confidence: in (0, 1).

    Returns:
        The epsilon of the least noise that is refuted, to within `FINENESS`, by the run's
        accountant; None for other mechanisms, or where numbers are beyond the accountant.
    """
    if not mechanism.is_private or mechanism.is_laplace or mechanism.sampling != "poisson":
        return None
    steps, q = mechanism.num_steps, mechanism.sampling_prob
    own = mechanism.noise_multiplier / joint_sensitivity(mechanism.releases)

    def is_refuted(noise: float) -> bool:
        return guesses.refutes(subsampled_gaussian(q, own * noise, steps), confidence)

    try:
        if not is_refuted(MOST_NOISE):
            return 0.0
        low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
        while high - low > FINENESS:
            middle = (low + high) / 2
            low, high = (low, middle) if is_refuted(math.exp(middle)) else (middle, high)
        noise = mechanism.noise_multiplier * math.exp(high)
        return replace(mechanism, noise_multiplier=noise).epsilon(steps)
    except (ValueError, RuntimeError, ArithmeticError, IndexError):
        return None
