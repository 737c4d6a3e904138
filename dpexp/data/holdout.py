"""Training examples that are left out of training, and judged at the end.

The test set of a small task cannot tell two good methods apart: an accuracy of 90 % on 872
sentences has a standard error of one point. Methods that leave out the same 10,000 training
examples are compared on these, example by example.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from dpexp.data.examples import in_tensors
from dpexp.data.regression import regress, squared_error
from dpexp.data.task import Task
from dpexp.types import ConfigError

LARGEST_SEED = 2**63 - 1


def check_size(size: Any, total: int) -> int:
    """Return how many examples are held out, if that many can be.

    Args:
        size: as it was said.
        total: examples of the training set.

    Raises:
        ConfigError: it is no whole number in [1, total).
    """
    if type(size) is not int or not 1 <= size < total:
        got = "none was said" if size is None else f"got {size}"
        raise ConfigError(
            f"Expected holdout.size to be a whole number in [1, {total - 1}], as there are {total} "
            f"training examples; {got}. Set holdout.size."
        )
    return size


def hold_out(task: Task, *, size: int, split_seed: int) -> Task:
    """Return a task whose training set, and N, leave out a fixed random part of it.

    Which examples they are depends on nothing but the training set's size and the seed: they are
    the first of one permutation, so that a larger part holds a smaller one. Those that are left
    keep their order. A task that is judged on its training set is judged on what is left of it.

    Args:
        task: with its whole training set.
        size: examples to leave out, in [1, N).
        split_seed: of the permutation, in [0, 2^63).

    Raises:
        ConfigError: for a size or seed out of range.
    """
    total = len(task.train)
    check_size(size, total)
    if not 0 <= split_seed <= LARGEST_SEED:
        raise ConfigError(
            f"Expected holdout.split_seed in [0, {LARGEST_SEED}]; got {split_seed}. Set "
            "holdout.split_seed."
        )
    order = torch.randperm(total, generator=torch.Generator().manual_seed(split_seed))
    held, kept = task.train.take(order[:size]), task.train.take(order[size:].sort().values)
    left = replace(task, train=kept, dataset_size=len(kept))
    if task.test is task.train:
        left = replace(left, test=kept)
        if task.loss is squared_error:  # the metric's unit is the least loss on the training set
            fitted = regress(task.name, in_tensors(kept), delta=task.delta, dataset_size=len(kept))
            left = replace(left, score=fitted.score)
    left = replace(left, holdout=held)
    both = f"{task.fingerprint} {left.holdout_fingerprint}"
    return replace(left, fingerprint=hashlib.sha256(both.encode()).hexdigest())
