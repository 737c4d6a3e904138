"""The ROC curve of a membership attack, and measures derived from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Roc:
    """An attack's true and false positive rates for decreasing thresholds.

    Attributes:
        fpr: share of the non-members classified as members, increasing from 0 to 1.
        tpr: share of the members classified as members.
        num_nonmembers: their number; the smallest nonzero fpr is one over it.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    num_nonmembers: int

    @property
    def auc(self) -> float:
        """Area under the curve; 0.5 is chance."""
        from sklearn.metrics import auc  # slow to import

        return float(auc(self.fpr, self.tpr))

    @property
    def balanced_accuracy(self) -> float:
        """Best balanced accuracy of all thresholds.

        The threshold is chosen on the same scores, so with few scores chance is a little above 0.5.
        """
        return float(np.max(1 + self.tpr - self.fpr) / 2)

    def tpr_at(self, fpr: float | np.ndarray) -> np.ndarray:
        """Return the largest true positive rate at a false positive rate, without interpolation.

        Args:
            fpr: rates in [0, 1].
        """
        return self.tpr[np.searchsorted(self.fpr, fpr, side="right") - 1]


def roc(scores: np.ndarray, is_member: np.ndarray) -> Roc:
    """Return the ROC curve of scores.

    Args:
        scores: of any shape; a higher score means more likely a member; NaN is left out.
        is_member: of the same shape; both classes must remain.
    """
    from sklearn.metrics import roc_curve

    is_known = np.isfinite(scores)
    truth = is_member[is_known]
    fpr, tpr, _ = roc_curve(truth, scores[is_known], drop_intermediate=False)
    return Roc(fpr, tpr, int((~truth).sum()))
