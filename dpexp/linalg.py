"""Orthonormal bases and the power method."""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 2**17
"""Numbers from which a matrix meets a thin one in blocks (ours, measured on CPUs): there the
library's product of two takes such a matrix at half the speed of memory, and many small products
side by side give the same numbers in up to 40 % less time."""


def thin_product(thin: Tensor, wide: Tensor, block: int = 64) -> Tensor:
    """Give thin @ wide, [r, m], for thin [r, k] and wide [k, m], some columns at a time."""
    if not _is_cut(wide.device, wide.numel(), wide.shape[1], block):
        return thin @ wide
    blocks = wide.unflatten(1, (-1, block)).transpose(0, 1)
    return torch.bmm(thin.expand(len(blocks), -1, -1), blocks).transpose(0, 1).flatten(1)


def outer_product(columns: Tensor, rows: Tensor, block: int = 32) -> Tensor:
    """Give columns @ rows, [p, d], for columns [p, k] and rows [k, d], some rows at a time."""
    if not _is_cut(columns.device, len(columns) * rows.shape[1], len(columns), block):
        return columns @ rows
    blocks = columns.unflatten(0, (-1, block))
    return torch.bmm(blocks, rows.expand(len(blocks), -1, -1)).flatten(0, 1)


def _is_cut(device: torch.device, numbers: int, size: int, block: int) -> bool:
    return device.type == "cpu" and numbers >= LARGE and size % block == 0


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Give an orthonormal basis whose span contains the columns of a tall matrix.

    Householder QR: orthonormal to working precision even where the columns are dependent or zero,
    which Gram-Schmidt is not.

    Args:
        matrix: [m, r] with r <= m.

    Returns:
        [m, r] with orthonormal columns.
    """
    return torch.linalg.qr(matrix).Q


def power_iteration(
    delta: Tensor, rank: int, iterations: int, gen: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Find bases near the principal column and row spaces of a matrix (rgp, Algorithm 2).

    Args:
        delta: [p, d], the historical update; never a private gradient.
        rank: r in [1, min(p, d)].
        iterations: K >= 1.
        gen: source of the Gaussian start, on delta's device.

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
    """Draw L [p, r] and R [r, d] with orthonormal columns and rows, uniformly (Haar)."""

    def draw(size: int) -> Tensor:
        gaussian = torch.randn(size, rank, generator=gen, device=like.device, dtype=like.dtype)
        return orthonormal_columns(gaussian)

    return draw(p), draw(d).T


def reparametrized_update(left: Tensor, right: Tensor, d_left: Tensor, d_right: Tensor) -> Tensor:
    """Give dW = dL R + L dR - L L^T dL R, [p, d] (rgp, Eq. 3).

    Args:
        left: L [p, r] with orthonormal columns.
        right: R [r, d] with orthonormal rows.
        d_left: dL [p, r].
        d_right: dR [r, d].
    """
    # One product of [dL - L L^T dL, L] and [R; dR]: the result, as large as W, is written once.
    columns = torch.cat([d_left - left @ (left.T @ d_left), left], dim=1)
    return outer_product(columns, torch.cat([right, d_right]))
