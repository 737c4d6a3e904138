"""How much of an example is left once it is clipped, so that its norm holds whatever rounding does.

How large an example's blocks can be is measured where they are made (`dpexp.grad_sample.rounding`);
what the clip takes of that for its bound is here. docs/privacy.md derives both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpexp.grad_sample.rounding import eta, unit
from dpexp.types import Size

ROUNDINGS = 2**14
"""Of the energy, in units of u: what every clip weight leaves free, eight times what an example's
own terms can lose in a sum of `TERMS`. The rest is for the rounding of others' terms, which one
example more draws anew."""

CANCELLED = 16.0
"""Energy, in norms, beyond which an example is summed in float64, apart from the others: among them
its terms, large and opposite, would cost theirs too many digits."""

UNDERFLOW = 2.0**-27
"""Of the clip norm: what underflow in a weighted sum may come to before float64 is taken."""


def slack_of(dtype: torch.dtype, *, is_widened: bool = False) -> float:
    """Return the share of its energy that an example's weight leaves to rounding.

    Args:
        dtype: the model's.
        is_widened: whether the example is summed in float64 for all that. What cancels there keeps
            to u of float32 of its energy: its terms are then too small to cost others a digit.
    """
    return unit(dtype) if is_widened and dtype != torch.float64 else ROUNDINGS * unit(dtype)


def upper_bound(size: Size, slack: float, *, is_widened: bool = False) -> Tensor:
    """Bound what an example adds to the sum, in l2 and with what rounding adds, [n].

    Args:
        size: of the block, or of several as one.
        slack: share of the energy that is left to rounding, as `slack_of` gives it.
        is_widened: whether it is summed in float64 beside others that are not: their sum is
            rounded otherwise where it joins, and its norm leaves room for that.
    """
    room = 1 + ROUNDINGS * unit(torch.float32) if is_widened else 1.0  # others may be narrow
    return room * size.squares.sqrt() + slack * size.energy.sqrt()


def is_exact_enough(size: Size, clip_norm: float) -> Tensor:
    """Say where the model's precision will do: finite, little cancels, nothing underflows."""
    is_calm = size.energy <= CANCELLED**2 * size.squares
    # A weight below the least normal number is off itself, times all that it is a weight of.
    floor = size.floor + eta(torch.float32) * size.energy.sqrt()
    return size.squares.isfinite() & is_calm & (floor <= UNDERFLOW * clip_norm)
