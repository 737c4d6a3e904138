"""Evaluate a model on its test sets."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpexp.data import LossFn, accuracy, are_finite
from dpexp.distributed import memory
from dpexp.kernels import fast_kernels
from dpexp.models.mode import in_mode
from dpexp.records import NONFINITE
from dpexp.types import ConfigError

EVAL_BATCH = 125  # ours; changes no result


class Scores(NamedTuple):
    """A model's scores on examples.

    Attributes:
        each: every example's score, [n] on the CPU.
        mean: of the scores.
        nonfinite: number of outputs that are not finite.
    """

    each: Tensor
    mean: float
    nonfinite: int


def judge(
    model: nn.Module, task: Any, device: torch.device, is_last: bool
) -> tuple[dict[str, float | None], dict[str, Tensor]]:
    """Evaluate the model on every test set, and at the end on what was held out of training.

    Args:
        model: as it is now.
        task: with its test sets.
        device: the model's.
        is_last: whether this is the run's last evaluation.

    Returns:
        A dict with the task's metric by name, its mean if there are several test sets, that of the
        held-out examples, which is None before the end, and the number of outputs that are not
        finite, over all sets. A dict of which examples are right, [n] bool, by name, for scores
        that count right examples and sets other than the training set.
    """
    tests = {task.metric: task.test, **task.also}
    judged = {name: scores(model, some, device, task.score) for name, some in tests.items()}
    values: dict[str, float | None] = {name: of_set.mean for name, of_set in judged.items()}
    if task.also:
        means = [of_set.mean for of_set in judged.values()]
        values[f"{task.metric}_mean"] = sum(means) / len(means)
    if task.holdout is not None:
        values[task.holdout_metric] = None
        if is_last:
            tests[task.holdout_metric] = task.holdout
            judged[task.holdout_metric] = scores(model, task.holdout, device, task.score)
            values[task.holdout_metric] = judged[task.holdout_metric].mean
    values[NONFINITE] = sum(of_set.nonfinite for of_set in judged.values())
    counts = task.score is accuracy
    right = {
        name: judged[name].each > 0
        for name, some in tests.items()
        if counts and some is not task.train
    }
    return values, right


def evaluate(
    model: nn.Module, examples: Any, device: torch.device, score: LossFn = accuracy
) -> float:
    """Return the mean score over examples, in eval mode; by default the percentage correct."""
    return scores(model, examples, device, score).mean


@torch.no_grad()
@fast_kernels()
def scores(model: nn.Module, examples: Any, device: torch.device, score: LossFn) -> Scores:
    """Return the scores of examples in eval mode.

    Raises:
        ConfigError: the score is not of each example.
    """

    def judged(size: int) -> Scores:
        each, total, nonfinite = torch.empty(len(examples)), 0.0, 0
        for indices in examples.micro_batches(torch.arange(len(examples)), size):
            batch = examples.batch(indices).to(device)
            outputs = model(batch.inputs)
            values = score(outputs, batch.targets)
            if not torch.is_tensor(values):
                raise ConfigError(
                    f"Expected a score of each of {len(batch.targets)} examples as a tensor; the "
                    f"task's gives one of type {type(values).__name__}. Compute it with torch."
                )
            if values.shape != batch.targets.shape[:1]:  # a mean of a task of someone's own
                raise ConfigError(
                    f"Expected a score of each of {len(batch.targets)} examples; the task's gives "
                    f"shape {list(values.shape)}. Leave out its mean or sum."
                )
            each[indices.cpu()] = values.to("cpu", each.dtype)
            total += float(values.sum())
            nonfinite += int((~are_finite(outputs)).sum())
        return Scores(each, total, nonfinite)

    with in_mode(model, is_training=False):
        of_all, _ = memory.halving(judged, EVAL_BATCH, "examples judged at once")
    return of_all._replace(mean=of_all.mean / len(examples))
