"""The clip weights' margin for rounding, so that the clip norm holds for every input.

`dpexp.grad_sample.rounding` bounds the size of an example's blocks; this module turns such sizes
into the bound that is clipped. docs/privacy/rounding.md has the derivations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpexp.grad_sample.rounding import eta, of_factors, of_sums, unit
from dpexp.types import Size

ROUNDINGS = 2**14
"""Margin of every clip weight, as a share of the energy in units of u: eight times what an
example's own terms can lose in a sum of `TERMS`. The rest covers the rounding of other examples'
terms, which changes when an example is added."""

CANCELLED = 16.0
"""Root of energy over squared norm, beyond which an example is summed in float64, apart from the
others. Its large terms of opposite sign would cost the others too many digits."""

UNDERFLOW = 2.0**-27
"""Largest effect of underflow in a weighted sum, as a fraction of the clip norm; float64 is used
beyond it."""


def slack_of(dtype: torch.dtype, *, is_widened: bool = False) -> float:
    """Return the fraction of its energy that an example's clip weight leaves to rounding.

    Args:
        dtype: the model's.
        is_widened: whether the example is summed in float64 although the model is not. Its weight
            then leaves u of float32 of its energy, so that its terms are too small to cost others a
            digit.
    """
    if is_widened and dtype != torch.float64:
        return unit(dtype)
    # The bits that TF32 cuts off an example's own factors are the same whoever stands beside it.
    return ROUNDINGS * of_sums(dtype) + of_factors(dtype)


def upper_bound(size: Size, slack: float, *, is_widened: bool = False) -> Tensor:
    """Return a bound on an example's contribution to the sum in l2, rounding included, [n].

    Args:
        size: of one block, or of several together.
        slack: fraction of the energy left to rounding, from `slack_of`.
        is_widened: whether it is summed in float64 beside others that are not. Joining them changes
            the rounding of their sum, and the bound includes that.
    """
    room = (
        1 + ROUNDINGS * of_sums(torch.float32) if is_widened else 1.0
    )  # others may not be in float64
    return room * size.squares.sqrt() + slack * size.energy.sqrt()


def is_exact_enough(size: Size, clip_norm: float) -> Tensor:
    """Return where the model's precision suffices: finite, little cancels, nothing underflows."""
    is_calm = size.energy <= CANCELLED**2 * size.squares
    # A weight below the least normal number is itself inexact, by eta times the energy.
    floor = size.floor + eta(torch.float32) * size.energy.sqrt()
    return size.squares.isfinite() & is_calm & (floor <= UNDERFLOW * clip_norm)
