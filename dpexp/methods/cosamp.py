"""CoSaMP: recover a sparse vector from few noisy measurements (Needell and Tropp 2009).

Algorithm 1 of compressive, for y = Psi z + noise, with Psi [p, n] and a kappa-sparse z:

    z <- 0, u <- y
    6 (kappa + 1) times:
        T <- the 2 kappa largest entries of Psi^T u, and the support of z        line 3
        b <- Psi_T^+ y on T, 0 elsewhere                                         lines 4-5
        z <- the kappa largest entries of b                                      lines 6-8
        u <- y - Psi z                                                           line 9

"Largest" is by absolute value.

Differences from the paper:
 1. The loop ends after a round that does not change z, as all later rounds would repeat it.
 2. The loop also ends when u is only rounding error. z has then been found, and T would be random.
    If T had more entries than there are measurements, b would lose z again.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 100.0  # ours: bound on u's rounding error, in units of eps |y|


def cosamp(psi: Tensor, kappa: int, y: Tensor) -> Tensor:
    """Return the sparse vector z that fits the measurements.

    Args:
        psi: Psi, [p, n].
        kappa: largest number of nonzero entries, in [1, n].
        y: the measurements, [p].

    Returns:
        [n], with at most kappa nonzero entries.
    """
    size = psi.shape[1]
    z, u = y.new_zeros(size), y
    rounding = ROUNDING * torch.finfo(y.dtype).eps * float(y.norm())
    for _ in range(6 * (kappa + 1)):
        chosen = z != 0
        chosen[(psi.T @ u).abs().topk(min(2 * kappa, size)).indices] = True
        b = y.new_zeros(size)
        b[chosen] = torch.linalg.pinv(psi[:, chosen]) @ y
        before, z = z, keep_largest(b, kappa)
        u = y - psi @ z
        if torch.equal(before, z) or float(u.norm()) <= rounding:
            break
    return z


def keep_largest(vector: Tensor, kappa: int) -> Tensor:
    """Return the vector with all but its kappa largest entries set to zero (compressive, Eq. 2).

    "Largest" is by absolute value.

    Args:
        vector: [n].
        kappa: in [1, n].
    """
    kept = torch.zeros_like(vector)
    places = vector.abs().topk(kappa).indices
    kept[places] = vector[places]
    return kept
