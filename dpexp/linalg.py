"""Orthonormal bases, the power method, and products that suit a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

LARGE, THIN = 2**17, 32
"""Matrices of `LARGE` entries or more are multiplied by matrices of at most `THIN` rows in blocks
(ours, measured on a CPU). torch's single product runs at half the speed of memory there; batched
small products give the same numbers in up to 40 % less time."""


def as_rows(values: Tensor) -> Tensor:
    """Return values [n, ...] as rows [n, numbers]; of one number each, [n], as [n, 1]."""
    return values.flatten(1) if values.ndim > 1 else values[:, None]


def places(mask: Tensor) -> Tensor:
    """Return the indices where a mask [size] is True, in ascending order."""
    if mask.device.type == "cpu":  # where NumPy takes a quarter of torch's time
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().flatten()


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


WIDE = 64
"""Bases of at most so many columns are computed in float64 by `cholesky_qr` (ours)."""

HUGE = {"cpu": 2**26, "cuda": 0}
"""Matrices of so many entries go through `cholesky_qr`, by device; on others none does (ours). On a
CPU it takes 3.3 s of one core at [202,752, 537], where Householder QR takes 5.6; at [20,000, 560]
and below it is no faster. On a GPU it was not measured."""

AT_ONCE = {"cpu": 1, "cuda": 2**26}
"""Entries of the matrices whose bases are computed together, 256 MB in float32 on a GPU (ours); on
a CPU, and on other devices, every matrix goes alone."""

LOST = 0.5
"""Loss of orthogonality after the first pass, up to which the second repairs it. If Q = Q_2 R_2 and
|Q^T Q - I| <= 1/2, R_2 has a condition number below sqrt 3 (Yamamoto et al. 2015, Section 3)."""


def orthonormal_columns(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis whose span contains the columns of a tall matrix.

    Uses Householder QR: unlike Gram-Schmidt, it is orthonormal to working precision even if the
    columns are dependent or zero. Very large matrices, and all on a GPU, go through `cholesky_qr`
    first, and through Householder QR where that fails.

    Args:
        matrix: [m, r] with r <= m.

    Returns:
        [m, r] with orthonormal columns.
    """
    return orthonormal_bases([matrix])[0]


