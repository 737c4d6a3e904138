"""How well scores tell members from others: the ROC curve and what is read off it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import auc, roc_curve


@dataclass(frozen=True)
class Roc:
    """An attack's true positives over its false positives, as its threshold falls.

    Attributes:
        fpr: share of the non-members that is taken for members, rising from 0 to 1.
        tpr: share of the members that is.
        num_nonmembers: the smallest share of them but 0 is one over that.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    num_nonmembers: int

    @property
    def auc(self) -> float:
        """Area under the curve; 0.5 is chance."""
        return float(auc(self.fpr, self.tpr))

    @property
    def balanced_accuracy(self) -> float:
        """Return the best mean of both groups' shares told right.

        Of all thresholds on these very scores: on few of them chance is a little above 0.5.
        """
        return float(np.max(1 + self.tpr - self.fpr) / 2)

    def tpr_at(self, fpr: float | np.ndarray) -> np.ndarray:
        """Return the largest true positive rate at a false positive rate, without interpolation.

        Args:
            fpr: rates in [0, 1].
        """
        return self.tpr[np.searchsorted(self.fpr, fpr, side="right") - 1]


def roc(scores: np.ndarray, is_member: np.ndarray) -> Roc:
    """Draw the curve.

    Args:
        scores: of any shape, the higher the more likely a member; NaN is left out.
        is_member: of that shape, with both kinds among what is left.
    """
    is_known = np.isfinite(scores)
    truth = is_member[is_known]
    fpr, tpr, _ = roc_curve(truth, scores[is_known], drop_intermediate=False)
    return Roc(fpr, tpr, int((~truth).sum()))
