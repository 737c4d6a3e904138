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
from dpexp.training.train import Findings, Parts
from dpexp.types import ConfigError, State


def require_classes(task: Any, setting: str) -> None:
    """Check that a task is one whose examples have a probability of being right.

    Args:
        task: to be attacked.
        setting: what asks for that, for errors.

    Raises:
        ConfigError: it is a regression.
    """
    if task.loss is not cross_entropy:
        raise ConfigError(
            f"Expected a task of classes for {setting}, which looks at the probability of "
            f"an example's class; got task={task.name}. Set task."
        )


@torch.no_grad()
def logits_of(model: nn.Module, examples: Any, device: torch.device) -> Tensor:
    """Return the model's logits in eval mode, [n, c] in float64 on the CPU, in the examples' order.

    Args:
        model: trained.
        examples: of a task; its micro-batches may come in an order of their own.
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
    """How well a threshold tells members from others.

    Attributes:
        threshold: "member" is said of losses up to it.
        percent: of the examples told right; 50 is chance.
        standard_error: of that, in percent, for this model and threshold: examples are drawn anew.
        found_on: examples that the threshold was chosen on, half of them members.
        scored_on: other ones, which the percentage is of; half of them members.
    """

    threshold: float
    percent: float
    standard_error: float
    found_on: int
    scored_on: int


def best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """Find the loss up to which saying "member" is right most often; -inf: it is best never to.

    It lies half way between the last loss below and the next one above.

    Args:
        members: losses [m].
        others: losses [m] of as many examples.
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
        others: losses [m] of as many examples that were not trained on, in random order.
    """
    half = len(members) // 2
    threshold = best_threshold(members[:half], others[:half])
    true, false = (float(np.mean(losses[half:] <= threshold)) for losses in (members, others))
    num = len(members) - half
    variance = (true * (1 - true) + false * (1 - false)) / (4 * num)
    return Success(threshold, 50.0 * (1 + true - false), 100.0 * variance**0.5, 2 * half, 2 * num)


class LossThreshold:
    """Says that an example was trained on where its loss is small (rgp, arXiv 2106.09352).

    Section 5.3, after Sablayrolles et al. (2019): the whole test set and as many random training
    examples, one half to choose the threshold on, the other to score it.

    Differences from the paper:
        1. Where the test set is the larger one, as many random test examples are taken as there
           are training examples, so that guessing is right half of the time.
        2. Both halves hold as many members as others.
    """

    deviation = (
        "attacked: attack_success and scores.npz are of training examples' losses, without noise: "
        "they are not covered"
    )

    def stage(self, parts: Parts, seed: int) -> Parts:
        """Check that the run can be attacked; it trains as it would have.

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
            some = examples.take(torch.randperm(len(examples), generator=gen)[:size])
            logits = logits_of(parts.model, some, device)
            return F.cross_entropy(logits, some.targets.cpu(), reduction="none").numpy()

        members, others = losses(train), losses(test)
        found = attack(members, others)
        numbers = {
            "attack_success": found.percent,
            "attack_success_se": found.standard_error,
            "attack_threshold": found.threshold,
            "attack_found_on": found.found_on,
            "attack_scored_on": found.scored_on,
        }
        return Findings(numbers, {"member_losses": members, "other_losses": others})