def orthonormal_bases(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return `orthonormal_columns` of many matrices; on a GPU those of one shape in one call.

    Args:
        matrices: each [m, r] with r <= m, of any shapes.

    Returns:
        Bases in the same order.
    """
    bases = [torch.empty(0)] * len(matrices)
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, matrix in enumerate(matrices):
        if matrix.numel() >= HUGE.get(matrix.device.type, math.inf):
            key = (matrix.shape, matrix.dtype, matrix.device)
            alike.setdefault(key, []).append(place)
        else:
            bases[place] = torch.linalg.qr(matrix).Q
    for places in alike.values():
        found = stacked_bases(_stack([matrices[place] for place in places]))
        for place, basis in zip(places, found, strict=True):
            bases[place] = basis
    return bases


def _stack(matrices: Sequence[Tensor]) -> Tensor:
    """Stack matrices; a single one is not copied."""
    return torch.stack(list(matrices)) if len(matrices) > 1 else matrices[0][None]


def stacked_bases(matrices: Tensor) -> Tensor:
    """Return orthonormal bases by `cholesky_qr`, and by Householder QR where it fails.

    Args:
        matrices: [b, m, r] with r <= m.

    Returns:
        [b, m, r] with orthonormal columns.
    """
    bases, is_sound = cholesky_qr(matrices)
    if not bool(is_sound.all()):  # one wait for the device for all b
        bases[~is_sound] = torch.linalg.qr(matrices[~is_sound]).Q
    return bases


def cholesky_qr(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormalise the columns of tall matrices by Cholesky QR, twice (Yamamoto et al. 2015).

    X^T X = R^T R, Q = X R^-1: products and triangular solves alone, which batches do side by side.
    The second pass makes up for what the first loses, the square of the condition number. Columns
    are scaled before, which changes no span. Thin matrices are computed in float64, so that float32
    ones of almost every condition pass.

    Args:
        matrices: [b, m, r] with r <= m.

    Returns:
        Q [b, m, r], and whether each is an orthonormal basis [b]; otherwise its values mean
        nothing. Not one with a column that is zero, not finite or numerically dependent is.
    """
    dtype, is_thin = matrices.dtype, matrices.shape[2] <= WIDE
    bases = matrices.double() if is_thin else matrices
    largest = bases.abs().amax(1, keepdim=True)
    is_sound = (largest.isfinite() & (largest >= torch.finfo(dtype).tiny)).flatten(1).all(1)
    bases = bases / largest  # a copy; that of a matrix which is not sound is thrown away
    bases[~is_sound] = 0
    eye = torch.eye(bases.shape[2], dtype=bases.dtype, device=bases.device)
    for is_last in (False, True):
        gram = _gram(bases)
        if is_last:
            is_sound = is_sound & (torch.linalg.matrix_norm(gram - eye) <= LOST)  # NaN is not
        lower, failed = torch.linalg.cholesky_ex(torch.where(is_sound[:, None, None], gram, eye))
        is_sound = is_sound & (failed == 0)
        lower = torch.where(is_sound[:, None, None], lower, eye)
        bases = torch.linalg.solve_triangular(lower.mT, bases, upper=True, left=False)
    return bases.to(dtype), is_sound


def _gram(bases: Tensor) -> Tensor:
    """Return X^T X, [b, r, r]; of wide X one triangle is computed, in blocks of columns."""
    columns = bases.shape[2]
    if columns <= WIDE:
        return bases.mT @ bases
    gram = bases.new_zeros(len(bases), columns, columns)
    for first in range(0, columns, 2 * WIDE):
        last = min(first + 2 * WIDE, columns)
        gram[:, first:last, :last] = bases[:, :, first:last].mT @ bases[:, :, :last]
    return gram.tril() + gram.tril(-1).mT


def power_iteration(
    delta: Tensor,
    rank: int,
    iterations: int,
    gen: torch.Generator,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return bases near the principal column and row spaces of a matrix (rgp, Algorithm 2).

    Args:
        delta: [p, d], the historical update; never a private gradient.
        rank: r in [1, min(p, d)].
        iterations: K >= 1.
        gen: draws the Gaussian start, on delta's device.
        start: [r, d], in place of a Gaussian one.

    Returns:
        L [p, r] with orthonormal columns and R [r, d] with orthonormal rows.
    """
    right = _gaussian(delta, rank, gen) if start is None else start
    return _iterated([delta], [right], iterations)[0]


def power_iterations(
    deltas: Iterable[tuple[str, Tensor]], rank: int, iterations: int, gen: torch.Generator
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield every matrix's name and its bases by `power_iteration`, in order.

    On a GPU bases of one shape are computed in one call. One QR waits for many small kernels, and
    a network has hundreds of matrices of a few shapes.

    Args:
        deltas: names and matrices [p, d]; taken from the iterator a few at a time.
        rank: r >= 1; matrices with a smaller side have as many columns.
        iterations: K >= 1.
        gen: draws the Gaussian starts, on the matrices' device, in their order.
    """
    for together in _together(deltas):
        names, matrices = zip(*together, strict=True)
        starts = [_gaussian(each, min(rank, *each.shape), gen) for each in matrices]
        for name, bases in zip(names, _iterated(matrices, starts, iterations), strict=True):
            yield name, *bases


def _together(named: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield matrices in order, in lists that end with `AT_ONCE` entries or more."""
    held: list[tuple[str, Tensor]] = []
    for name, matrix in named:
        held.append((name, matrix))
        if sum(each.numel() for _, each in held) >= AT_ONCE.get(matrix.device.type, 1):
            yield held
            held = []
    if held:
        yield held


def _gaussian(delta: Tensor, rank: int, gen: torch.Generator) -> Tensor:
    size = (rank, delta.shape[1])
    return torch.randn(size, generator=gen, device=delta.device, dtype=delta.dtype)


def _iterated(
    deltas: Sequence[Tensor], rights: Sequence[Tensor], iterations: int
) -> list[tuple[Tensor, Tensor]]:
    for _ in range(iterations):
        pairs = zip(deltas, rights, strict=True)
        lefts = orthonormal_bases([thin_product(right, each.T).T for each, right in pairs])
        pairs = zip(deltas, lefts, strict=True)
        rights = [thin_product(left.T, each) for each, left in pairs]
    rights = [basis.T for basis in orthonormal_bases([right.T for right in rights])]
    return list(zip(lefts, rights, strict=True))


def random_bases(
    shapes: Iterable[tuple[int, int, int]], gen: torch.Generator, like: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Return random L [p, r] and R [r, d] with orthonormal columns and rows, uniform (Haar).

    Args:
        shapes: (p, d, r) of every pair.
        gen: draws them in order, on the device of `like`.
        like: a tensor with the bases' device and precision.
    """
    drawn = [
        torch.randn(size, rank, generator=gen, device=like.device, dtype=like.dtype)
        for *sides, rank in shapes
        for size in sides
    ]
    bases = orthonormal_bases(drawn)
    return [(left, right.T) for left, right in zip(bases[::2], bases[1::2], strict=True)]


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
