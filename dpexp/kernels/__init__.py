"""Kernels of our own, in C, for float32 images laid out channels last on a CPU.

Per-example kernel gradients and GroupNorm are where the libraries beneath torch leave most of a
processor's time unused (docs/decisions.md, 17). The machine's C compiler translates the sources
when a process first needs them; without a compiler, or without AVX, torch's operations give the
same numbers up to rounding.
"""

from dpexp.kernels.compiled import compiled, would_take
from dpexp.kernels.kernel_gradients import SLOWNESS, are_taken, kernel_gradients
from dpexp.kernels.norm_relu import norm_relu

__all__ = ["SLOWNESS", "are_taken", "compiled", "kernel_gradients", "norm_relu", "would_take"]
