"""Faster arithmetic on a CPU, for large matrices, channels-last images and short texts.

Within `fast_kernels` large matrices are multiplied by another of torch's libraries where its own is
slow, 3 x 3 convolutions of images take fewer multiplications, and gradients of attention in half
precision are products of many heads at once.

Convolutions, per-example kernel gradients and GroupNorm are C kernels, since torch's libraries use
only a small part of a processor's speed for the latter two (docs/decisions/speed.md, "Kernels of
our own for channels-last images"). The machine's C compiler compiles the sources when they are
first needed, and the library is kept. Without a compiler or AVX, torch's operations give the same
numbers up to rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dpexp.kernels.compiled import compiled, prepare, would_take
from dpexp.kernels.half_attention import attention_by_products
from dpexp.kernels.kernel_gradients import (
    SLOWNESS,
    are_taken,
    depthwise_gradients,
    kept_squares,
    kernel_gradients,
)
from dpexp.kernels.norm_relu import norm_relu
from dpexp.kernels.products import by_onednn
from dpexp.kernels.winograd import by_winograd, directly

__all__ = [
    "SLOWNESS",
    "are_taken",
    "attention_by_products",
    "by_onednn",
    "by_winograd",
    "compiled",
    "depthwise_gradients",
    "directly",
    "fast_kernels",
    "kept_squares",
    "kernel_gradients",
    "norm_relu",
    "prepare",
    "would_take",
]


@contextmanager
def fast_kernels() -> Iterator[None]:
    """Take all of them within the context, which is also a decorator."""
    with by_onednn(), by_winograd(), attention_by_products():
        yield
