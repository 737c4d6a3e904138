"""What floating point may take from a norm or add to a sum, so that clipping holds for every input.

docs/privacy.md derives what is stated here. Notation (Higham 2002, Accuracy and Stability of
Numerical Algorithms, Section 3.1): u is the unit roundoff, 2^-24 in float32; gamma_k = k u / (1 - k
u) bounds the relative error of an inner product of k terms, added in any order, with or without
fused operations. What underflows, or is flushed to zero, is off by eta at most, the least normal
number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dpexp.types import Size

TERMS = 2048
"""Positions whose terms one product in the model's precision adds up, at most; such products are
added in float64."""

EXAMPLES = 64
"""Examples whose vectors one product in the model's precision adds up, at most."""

AT_ONCE = 2**17  # ours: numbers that are widened at once, 1 MB in float64

LONG = 2**10
"""Numbers beyond which a norm is taken in pieces of so many, whose squares are added in float64."""


def unit(dtype: torch.dtype) -> float:
    """Return u, the unit roundoff."""
    return torch.finfo(dtype).eps / 2


def eta(dtype: torch.dtype) -> float:
    """Return the least normal number."""
    return torch.finfo(dtype).tiny


def raised(terms: int, dtype: torch.dtype) -> float:
    """Bound the relative error of an inner product by what was computed: 2 gamma_k.

    Args:
        terms: k, how many are added.
        dtype: of the arithmetic.

    Returns:
        Infinity where k is too many for the precision to say anything; float64 then takes over.
    """
    share = (terms + 8) * unit(dtype)  # eight more for what a few operations around it round
    return 2 * share / (1 - share) if share < 1 / 4 else math.inf


def size_of_held(values: Tensor) -> Size:
    """Return the size of vectors that are added as they are, [n, numbers]."""
    numbers, least = values.shape[1], eta(values.dtype)
    squares = squares_of(values) * (1 + raised(min(numbers, LONG), values.dtype))
    squares = squares + 2 * least * numbers
    return Size(squares, squares, torch.full_like(squares, least * math.sqrt(numbers)))


def squares_of(values: Tensor) -> Tensor:
    """Return squared norms as they are computed, [n] in float64, of vectors [n, numbers]."""
    whole = values.shape[1] // LONG * LONG
    squares = torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    if not whole:
        return squares
    pieces = values[:, :whole].unflatten(1, (-1, LONG))
    return squares + torch.linalg.vector_norm(pieces, dim=2).double().square().sum(1)


def size_of_products(x: Tensor, h: Tensor) -> Size:
    """Return the size of h x^T for one position each, x [n, d] and h [n, p]."""
    d, p = x.shape[1], h.shape[1]
    of_x, of_h = x.double().square().sum(1), h.double().square().sum(1)
    squares = of_x * of_h * (1 + raised(d + p, torch.float64))
    return Size(squares, squares, eta(x.dtype) * math.sqrt(p) * (of_x.sqrt() + d))


class Terms(NamedTuple):
    """How large the terms h_s x_s^T are that an example's positions add, [n] in float64.

    Attributes:
        energy: at least (sum_s |x_s| |h_s|)^2.
        floor: as in `Size`.
        unseen: at least what underflow takes from the sum of the products of two Gram matrices, or
            from the squares of a gradient that is formed.
    """

    energy: Tensor
    floor: Tensor
    unseen: Tensor


def terms_of(
    inputs: Tensor,
    outputs: Tensor,
    dims: tuple[int, int],
    dtype: torch.dtype,
    roundings: int | None = None,
) -> Terms:
    """Return the size of the terms from norms at every position.

    Args:
        inputs: [n, t], the squared norms of x_s, as computed.
        outputs: [n, t], those of h_s.
        dims: (d, p), how many products are in each of the two.
        dtype: in which they were computed.
        roundings: how often one number of each was rounded, both together; None: d + p.
    """
    (d, p), t, least = dims, inputs.shape[1], eta(dtype)
    x, h = ((each.double() + 2 * least * size).sqrt() for each, size in ((inputs, d), (outputs, p)))
    sum_x, sum_h = x.sum(1), h.sum(1)
    return Terms(
        energy=(x * h).sum(1).square() * (1 + raised(roundings or d + p, dtype)),
        floor=least * math.sqrt(p) * (sum_x + t * d),
        unseen=4 * least * (d * sum_h.square() + p * sum_x.square() + t * t + d * p),
    )


def size_by_gram(product: Tensor, terms: Terms, roundings: int) -> Size:
    """Return the size of sums over positions from inner products.

    |sum_s h_s x_s^T|^2 = sum over s, t of <x_s, x_t> <h_s, h_t>. Each is off by gamma |x_s| |x_t|
    |h_s| |h_t|, and so all of them by gamma times the energy, however they cancel.

    Args:
        product: [n, t, t], of the two inner products.
        terms: how large they are.
        roundings: k of both inner products together.
    """
    squares = product.sum((1, 2), dtype=torch.float64)
    squares = squares.masked_fill(squares.isinf(), math.inf).clamp(min=0)  # below it overflows too
    squares = squares + raised(roundings, product.dtype) * terms.energy + terms.unseen
    return Size(squares, terms.energy, terms.floor)


def size_of_formed(formed: Size, terms: Terms, positions: int, dtype: torch.dtype) -> Size:
    """Return the size of sums over positions that were formed, measured and thrown away.

    What their sum adds up is not the vectors that were measured, but their terms once more.

    Args:
        formed: of the vectors, as `size_of_held` has it.
        terms: how large their terms are.
        positions: how many were added up. Up to `TERMS` counts as so many: padding, which hangs on
            an example's neighbours, moves no weight.
        dtype: in which they were formed.
    """
    lost = raised(max(positions, TERMS), dtype) * terms.energy.sqrt()
    squares = (formed.squares.sqrt() + lost + 2 * terms.floor).square()
    return Size(squares, terms.energy, terms.floor)


def pieces_of(num_examples: int, positions: int) -> int:
    """Say how many examples one product in the model's precision may add up."""
    return max(1, min(num_examples, EXAMPLES, TERMS // max(positions, 1)))


def add_(total: Tensor, part: Tensor) -> None:
    """Add a part to a total of another precision, in place and a few numbers at a time.

    Added whole, it would first be widened whole.
    """
    if part.dtype == total.dtype or total.device.type != "cpu":
        total += part
        return
    for into, some in zip(_pieces(total), _pieces(part), strict=True):
        into += some


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    rows = max(1, AT_ONCE // max(1, tensor[0].numel())) if len(tensor) else 1
    return tensor.split(rows)
