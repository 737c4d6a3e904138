"""Scikit-learn's handwritten digits: real data that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import torch
from torch import Tensor

from dpexp.data.cache import decoded
from dpexp.data.examples import Examples
from dpexp.data.labels import DIGITS
from dpexp.data.preprocessing import Images
from dpexp.data.task import Task, assemble

DARKEST = 16.0
"""Largest pixel value of this set; pixels are counts from 0 to 16."""


def digits(
    *,
    name: str,
    test_size: int,
    split_seed: int,
    mean: Sequence[float],
    std: Sequence[float],
    dataset_size: int,
    delta: float,
) -> Task:
    """Load the 1,797 digits, 1 x 8 x 8, and split them.

    The result is cached, because importing scikit-learn takes longer than the rest.

    Args:
        name: as in conf/task.
        test_size: number of test examples; the split is stratified by class.
        split_seed: seed of the split, separate from a run's seed: all runs share a test set.
        mean: of the inputs in [0, 1], one number.
        std: likewise, > 0.
        dataset_size: required number of training examples.
        delta: of the (eps, delta) guarantee.

    Raises:
        ConfigError: the training set does not hold dataset_size examples.
    """
    recipe = f"digits of scikit-learn {version('scikit-learn')}, {test_size}, {split_seed}"
    parts = decoded((), recipe, lambda: _split(test_size, split_seed))
    train_x, train_y, test_x, test_y = parts
    train, test = (
        Examples((x / DARKEST).float().view(-1, 1, 8, 8), y.long(), tuple(mean), tuple(std))
        for x, y in ((train_x, train_y), (test_x, test_y))
    )
    return assemble(
        name,
        train,
        test,
        num_classes=10,
        delta=delta,
        dataset_size=dataset_size,
        preprocessing=Images((1, 8, 8), tuple(mean), tuple(std), DIGITS),
    )


def _split(test_size: int, seed: int) -> tuple[Tensor, ...]:
    """Return training images and labels, then test images and labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=test_size, random_state=seed, stratify=labels
    )
    return tuple(torch.from_numpy(part) for part in (train_x, train_y, test_x, test_y))
