"""Orthonormal bases and the power method."""

from __future__ import annotations

import torch
from torch import Tensor

LARGE, THIN = 2**17, 32
"""Matrices of `LARGE` entries or more are multiplied by matrices of at most `THIN` rows in blocks
(ours, measured on a CPU). torch's single product runs at half the speed of memory there; batched
small products give the same numbers in up to 40 % less time."""


def thin_product(thin: Tensor, wide: Tensor) -> Tensor:
    """Return thin @ wide, [r, m], for thin [r, k] and wide [k, m]; in blocks of 64 columns."""
    if not _is_cut(wide, len(thin), wide.shape[1], 64):
        return thin @ wide
    blocks = wide.unflatten(1, (-1, 64)).transpose(0, 1)
    return torch.bmm(thin.expand(len(blocks), -1, -1), blocks).transpose(0, 1).flatten(1)


def outer_product(columns: Tensor, rows: Tensor) -> Tensor:
    """Return columns @ rows, [p, d], for columns [p, k] and rows [k, d]; in blocks of 32 rows."""
    product = columns.new_empty(1).expand(len(columns), rows.shape[1])
    if not _is_cut(product, len(rows), len(columns), 32):
        return columns @ rows
    blocks = columns.unflatten(0, (-1, 32))
    return torch.bmm(blocks, rows.expand(len(blocks), -1, -1)).flatten(0, 1)


def _is_cut(large: Tensor, rank: int, size: int, block: int) -> bool:
    is_large = large.device.type == "cpu" and large.numel() >= LARGE
    return is_large and rank <= THIN and size % block == 0


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis whose span contains the columns of a tall matrix.

    Uses Householder QR: unlike Gram-Schmidt, it is orthonormal to working precision even if the
    columns are dependent or zero.

    Args:
        matrix: [m, r] with r <= m.

    Returns:
        [m, r] with orthonormal columns.
    """
    return torch.linalg.qr(matrix).Q


def power_iteration(
    delta: Tensor, rank: int, iterations: int, gen: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return bases near the principal column and row spaces of a matrix (rgp, Algorithm 2).

    Args:
        delta: [p, d], the historical update; never a private gradient.
        rank: r in [1, min(p, d)].
        iterations: K >= 1.
        gen: draws the Gaussian start, on delta's device.

    Returns:
        L [p, r] with orthonormal columns and R [r, d] with orthonormal rows.
    """
    right = torch.randn(rank, delta.shape[1], generator=gen, device=delta.device, dtype=delta.dtype)
    for _ in range(iterations):
        left = orthonormal_columns(thin_product(right, delta.T).T)
        right = thin_product(left.T, delta)
    return left, orthonormal_columns(right.T).T


def random_bases(
    p: int, d: int, rank: int, gen: torch.Generator, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return random L [p, r] and R [r, d] with orthonormal columns and rows, uniform (Haar)."""

    def draw(size: int) -> Tensor:
        gaussian = torch.randn(size, rank, generator=gen, device=like.device, dtype=like.dtype)
        return orthonormal_columns(gaussian)

    return draw(p), draw(d).T


def reparametrized_update(left: Tensor, right: Tensor, d_left: Tensor, d_right: Tensor) -> Tensor:
    """Return dW = dL R + L dR - L L^T dL R, [p, d] (rgp, Eq. 3).

    Args:
        left: L [p, r] with orthonormal columns.
        right: R [r, d] with orthonormal rows.
        d_left: dL [p, r].
        d_right: dR [r, d].
    """
    # One product of [dL - L L^T dL, L] and [R; dR] writes the result, as large as W, only once.
    columns = torch.cat([d_left - left @ (left.T @ d_left), left], dim=1)
    return outer_product(columns, torch.cat([right, d_right]))
