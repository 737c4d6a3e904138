"""Membership inference by a threshold on the loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_curve
from torch import Tensor, nn

from dpexp.data import cross_entropy
from dpexp.distributed import memory
from dpexp.models.mode import in_mode
from dpexp.privacy import Mechanism
from dpexp.privacy.seeds import generator
from dpexp.training.judging import EVAL_BATCH
from dpexp.training.parts import Findings, Parts
from dpexp.types import ConfigError, State


def require_classes(task: Any, setting: str) -> None:
    """Check that a task is a classification.

    Args:
        task: to be attacked.
        setting: that requires it, for messages.

    Raises:
        ConfigError: it is a regression.
    """
    if task.loss is not cross_entropy:
        raise ConfigError(
            f"Expected a task of classes for {setting}, which uses the probability of an "
            f"example's class; got task={task.name}. Leave {setting} out, or set another task."
        )


@torch.no_grad()
def logits_of(model: nn.Module, examples: Any, device: torch.device) -> Tensor:
    """Return the model's logits in eval mode, [n, c] in float64 on the CPU, in the examples' order.

    Args:
        model: trained.
        examples: of a task; their micro-batches may be in another order.
        device: the model's.

    Raises:
        ConfigError: some are not finite.
    """

    def outputs(size: int) -> Tensor:
        places, rows = [], []
        for some in examples.micro_batches(torch.arange(len(examples)), size):
            places.append(some)
            rows.append(model(examples.batch(some).to(device).inputs).cpu().double())
        return torch.cat(rows)[torch.cat(places).argsort()]

    with in_mode(model, is_training=False):
        logits, _ = memory.halving(outputs, EVAL_BATCH, "examples attacked at once")
    if not logits.isfinite().all():
        raise ConfigError(
            "Expected finite logits of the model to attack; training diverged. "
            "Set a smaller optimizer.lr."
        )
    return logits


class Success(NamedTuple):
    """Success of a threshold attack.

    Attributes:
        threshold: losses up to it are classified as members.
        percent: of the examples classified correctly; 50 is chance.
        standard_error: of that, in percent, over draws of examples for this model and threshold.
        found_on: number of examples the threshold was chosen on, half of them members.
        scored_on: number of other examples it was scored on, half of them members.
    """

    threshold: float
    percent: float
    standard_error: float
    found_on: int
    scored_on: int


def best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """Return the threshold on the loss that classifies most examples correctly.

    It is half way between the last loss below and the next one above; -inf if it is best to
    classify none as members.

    Args:
        members: losses [m].
        others: losses [m] of non-members.
    """
    is_member = np.repeat([1, 0], [len(members), len(others)])
    losses = np.concatenate([members, others])
    false, true, scores = roc_curve(is_member, -losses, drop_intermediate=False)
    best = int(np.argmax(true - false))
    return -float(scores[best : best + 2].mean())


def attack(members: np.ndarray, others: np.ndarray) -> Success:
    """Choose a threshold on the first half of the losses and score it on the second.

    Args:
        members: losses [m] of training examples in random order, m >= 2.
        others: losses [m] of examples that were not trained on, in random order.
    """
    half = len(members) // 2
    threshold = best_threshold(members[:half], others[:half])
    true, false = (float(np.mean(losses[half:] <= threshold)) for losses in (members, others))
    num = len(members) - half
    variance = (true * (1 - true) + false * (1 - false)) / (4 * num)
    return Success(threshold, 50.0 * (1 + true - false), 100.0 * variance**0.5, 2 * half, 2 * num)


class LossThreshold:
    """Classifies an example as a member if its loss is small (rgp, arXiv 2106.09352).

    Section 5.3, after Sablayrolles et al. (2019): the whole test set and as many random training
    examples; the threshold is chosen on one half and scored on the other.

    Differences from the paper:
        1. If the test set is larger, as many random test examples are used as there are training
           examples, so that random guessing succeeds half of the time.
        2. Both halves hold as many members as non-members.
    """

    deviation = (
        "attacked: attack_success and scores.npz are of training examples' losses, without noise: "
        "they are not covered"
    )

    def stage(self, parts: Parts, seed: int) -> Parts:
        """Return the parts unchanged, after checking that the run can be attacked.

        Raises:
            ConfigError: it is a regression, or has too few examples.
        """
        task = parts.task
        require_classes(task, "attack=loss_threshold")
        if min(len(task.train), len(task.test)) < 2:
            raise ConfigError(
                "Expected two or more training and test examples for attack=loss_threshold; got "
                f"{len(task.train)} and {len(task.test)}. Set task."
            )
        return parts

    def report(
        self, parts: Parts, state: State, mechanism: Mechanism, device: torch.device
    ) -> Findings:
        """Attack the trained model.

        Raises:
            ConfigError: training diverged.
        """
        train, test = parts.task.train, parts.task.test
        size = min(len(train), len(test))
        gen = generator(mechanism.seed, "attack", 0)

        def losses(examples: Any) -> np.ndarray:
            drawn = examples.take(torch.randperm(len(examples), generator=gen)[:size])
            logits = logits_of(parts.model, drawn, device)
            return F.cross_entropy(logits, drawn.targets.cpu(), reduction="none").numpy()

        members, others = losses(train), losses(test)
        success = attack(members, others)
        numbers = {
            "attack_success": success.percent,
            "attack_success_se": success.standard_error,
            "attack_threshold": success.threshold,
            "attack_found_on": success.found_on,
            "attack_scored_on": success.scored_on,
        }
        return Findings(numbers, {"member_losses": members, "other_losses": others})
