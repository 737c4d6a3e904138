"""Faster products on a CPU: of large matrices, and of float32 images in channels-last layout.

`by_onednn` has large matrices multiplied by another of torch's libraries where its own is slow. The
rest are C kernels for images.

For per-example kernel gradients and GroupNorm, torch's libraries use only a small part of a
processor's speed (docs/decisions/speed.md, "Kernels of our own for channels-last images"). The
machine's C compiler compiles the sources when they are first needed, and the library is kept.
Without a compiler or AVX, torch's operations give the same numbers up to rounding.
"""

from dpexp.kernels.compiled import compiled, would_take
from dpexp.kernels.kernel_gradients import SLOWNESS, are_taken, kernel_gradients
from dpexp.kernels.norm_relu import norm_relu
from dpexp.kernels.products import by_onednn

__all__ = [
    "SLOWNESS",
    "are_taken",
    "by_onednn",
    "compiled",
    "kernel_gradients",
    "norm_relu",
    "would_take",
]
