"""The frozen mechanism of PATE: noise, caps and epsilon of noisy votes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpexp.privacy import certificate as words
from dpexp.privacy.budget import check_privacy
from dpexp.privacy.calibration import confirm
from dpexp.privacy.gnmax import (
    CHECK_SENSITIVITY,
    VOTE_SENSITIVITY,
    calibrate_votes,
    data_dependent_epsilon,
    effective_multiplier,
    votes_epsilon,
)
from dpexp.privacy.pld import Part
from dpexp.privacy.seeds import generator, new_secret
from dpexp.types import Release

CHECK, VOTES = "check", "votes"


@dataclass(frozen=True)
class NoisyVotes:
    """Confident-GNMax with two caps: on queries asked and on queries answered.

    Attributes:
        dataset_size: examples behind the teachers, as declared in the config.
        num_classes: length of a histogram of votes.
        threshold: least noisy largest entry that is answered, in votes.
        check_ratio: the check's noise over the answer's.
        max_checks: cap on queries asked.
        max_answers: cap on queries answered.
        target_epsilon: None without a budget.
        delta: in (0, 1).
        noise: True, False, or "secret" for randomness of the operating system.
        noise_multiplier: sigma_2, the standard deviation of an answer's noise, in votes; 0 without
            noise.
        seed: of an experiment that can be repeated.
    """

    dataset_size: int
    num_classes: int
    threshold: float
    check_ratio: float
    max_checks: int
    max_answers: int
    target_epsilon: float | None
    delta: float
    noise: bool | str
    noise_multiplier: float
    seed: int
    _secret: int | None = field(default=None, repr=False, compare=False)

    @property
    def root(self) -> int:
        """Root of teachers' shares, and of noise that can be repeated: the seed, or the secret."""
        return self.seed if self._secret is None else self._secret

    @property
    def check_std(self) -> float:
        """Standard deviation sigma_1 of a check's noise, in votes."""
        return self.check_ratio * self.noise_multiplier

    @property
    def releases(self) -> tuple[Release, Release]:
        """The releases of a query; their clip norms scale the noise."""
        check = CHECK_SENSITIVITY / self.check_ratio
        return (
            Release(CHECK, 1, self.check_ratio, check),
            Release(VOTES, self.num_classes, 1.0, VOTE_SENSITIVITY),
        )

    def noise_generator(self, release: str, query: int) -> torch.Generator | None:
        """Return the generator of one query's noise, on the CPU; None: the operating system's."""
        if self._secret is not None:
            return None
        return generator(self.root, f"noise/{release}", query)

    def epsilon(self) -> dict[str, float | None]:
        """Bounds on the run's epsilon for any votes, by accountant; None without noise."""
        if not self.noise:
            return {"rdp": None}
        return {**votes_epsilon(self._effective, self.delta)}

    @property
    def _effective(self) -> float:
        return effective_multiplier(
            self.check_std, self.noise_multiplier, self.max_checks, self.max_answers
        )

    def identity(self) -> dict[str, Any]:
        """Return the values that saved answers must match to be used."""
        return {
            "dataset_size": self.dataset_size,
            "checks": self.max_checks,
            "answers": self.max_answers,
            "threshold": self.threshold,
            "target epsilon": self.target_epsilon,
            "delta": self.delta,
            "noise": self.noise,
            "noise_multiplier": self.noise_multiplier,
            "check_ratio": self.check_ratio,
            "seed": self.seed,
        }

    @property
    def deviations(self) -> list[str]:
        """Return, in words, how this run departs from a replayable guarantee."""
        said = {
            words.NO_NOISE: not self.noise,
            words.SECRET: self.noise == "secret",
            words.LARGE_DELTA: bool(self.noise) and self.delta >= 1 / self.dataset_size,
        }
        return [sentence for sentence, holds in said.items() if holds]

    def certificate(
        self,
        *,
        asked: np.ndarray,
        answered: np.ndarray,
        draws: Mapping[str, int],
        trainable: Mapping[str, int],
        frozen: Mapping[str, int],
        public: Mapping[str, Any],
        remarks: list[str],
    ) -> dict[str, Any]:
        """Return what was released and what it cost, as plain JSON.

        Args:
            asked: histograms of the queries that were checked, [n, classes].
            answered: of those that were answered, [m, classes].
            draws: how often noise was drawn, by release.
            trainable: the student's parameter names with their numbers of entries.
            frozen: likewise.
            public: description and number of the public examples.
            remarks: further deviations from the claim.
        """
        dependent = None
        if self.noise:
            dependent = data_dependent_epsilon(
                asked, answered, self.threshold, self.check_std, self.noise_multiplier, self.delta
            )
        check, votes = self.releases
        return {
            "mechanism": words.CONFIDENT_GNMAX,
            "neighbouring": words.VOTING_NEIGHBOURS,
            "sampling": words.NOT_SAMPLED,
            "q": 1.0,
            "dataset_size": self.dataset_size,
            "steps": len(asked),
            "answers": len(answered),
            "noise_draws": sum(draws.values()),
            "noise_multiplier": self.noise_multiplier,
            "effective_noise_multiplier": self._effective if self.noise else 0.0,
            "threshold": self.threshold,
            "releases": [
                _stated(check, self.check_std, self.max_checks, draws[CHECK]),
                _stated(votes, self.noise_multiplier, self.max_answers, draws[VOTES]),
            ],
            "epsilon": self.epsilon(),
            "data_dependent_epsilon": {
                "rdp": dependent,
                "note": "computed from the teachers' votes: itself not private, no guarantee",
            },
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "calibrated_by": "rdp" if self.noise else "none",
            "replayable": self.noise != "secret",
            "trainable": dict(trainable),
            "frozen": dict(frozen),
            "public": dict(public),
            "deviations": [*self.deviations, *remarks],
        }


