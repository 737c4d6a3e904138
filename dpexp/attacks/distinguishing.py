"""The distinguishing game: many short trials with one canary, and as many without.

Trials use the suite's own pipeline (`dpexp.training.gradient`) on a model that is not updated. All
real examples are left out and the canary is sampled in every step: these neighbouring data sets are
the easiest to distinguish. The mechanism is then not subsampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpexp.attacks.bounds import Errors, tell_apart
from dpexp.attacks.bounds_curves import gaussian_epsilon
from dpexp.attacks.canaries import SCORES, Canaried, weights_of
from dpexp.attacks.canaries_tipped import Tipped
from dpexp.attacks.mislabelled import Thinned
from dpexp.distributed.ranks import Ranks
from dpexp.pate.stages import ask
from dpexp.pate.votes import NoisyVotes
from dpexp.privacy import Mechanism
from dpexp.training.gradient import PrivateGradient
from dpexp.training.parts import Parts
from dpexp.types import Method, first_weight


@dataclass(frozen=True)
class Verdict:
    """The result of a distinguishing game.

    Attributes:
        errors: at the best threshold for (epsilon, delta)-privacy.
        epsilon_lower: lower bound on epsilon without further assumptions.
        epsilon_lower_gaussian: the same by Gaussian differential privacy. It assumes the trade-off
            curve of a Gaussian mechanism, which compositions also have. None for other noise.
    """

    errors: Errors
    epsilon_lower: float
    epsilon_lower_gaussian: float | None


def judge(
    without: np.ndarray, within: np.ndarray, *, delta: float, confidence: float, is_gaussian: bool
) -> Verdict:
    """Return lower bounds on epsilon from the errors in distinguishing trials.

    Args:
        without: scores of trials without the canary, [n].
        within: of trials with it, [n].
        delta: in [0, 1).
        confidence: of each bound, in (0, 1).
        is_gaussian: whether the mechanism claims to be Gaussian.
    """
    errors = tell_apart(without, within, lambda some: some.epsilon_lower(delta, confidence))
    gaussian = None
    if is_gaussian:
        best = tell_apart(without, within, lambda some: some.mu_lower(confidence))
        gaussian = gaussian_epsilon(best.mu_lower(confidence), delta)
    return Verdict(errors, errors.epsilon_lower(delta, confidence), gaussian)


def of_steps(parts: Parts, mechanism: Mechanism, num_trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the canary's scores in trials of a method, without and with it, [num_trials] each.

    Args:
        parts: of the run; the model is not changed.
        mechanism: of one trial; every example of the batch is used in every step.
        num_trials: without and with the canary each.
    """
    clip_norm = mechanism.releases[0].clip_norm
    by_coordinate = any(release.clip == "coordinates" for release in mechanism.releases)

    def with_canary(included: bool) -> Method:
        if by_coordinate:
            size = mechanism.batch_size
            return Tipped(parts.method, included=included, clip_norm=clip_norm, batch_size=size)
        canaried = Canaried(
            parts.method,
            kind="dirac",
            included=torch.tensor([included]),
            sampling_prob=1.0,
            clip_norm=clip_norm,
            batch_size=mechanism.batch_size,
            seed=mechanism.seed,
        )
        canaried.correlate(mechanism, groups=torch.zeros(1, dtype=torch.int64))
        return canaried

    without = _scores(parts, with_canary(False), mechanism, range(num_trials))
    within = _scores(parts, with_canary(True), mechanism, range(num_trials, 2 * num_trials))
    # By how loud the noise was in the trials that choose the threshold.
    weights = weights_of(without[: num_trials // 2])
    return without @ weights, within @ weights


def _scores(parts: Parts, method: Method, mechanism: Mechanism, trials: range) -> np.ndarray:
    """Return every trial's scores by kind, [trials, kinds]."""
    task, model, steps = parts.task, parts.model, mechanism.num_steps
    ranks = Ranks(0, 1, first_weight(model).device)
    absent = Thinned(task.train, torch.zeros(len(task.train), dtype=torch.bool))
    scores = []
    with PrivateGradient(
        model, method, mechanism, ranks, 1, task.public, task.loss, clipping=parts.clipping
    ) as gradient:
        for trial in trials:
            state, past = method.start(model), None
            # Step numbers continue across trials, so that each trial gets its own noise.
            for step in range(trial * steps, (trial + 1) * steps):
                outcome = gradient(state, absent, step, past_noise=past)
                state, past = outcome.state, outcome.past_noise
            scores.append([float(state[kind]) for kind in SCORES if kind in state])
    return np.array(scores)


def of_votes(
    mechanism: NoisyVotes, teachers: int, num_trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of trials of PATE: answers of the second class minus those of the first.

    The teachers are almost evenly split on every query. With the canary, one of them votes for the
    second class instead of the first, because its examples differ by one. Scores depend only on the
    released answers.

    Args:
        mechanism: gives noise, threshold and caps.
        teachers: number of votes.
        num_trials: without and with the canary each.
    """
    first = teachers // 2 + 1
    split = torch.tensor([first, teachers - first], dtype=torch.float64)
    changed = split + torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def scores(histogram: Tensor, trials: range) -> np.ndarray:
        votes = histogram.repeat(mechanism.max_checks, 1)
        answers = (ask(votes, replace(mechanism, seed=trial)).labels for trial in trials)
        return np.array([float((2 * labels - 1).sum()) for labels in answers])

    return scores(split, range(num_trials)), scores(changed, range(num_trials, 2 * num_trials))
