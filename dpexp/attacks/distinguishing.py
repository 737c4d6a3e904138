"""The distinguishing game: many short runs with one canary in them, as many without.

The trials are of the suite's own pipeline (`dpexp.training.gradient`), on a model that stands
still. Every real example is left out and the canary takes part in every step: of all neighbouring
data sets those that are told apart best. The mechanism is then a plain one, not subsampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpexp.attacks.bounds import Errors, tell_apart
from dpexp.attacks.bounds_curves import gaussian_epsilon
from dpexp.attacks.canaries import Canaried
from dpexp.attacks.canaries_tipped import Tipped
from dpexp.attacks.mislabelled import Thinned
from dpexp.distributed.ranks import Ranks
from dpexp.pate.stages import ask
from dpexp.pate.votes import NoisyVotes
from dpexp.privacy import Mechanism
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train import Parts
from dpexp.types import Method


@dataclass(frozen=True)
class Verdict:
    """What the trials of a distinguishing game show.

    Attributes:
        errors: at the threshold that is best for (epsilon, delta)-privacy.
        epsilon_lower: bound on epsilon that supposes nothing.
        epsilon_lower_gaussian: by Gaussian differential privacy: it supposes the trade-off curve of
            a Gaussian mechanism, which composed ones have too. None where the noise is another.
    """

    errors: Errors
    epsilon_lower: float
    epsilon_lower_gaussian: float | None


def judge(
    without: np.ndarray, within: np.ndarray, *, delta: float, confidence: float, is_gaussian: bool
) -> Verdict:
    """Bound epsilon by how well trials are told apart.

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
    """Score trials of a method: the canary's score after all steps, without it and with it.

    Args:
        parts: the model is left as it is.
        mechanism: of one trial; every example of the batch takes part in every step.
        num_trials: in either world.
    """
    clip_norm = mechanism.releases[0].clip_norm
    by_coordinate = any(release.clip == "coordinates" for release in mechanism.releases)

    def world(included: bool) -> Method:
        if by_coordinate:
            size = mechanism.batch_size
            return Tipped(parts.method, included=included, clip_norm=clip_norm, batch_size=size)
        return Canaried(
            parts.method,
            kind="dirac",
            included=torch.tensor([included]),
            sampling_prob=1.0,
            clip_norm=clip_norm,
            batch_size=mechanism.batch_size,
            seed=mechanism.seed,
        )

    without = _scores(parts, world(False), mechanism, range(num_trials))
    within = _scores(parts, world(True), mechanism, range(num_trials, 2 * num_trials))
    return without, within


def _scores(parts: Parts, method: Method, mechanism: Mechanism, trials: range) -> np.ndarray:
    task, model, steps = parts.task, parts.model, mechanism.num_steps
    ranks = Ranks(0, 1, next(model.parameters()).device)
    absent = Thinned(task.train, torch.zeros(len(task.train), dtype=torch.bool))
    scores = []
    with PrivateGradient(model, method, mechanism, ranks, 1, task.public, task.loss) as gradient:
        for trial in trials:
            state = method.start(model)
            # Steps go on from trial to trial: noise of its own for each.
            for step in range(trial * steps, (trial + 1) * steps):
                state = gradient(state, absent, step).state
            scores.append(float(state["scores"]))
    return np.array(scores)


def of_votes(
    mechanism: NoisyVotes, teachers: int, num_trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Score trials of PATE: how often the second of two classes is answered, less the first.

    The teachers are all but evenly split on every query; in the second world one of them, whose
    examples differ by one, says the second class in place of the first. All that is looked at is
    what is answered.

    Args:
        mechanism: its noise, threshold and caps.
        teachers: how many vote.
        num_trials: in either world.
    """
    first = teachers // 2 + 1
    split = torch.tensor([first, teachers - first], dtype=torch.float64)
    changed = split + torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def scores(histogram: Tensor, trials: range) -> np.ndarray:
        votes = histogram.repeat(mechanism.max_checks, 1)
        answers = (ask(votes, replace(mechanism, seed=trial)).labels for trial in trials)
        return np.array([float((2 * labels - 1).sum()) for labels in answers])

    return scores(split, range(num_trials)), scores(changed, range(num_trials, 2 * num_trials))