def _stated(release: Release, std: float, at_most: int, drawn: int) -> dict[str, Any]:
    sensitivity = release.sensitivity * release.clip_norm
    return {
        "name": release.name,
        "dimension": release.dimension,
        "sensitivity": sensitivity,  # of what it is about, in votes
        "noise_std": std,  # likewise
        "at_most": at_most,
        "drawn": drawn,
    }


def build_votes(
    privacy: Mapping[str, Any],
    *,
    dataset_size: int,
    num_classes: int,
    threshold: float,
    check_ratio: float,
    max_checks: int,
    max_answers: int,
    seed: int,
) -> NoisyVotes:
    """Return the run's frozen mechanism, with noise calibrated to the budget.

    Args:
        privacy: eps (> 0; may be None without noise), delta, noise (True, False or "secret").
        dataset_size: examples behind the teachers.
        num_classes: length of a histogram of votes, >= 2.
        threshold: least noisy largest entry that is answered, in votes.
        check_ratio: the check's noise over the answer's, > 0.
        max_checks: cap on queries asked, >= 1.
        max_answers: cap on queries answered, in [1, max_checks].
        seed: of an experiment that can be repeated.

    Raises:
        ConfigError: for an invalid budget.
    """
    check_privacy(privacy, dataset_size)
    epsilon, delta, noise = privacy["eps"], float(privacy["delta"]), privacy["noise"]
    multiplier = 0.0
    if noise:
        unit = effective_multiplier(check_ratio, 1.0, max_checks, max_answers)
        multiplier = calibrate_votes(float(epsilon), delta) / unit
        stds = {CHECK_SENSITIVITY: check_ratio * multiplier, VOTE_SENSITIVITY: multiplier}
        counts = (max_checks, max_answers)
        parts = [Part(1.0, std / s, n) for (s, std), n in zip(stds.items(), counts, strict=True)]
        confirm(tuple(parts), delta, float(epsilon))
    return NoisyVotes(
        dataset_size=dataset_size,
        num_classes=num_classes,
        threshold=threshold,
        check_ratio=check_ratio,
        max_checks=max_checks,
        max_answers=max_answers,
        target_epsilon=float(epsilon) if noise else None,
        delta=delta,
        noise=noise,
        noise_multiplier=multiplier,
        seed=seed,
        _secret=new_secret() if noise == "secret" else None,
    )
