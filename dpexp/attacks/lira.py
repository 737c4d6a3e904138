"""The likelihood ratio attack on membership (Carlini et al. 2022, arXiv 2112.03570).

Index legend: k models, n examples, c classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpexp.attacks.roc import Roc, roc
from dpexp.types import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 4
"""Least number of models (ours): with three, a target has two shadow models, and an example is
seldom a member of one and not of the other."""

FEW = 64
"""With fewer shadow models, all examples share a variance (their ablation over shadow models)."""

ATTACKS = {
    "online": "LiRA, online",
    "offline": "LiRA, offline",
    "threshold": "loss threshold",
}
"""Attacks by name, with their labels."""


def confidences(logits: Tensor, targets: Tensor) -> Tensor:
    """Return log(p / (1 - p)), where p is the probability of an example's class (Section IV-C).

    In logits z it is z_y - log sum_{j != y} exp z_j, which does not overflow for p near one.

    Args:
        logits: [n, c], c >= 2, float64 and finite.
        targets: [n], class indices.

    Returns:
        [n]; the cross-entropy is log(1 + exp(-confidence)), a decreasing function of it.
    """
    index = targets[:, None]
    rest = logits.scatter(1, index, -math.inf).logsumexp(1)
    return logits.gather(1, index).squeeze(1) - rest


class Gaussian(NamedTuple):
    """The distribution of each example's confidence, over models trained with or without it.

    Attributes:
        mean: [n], NaN without such models.
        std: [n], or one number for all examples.
    """

    mean: np.ndarray
    std: np.ndarray


def fit(values: np.ndarray, mask: np.ndarray, *, is_shared: bool) -> Gaussian:
    """Fit a Gaussian to each example's confidences in the chosen models.

    A shared variance is taken about each example's mean. (The authors' code takes it about the mean
    over all examples, which includes the differences between examples.)

    Args:
        values: confidences [k, n].
        mask: which of them to use, [k, n].
        is_shared: whether all examples share a variance.
    """
    counts = mask.sum(0)
    with np.errstate(invalid="ignore"):  # 0 / 0 gives NaN: no models
        mean = np.where(mask, values, 0.0).sum(0) / counts
        squares = (np.where(mask, values - mean, 0.0) ** 2).sum(0)
        freedom = np.maximum(counts - 1, 0)
        if is_shared:
            squares, freedom = squares.sum(), freedom.sum()
        return Gaussian(mean, np.sqrt(squares / freedom))


def online(observed: np.ndarray, inside: Gaussian, outside: Gaussian) -> np.ndarray:
    """Return the log likelihood ratio of "trained on" to "not" (Algorithm 1), [n]."""
    from scipy.stats import norm  # takes a second, which a mistake in a command does not wait for

    return norm.logpdf(observed, *inside) - norm.logpdf(observed, *outside)


def offline(observed: np.ndarray, outside: Gaussian) -> np.ndarray:
    """Return how far a confidence exceeds those of models without the example (Eq. 4), [n].

    In standard deviations. The one-sided probability is an increasing function of this, but would
    round to one.
    """
    return (observed - outside.mean) / outside.std


def attack(values: np.ndarray, is_member: np.ndarray) -> dict[str, np.ndarray]:
    """Attack each model, with all others as its shadow models.

    Args:
        values: confidences [k, n].
        is_member: which examples each model was trained on, [k, n].

    Returns:
        Scores [k, n] by `ATTACKS`; a higher score means more likely a member. The scores of
        "threshold" are the confidences, which order examples as their losses do. All attacks give
        NaN if all of a target's shadow models were trained on the example, or none.

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
        for name, target_scores in of_target.items():
            scores[name][target] = np.where(is_known, target_scores, np.nan)
    return scores


@dataclass(frozen=True)
class Attacked:
    """A method's attacked models; index legend: k models, n examples.

    Attributes:
        label: the method's, for readers.
        accuracy: of each model on the test set, in percent, [k].
        is_member: [k, n].
        scores: [k, n] by attack (one of `ATTACKS`).
        remarks: how the models deviate from what their epsilon claims.
        curves: of all models' scores together, by attack.
    """

    label: str
    accuracy: np.ndarray
    is_member: np.ndarray
    scores: dict[str, np.ndarray]
    remarks: tuple[str, ...] = ()
    curves: dict[str, Roc] = field(init=False)

    def __post_init__(self):
        curves = {name: roc(scores, self.is_member) for name, scores in self.scores.items()}
        object.__setattr__(self, "curves", curves)

    @property
    def others(self) -> int:
        """Number of examples that a single model was not trained on."""
        return int((~self.is_member[0]).sum())

    def of_each(self, attack: str) -> list[Roc]:
        """Return the curve of each model alone."""
        pairs = zip(self.scores[attack], self.is_member, strict=True)
        return [roc(scores, is_member) for scores, is_member in pairs]
