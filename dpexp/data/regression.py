"""Linear regression: its loss, its metric, and a generated set that needs no download."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpexp.data.examples import Examples
from dpexp.data.task import Task, assemble
from dpexp.types import ConfigError


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sum (output - target)^2 over the examples, outputs [n, 1], targets [n]."""
    return (outputs[:, 0] - targets).square().sum()


def relative_loss(outputs: Tensor, targets: Tensor, least: float) -> Tensor:
    """Return each example's term of f(theta) / f(theta*) - 1, [n], where f(theta*) = least.

    Source: compressive, Section 4.
    """
    return (outputs[:, 0] - targets).double().square() / least - 1


def regress(name: str, examples: Examples, *, delta: float, dataset_size: int) -> Task:
    """Return a regression task that is evaluated on its training set, as in compressive.

    theta* and its loss have a closed form. The metric is computed from private examples; it is not
    covered by the guarantee.

    Raises:
        ConfigError: the training set does not hold dataset_size examples.
    """
    task = assemble(name, examples, examples, num_classes=1, delta=delta, dataset_size=dataset_size)
    x, y = examples.inputs.double().numpy(), examples.targets.double().numpy()
    least = float(np.mean((y - x @ np.linalg.lstsq(x, y)[0]) ** 2))
    return replace(
        task,
        metric="relative_loss",
        loss=squared_error,
        score=partial(relative_loss, least=least),
    )


def regression(
    *, name: str, num_features: int, noise: float, data_seed: int, dataset_size: int, delta: float
) -> Task:
    """Draw y = theta^T x + noise, x uniform on [0, 1], a few entries of theta far above the rest.

    Args:
        name: as in conf/task.
        num_features: d >= 1; theta_j falls as 1 / j, with alternating signs.
        noise: standard deviation of y about its mean, > 0.
        data_seed: seed of the data, separate from a run's seed: all runs share the data.
        dataset_size: number of examples.
        delta: of the (eps, delta) guarantee.

    Raises:
        ConfigError: for a value outside its range.
    """
    if num_features < 1 or not noise > 0:
        raise ConfigError(
            "Expected task.num_features >= 1 and task.noise > 0; got "
            f"{num_features} and {noise}. Set them."
        )
    rng = np.random.default_rng(data_seed)
    x = rng.uniform(size=(dataset_size, num_features))
    theta = (-1.0) ** np.arange(num_features) / np.arange(1, num_features + 1)
    y = x @ theta + noise * rng.standard_normal(dataset_size)
    examples = Examples(torch.from_numpy(x).float(), torch.from_numpy(y).float())
    return regress(name, examples, delta=delta, dataset_size=dataset_size)
