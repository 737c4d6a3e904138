"""Bounds on floating-point error in norms and sums, so that clipping holds for every input.

docs/privacy/rounding.md has the derivations. Notation (Higham 2002, Accuracy and Stability of
Numerical Algorithms, Section 3.1): u is the unit roundoff, 2^-24 in float32; gamma_k = k u / (1 - k
u) bounds the relative error of an inner product of k terms, added in any order, with or without
fused operations. A number that underflows or is flushed to zero is off by at most eta, the least
normal number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpexp.linalg import as_rows
from dpexp.types import Size

TERMS = 2048
"""Largest number of positions whose terms one product in the model's precision adds up. Several
such products are added in float64."""

EXAMPLES = 64
"""Largest number of examples whose vectors one product in the model's precision adds up."""

AT_ONCE = 2**17  # ours: numbers converted to float64 at once, 1 MB

LONG = 2**10
"""Longer vectors' norms are computed in pieces of this length; the squares are added in float64."""


FACTORS = 2.0**-9 + 2.0**-20
"""What a product of two numbers may lose, as a share of it, where TF32 keeps ten bits of either
(docs/privacy/rounding.md): (1 + 2^-10)^2 - 1, since a unit may cut the other bits off."""

SUMS = 4.0
"""Units u that a tensor core's addition may lose where one rounding loses u: it cuts off, too, and
aligns several terms with the largest before it adds them (Fasi et al. 2021)."""


BACKENDS: Any = torch.backends
"""Whose type lacks what sets the precision of each operation."""


@contextmanager
def products_in_tf32(is_on: bool) -> Iterator[None]:
    """Let a GPU take TF32 for products of float32 within the context, or not; then as before.

    Bounds on norms, and the clip weights' margin, follow what is set here.
    """
    matrices = is_coarse(torch.float32)
    convolutions = BACKENDS.cudnn.conv.fp32_precision == "tf32"
    take_sums_of_products(matrices=is_on, convolutions=is_on)
    try:
        yield
    finally:
        take_sums_of_products(matrices=matrices, convolutions=convolutions)


def take_sums_of_products(*, matrices: bool = False, convolutions: bool = False) -> None:
    """Let float32 be multiplied in sums of products without loss, in the whole process.

    Torch has two ways to ask for less, and a process may have taken either; both are set. NNPACK,
    which torch takes on a CPU without oneDNN, convolves by other algorithms.

    Args:
        matrices: whether a GPU may take TF32 for products of matrices.
        convolutions: whether it may for convolutions.
    """
    gpu, cpu = BACKENDS.cudnn, BACKENDS.mkldnn
    torch.set_float32_matmul_precision("high" if matrices else "highest")
    gpu.allow_tf32 = convolutions
    for operation in (gpu.conv, gpu.rnn):
        operation.fp32_precision = "tf32" if convolutions else "ieee"
    for operation in (cpu.matmul, cpu.conv, cpu.rnn):
        operation.fp32_precision = "ieee"
    BACKENDS.nnpack.set_flags(False)


def is_coarse(dtype: torch.dtype) -> bool:
    """Return whether products in a precision may be taken in TF32."""
    return dtype == torch.float32 and BACKENDS.cuda.matmul.fp32_precision == "tf32"


def of_factors(dtype: torch.dtype) -> float:
    """Return what one product may lose before it is added to others, as a share of it."""
    return FACTORS if is_coarse(dtype) else 0.0


def of_sums(dtype: torch.dtype) -> float:
    """Return what an addition within a product of matrices may lose: u, or more in TF32."""
    return unit(dtype) * (SUMS if is_coarse(dtype) else 1.0)


def unit(dtype: torch.dtype) -> float:
    """Return u, the unit roundoff."""
    return torch.finfo(dtype).eps / 2


def eta(dtype: torch.dtype) -> float:
    """Return the least normal number."""
    return torch.finfo(dtype).tiny


def raised(terms: int, dtype: torch.dtype) -> float:
    """Return 2 gamma_k, a bound on the error of products of matrices, relative to what is computed.

    Args:
        terms: k, the number of terms of an inner product, or of two that are multiplied.
        dtype: of the arithmetic.

    Returns:
        Infinity if k is too large for the bound to hold in this precision; float64 is used then.
    """
    # Eight more for the operations around it. Two products may be multiplied, or one squared.
    return _twice((terms + 8) * of_sums(dtype) + 2 * of_factors(dtype))


def _twice(share: float) -> float:
    return 2 * share / (1 - share) if share < 1 / 4 else math.inf


