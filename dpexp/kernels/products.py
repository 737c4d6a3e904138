"""Products of large float32 matrices by oneDNN, where torch's own take twice the time.

On x86 torch multiplies matrices by MKL, which uses AVX2 alone on AMD's processors. oneDNN, which
torch has as well and takes for convolutions, uses AVX-512 there. `by_onednn` has torch's kernels
for matrix products on a CPU take oneDNN within a context, in the whole process. So layers of any
model, autograd's backward passes and the suite's own sums all go through it. The bounds of
`dpexp.grad_sample.rounding` hold for any order of addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpexp.kernels.replaced import Kernels, Replaced

LEAST = 2**22
"""Multiplications from which on oneDNN takes less time (ours, measured on Zen 5): 0.55 of
MKL's at the median of 2,464 random shapes above, and up to nine times MKL's below."""

FEW, FEW_IF_COPIED, FEW_TERMS = 8, 64, 32
"""Columns of a product from which on it does, where the first operand's rows follow each other and
where oneDNN first copies it, and terms of its sums (ours, measured; up to 20 times MKL's time
below)."""

AT_ONCE = 2**20
"""Numbers of a product that are held before they are added to a total (ours), 4 MB."""

VENDOR, FAMILY = "AuthenticAMD", 26
"""Of Zen 5. Zen 4 gains 6 % in a transformer and nothing in a convolutional network (ours)."""
NAMES = ("mm", "addmm", "addmm_", "bmm")
"""Operators whose CPU kernels are replaced, in torch's namespace aten."""


@contextmanager
def by_onednn() -> Iterator[None]:
    """Multiply large float32 matrices on a CPU by oneDNN within the context, if that is faster.

    Contexts may lie within each other, and in several threads. The context is also a decorator.
    """
    if not is_faster():
        yield
        return
    _replaced.enter()
    try:
        yield
    finally:
        _replaced.leave()


@cache
def is_faster() -> bool:
    """Return whether oneDNN beats torch's own products: on AMD's processors from Zen 5 on."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    told = _processor()
    family = told.get("cpu family", "")
    if told.get("vendor_id") != VENDOR or not family.isdigit() or int(family) < FAMILY:
        return False
    return hasattr(torch.library, "get_kernel") and _is_right()


def _processor() -> dict[str, str]:
    """Return what Linux tells of the first processor; {} elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _is_right() -> bool:
    """Return whether torch still has the operator, and it multiplies."""
    one, other = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4)
    try:
        return torch.equal(_product(one, other), one @ other)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _product(one: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return one @ other + bias, by oneDNN, for operands that `is_taken`."""
    return torch.ops.mkldnn._linear_pointwise(one, other.T, bias, "none", [], "")


def is_taken(one: Tensor, other: Tensor) -> bool:
    """Return whether a product of [m, k] by [k, n] goes to oneDNN within the context.

    What cannot be multiplied does not, and so meets torch's own errors. Where rows and columns of
    the second have gaps, oneDNN takes a thousand times as long.
    """
    return (
        _replaced.uses > 0
        and one.dtype == other.dtype == torch.float32
        and one.ndim == other.ndim == 2
        and one.shape[1] == other.shape[0]
        and one.shape[0] * other.shape[0] * other.shape[1] >= LEAST
        and other.shape[0] >= FEW_TERMS
        and other.shape[1] >= (FEW if one.is_contiguous() else FEW_IF_COPIED)
        and _is_laid_out(one)
        and _is_dense(other)
        and bool(torch.backends.mkldnn.enabled)
    )


def _is_laid_out(matrix: Tensor) -> bool:
    """Return whether rows or columns lie in one piece each, and apart."""
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    return (across == 1 and down >= columns) or (down == 1 and across >= rows)


def _is_dense(matrix: Tensor) -> bool:
    """Return whether rows follow each other without gaps, or columns do."""
    return matrix.is_contiguous() or matrix.T.is_contiguous()


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether a write to one may change the other."""
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _can_be_added(to: Tensor, one: Tensor, other: Tensor) -> bool:
    """Return whether a tensor can be expanded to the product's shape and has its precision."""
    if to.dtype != one.dtype or to.ndim > 2:
        return False
    sizes = (one.shape[0], other.shape[1])[2 - to.ndim :]
    return all(have in (1, wanted) for have, wanted in zip(to.shape, sizes, strict=True))


def _replacements(kernels: Kernels) -> Kernels:
    """Return what takes each kernel's place; torch's own does what is not taken."""

    def mm(keys: Any, one: Tensor, other: Tensor) -> Tensor:
        if is_taken(one, other):
            return _product(one, other)
        return kernels["mm"].call_boxed(keys, one, other)

    def addmm(
        keys: Any, to: Tensor, one: Tensor, other: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        if alpha == 0 or not (is_taken(one, other) and _can_be_added(to, one, other)):
            return kernels["addmm"].call_boxed(keys, to, one, other, beta=beta, alpha=alpha)
        if beta == alpha == 1 and to.shape == other.shape[1:] and to.is_contiguous():
            return _product(one, other, to)
        product = _product(one, other)
        if alpha != 1:
            product *= alpha
        return product if beta == 0 else product.add_(to, alpha=beta)

    def addmm_(
        keys: Any, to: Tensor, one: Tensor, other: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        is_apart = not any(_share_memory(to, each) for each in (one, other))
        is_plain = beta == 1 and alpha != 0 and to.dtype == one.dtype and is_apart
        if not (is_plain and is_taken(one, other) and to.shape == (len(one), other.shape[1])):
            return kernels["addmm_"].call_boxed(keys, to, one, other, beta=beta, alpha=alpha)
        rows = max(1, AT_ONCE // other.shape[1])
        for total, some in zip(to.split(rows), one.split(rows), strict=True):
            total.add_(_product(some, other), alpha=alpha)
        return to

    def bmm(keys: Any, ones: Tensor, others: Tensor) -> Tensor:
        is_stack = ones.ndim == others.ndim == 3 and len(ones) == len(others) > 0
        if is_stack and is_taken(ones[0], others[0]):
            products = ones.new_empty(len(ones), ones.shape[1], others.shape[2])
            for product, one, other in zip(products, ones, others, strict=True):
                product.copy_(_product(one, other))
            return products
        return kernels["bmm"].call_boxed(keys, ones, others)

    return {"mm": mm, "addmm": addmm, "addmm_": addmm_, "bmm": bmm}


_replaced = Replaced(NAMES, _replacements)
