"""The likelihood ratio attack on membership (Carlini et al. 2022, arXiv 2112.03570).

Index legend: k models, n examples, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from dpexp.attacks.roc import Roc, roc
from dpexp.types import ConfigError

LEAST = 4
"""Models; with three, an example is seldom both in and out of a target's two shadows (ours)."""

FEW = 64
"""Shadows; with fewer, all examples share a variance (their ablation over shadow models)."""

ATTACKS = {
    "online": "LiRA, online",
    "offline": "LiRA, offline",
    "threshold": "loss threshold",
}
"""What is tried on each target, and how readers know it."""


def confidences(logits: Tensor, targets: Tensor) -> Tensor:
    """Return log(p / (1 - p)), p being the probability of an example's own class (Section IV-C).

    Of logits z that is z_y - log sum_{j != y} exp z_j, which no p near one can overflow.

    Args:
        logits: [n, c], c >= 2, float64 and finite.
        targets: [n], class indices.

    Returns:
        [n]; the cross-entropy is log(1 + exp(-it)), a falling function of it.
    """
    own = targets[:, None]
    rest = logits.scatter(1, own, -torch.inf).logsumexp(1)
    return logits.gather(1, own).squeeze(1) - rest


class Gaussian(NamedTuple):
    """What is known of each example's confidence, in models that held it or that did not.

    Attributes:
        mean: [n], NaN where no model is known.
        std: [n], or one number that all examples share.
    """

    mean: np.ndarray
    std: np.ndarray


def fit(values: np.ndarray, mask: np.ndarray, *, is_shared: bool) -> Gaussian:
    """Fit each example's mean, and its variance or one for all, to the chosen models' confidences.

    The shared variance is about each example's own mean. (The authors' code takes the variance
    about the mean over all examples, which counts how examples differ from each other.)

    Args:
        values: confidences [k, n].
        mask: which of them to take, [k, n].
        is_shared: whether all examples have one variance.
    """
    counts = mask.sum(0)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN that says "not known"
        mean = np.where(mask, values, 0.0).sum(0) / counts
        squares = (np.where(mask, values - mean, 0.0) ** 2).sum(0)
        freedom = np.maximum(counts - 1, 0)
        if is_shared:
            squares, freedom = squares.sum(), freedom.sum()
        return Gaussian(mean, np.sqrt(squares / freedom))


def online(observed: np.ndarray, inside: Gaussian, outside: Gaussian) -> np.ndarray:
    """Return the log likelihood ratio of "trained on" to "not" (Algorithm 1), [n]."""
    return norm.logpdf(observed, *inside) - norm.logpdf(observed, *outside)


def offline(observed: np.ndarray, outside: Gaussian) -> np.ndarray:
    """Return how far a confidence lies above those of models without the example (Eq. 4), [n].

    In standard deviations, of which the one-sided probability is a rising function that would round
    to one.
    """
    return (observed - outside.mean) / outside.std


def attack(values: np.ndarray, is_member: np.ndarray) -> dict[str, np.ndarray]:
    """Attack each model in turn, with all the others as its shadows.

    Args:
        values: confidences [k, n].
        is_member: which examples each model was trained on, [k, n].

    Returns:
        Scores [k, n] by `ATTACKS`, the higher the more likely a member; the threshold's are the
        confidences themselves, which order examples as their losses do. NaN, for all attacks alike,
        where all of a target's shadows held the example, or none.

    Raises:
        ConfigError: there are fewer than `LEAST` models.
    """
    num = len(values)
    if num < LEAST:
        raise ConfigError(f"Expected shadows >= {LEAST}; got shadows={num}. Set shadows.")
    scores = {name: np.empty(values.shape) for name in ATTACKS}
    for target in range(num):
        shadows = np.arange(num) != target
        masks = is_member[shadows], ~is_member[shadows]
        inside, outside = (fit(values[shadows], mask, is_shared=num - 1 < FEW) for mask in masks)
        of_target = {
            "online": online(values[target], inside, outside),
            "offline": offline(values[target], outside),
            "threshold": values[target],
        }
        is_known = np.isfinite(of_target["online"])
        for name, those in of_target.items():
            scores[name][target] = np.where(is_known, those, np.nan)
    return scores


@dataclass(frozen=True)
class Attacked:
    """A method's models under attack; index legend: k models, n examples.

    Attributes:
        label: as readers know it.
        accuracy: of each model on the test set, in percent, [k].
        is_member: [k, n].
        scores: [k, n] by attack (one of `ATTACKS`).
        curves: of all models' scores together, by attack.
    """

    label: str
    accuracy: np.ndarray
    is_member: np.ndarray
    scores: dict[str, np.ndarray]
    curves: dict[str, Roc] = field(init=False)

    def __post_init__(self):
        curves = {name: roc(scores, self.is_member) for name, scores in self.scores.items()}
        object.__setattr__(self, "curves", curves)

    @property
    def others(self) -> int:
        """Count the examples that a single model was not trained on."""
        return int((~self.is_member[0]).sum())

    def of_each(self, attack: str) -> list[Roc]:
        """Return the curve of each model alone."""
        return [roc(*some) for some in zip(self.scores[attack], self.is_member, strict=True)]
