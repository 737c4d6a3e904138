"""CoSaMP: recover a sparse vector from few noisy measurements (Needell and Tropp 2009).

As the paper uses it (compressive, Algorithm 1), for y = Psi z + noise, Psi [p, n], z kappa-sparse:

    z <- 0, u <- y
    6 (kappa + 1) times:
        T <- the 2 kappa largest entries of Psi^T u, and the support of z        line 3
        b <- Psi_T^+ y on T, 0 elsewhere                                         lines 4-5
        z <- the kappa largest entries of b                                      lines 6-8
        u <- y - Psi z                                                           line 9

"Largest" is by absolute value.

Differences from the paper:
 1. A round that leaves z as it was ends the loop: all later rounds would repeat it.
 2. So does a u that is nothing but rounding. z is found then, T would be chance, and where it has
    more entries than there are measurements its b would lose z again.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 100.0  # ours: roundings of a sum of a few terms, as long as y


def cosamp(psi: Tensor, kappa: int, y: Tensor) -> Tensor:
    """Recover a sparse vector.

    Args:
        psi: [p, n].
        kappa: how many entries it may have, in [1, n].
        y: [p], the measurements.

    Returns:
        [n], with at most kappa entries that are not zero.
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
    """Set all but the kappa entries of largest absolute value to zero (compressive, Eq. 2).

    Args:
        vector: [n].
        kappa: in [1, n].
    """
    kept = torch.zeros_like(vector)
    places = vector.abs().topk(kappa).indices
    kept[places] = vector[places]
    return kept
