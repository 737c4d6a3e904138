"""C kernels for float32 images in channels-last layout on a CPU.

For per-example kernel gradients and GroupNorm, torch's libraries use only a small part of a
processor's speed (docs/decisions/speed.md, "Kernels of our own for channels-last images"). The
machine's C compiler compiles the sources when they are first needed, and the library is kept.
Without a compiler or AVX, torch's operations give the same numbers up to rounding.
"""

from dpexp.kernels.compiled import compiled, would_take
from dpexp.kernels.kernel_gradients import SLOWNESS, are_taken, kernel_gradients
from dpexp.kernels.norm_relu import norm_relu

__all__ = ["SLOWNESS", "are_taken", "compiled", "kernel_gradients", "norm_relu", "would_take"]