def size_of_held(values: Tensor) -> Size:
    """Return the size of vectors [n, ...] that are added themselves, not as sums of terms."""
    values = as_rows(values)
    return size_of_squares(squares_of(values), values.shape[1], values.dtype)


def size_of_squares(squares: Tensor, numbers: int, dtype: torch.dtype) -> Size:
    """Return the size of vectors that are added themselves, from their computed squared norms.

    Args:
        squares: [n]. A float32 sum had at most `LONG` of the squares; such sums were then added in
            float64.
        numbers: of a vector.
        dtype: of the vectors.
    """
    least = eta(dtype)
    lost = _twice((min(numbers, LONG) + 8) * unit(dtype))  # of a norm, which is no product
    squares = squares * (1 + lost) + 2 * least * numbers
    return Size(squares, squares, torch.full_like(squares, least * math.sqrt(numbers)))


def squares_of(values: Tensor) -> Tensor:
    """Return the computed squared norms, [n] in float64, of vectors [n, numbers]."""
    whole = values.shape[1] // LONG * LONG
    squares = torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    if not whole:
        return squares
    pieces = values[:, :whole].unflatten(1, (-1, LONG))
    return squares + torch.linalg.vector_norm(pieces, dim=2).double().square().sum(1)


def size_of_products(x: Tensor, h: Tensor) -> Size:
    """Return the size of h x^T for examples with one position, x [n, d] and h [n, p]."""
    d, p = x.shape[1], h.shape[1]
    of_x, of_h = x.double().square().sum(1), h.double().square().sum(1)
    squares = of_x * of_h * (1 + raised(d + p, torch.float64))
    return Size(squares, squares, eta(x.dtype) * math.sqrt(p) * (of_x.sqrt() + d))


class Terms(NamedTuple):
    """Upper bounds on the terms h_s x_s^T that an example's positions add up, [n] in float64.

    Attributes:
        energy: bound on (sum_s |x_s| |h_s|)^2.
        floor: as in `Size`.
        unseen: bound on what underflow takes from the sum of the products of two Gram matrices, or
            from the squares of a formed gradient.
        roundings: of each number of a formed gradient, after its positions are added up.
    """

    energy: Tensor
    floor: Tensor
    unseen: Tensor
    roundings: int = 0


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
        dims: (d, p), the lengths of x_s and h_s.
        dtype: in which they were computed.
        roundings: roundings in one number of each, added; None: d + p.
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

    |sum_s h_s x_s^T|^2 = sum over s, t of <x_s, x_t> <h_s, h_t>. Each term's error is at most gamma
    |x_s| |x_t| |h_s| |h_t|, so the total error is at most gamma times the energy, whatever cancels.

    Args:
        product: [n, t, t], the products of the two inner products.
        terms: bounds on the terms.
        roundings: k of both inner products, added.
    """
    squares = product.sum((1, 2), dtype=torch.float64)
    squares = squares.masked_fill(squares.isinf(), math.inf).clamp(min=0)  # below it overflows too
    squares = squares + raised(roundings, product.dtype) * terms.energy + terms.unseen
    return Size(squares, terms.energy, terms.floor)


def size_of_formed(formed: Size, terms: Terms, positions: int, dtype: torch.dtype) -> Size:
    """Return the size of sums over positions that were formed, measured and discarded.

    The sum over examples adds up their terms again, not the vectors that were measured.

    Args:
        formed: size of the vectors, from `size_of_held`.
        terms: bounds on their terms.
        positions: how many were added up. Fewer than `TERMS` count as `TERMS`, so that padding,
            which depends on the other examples in the batch, changes no clip weight.
        dtype: in which they were formed.
    """
    lost = raised(max(positions, TERMS) + terms.roundings, dtype) * terms.energy.sqrt()
    squares = (formed.squares.sqrt() + lost + 2 * terms.floor).square()
    return Size(squares, terms.energy, terms.floor)


def pieces_of(num_examples: int, positions: int) -> int:
    """Return how many examples one product in the model's precision may add up."""
    return max(1, min(num_examples, EXAMPLES, TERMS // max(positions, 1)))


def add_(total: Tensor, part: Tensor) -> None:
    """Add a tensor to a total of another precision, in place and a few numbers at a time.

    Adding it at once would first convert all of it to float64.
    """
    if part.dtype == total.dtype or total.device.type != "cpu":
        total += part
        return
    for into, some in zip(_pieces(total), _pieces(part), strict=True):
        into += some


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.ndim == 0 or len(tensor) == 0:
        return (tensor,)
    return tensor.split(max(1, AT_ONCE // max(1, tensor[0].numel())))
