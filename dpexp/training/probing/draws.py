"""Fix a model's random draws, so that two passes of it can be compared."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.privacy.seeds import seed_default

HALF = 0.5


class Chance(NamedTuple):
    """Fixed values of random draws.

    Attributes:
        number: every number that a model draws with torch, if it is not whole.
        seed: of Python's and numpy's generators, whose first two numbers are alike.
        which: of the whole numbers that a draw may give, in the order of `WHOLE`.
    """

    number: float
    seed: int
    which: int = 0


MIDDLE = Chance(HALF, 0)

EDGES = (Chance(0.01, 39_608), Chance(0.99, 1_470))
"""Small and large draws, to trigger actions of any probability, such as mixing some batches."""

SMALL = 16
"""Ranges of at most this many whole numbers are tried completely (ours)."""

SEEDS = (1590, 3332, 1246, 375, 730, 1091, 3298, 2866, 2876, 6532, 3306, 5293, 1640, 2170, 70,
         16_642)  # fmt: skip
"""Seeds of Python's and numpy's generators: the first draw of the i-th is i sixteenths, or i below
16. For smaller ranges together they give every value."""

OTHERS = tuple(Chance(HALF, seed, which) for which, seed in enumerate(SEEDS))
"""Other choices for draws of whole numbers."""

FILLED = ("bernoulli_", "uniform_", "normal_", "exponential_", "rand", "rand_like", "randn",
          "randn_like")  # fmt: skip
"""Names of operations that overwrite a tensor with random numbers."""


class FixedDraws(TorchDispatchMode):
    """Fixes a model's random draws for any batch size: dropout keeps all, numbers are one.

    Attributes:
        is_opaque: whether some draw could not be fixed, e.g. in a fused attention with dropout.
        has_drawn: whether other numbers could change the result, except masks as in dropout.
        is_beside_torch: whether Python's or numpy's generator was drawn from.
        is_narrowed: whether a model in float64 calculates some of it in less.
        is_halved: whether it calculates some of it in less than float32, as under autocast.
        choices: how many of `OTHERS` to try for the whole numbers that were drawn.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Have torch call this mode itself; it would import torch.compile's tracer to skip it."""
        return False

    def __init__(self, chance: Chance = MIDDLE) -> None:
        """Set the values of draws."""
        super().__init__()
        self.is_opaque = self.has_drawn = self.is_narrowed = self.is_halved = False
        self.is_beside_torch = False
        self.choices = 0
        self._chance = chance
        self._before: tuple[Any, ...] | None = None

    def __enter__(self) -> FixedDraws:
        """Start fixing draws, and reseed Python's and numpy's generators."""
        reseed(self._chance)
        self._before = _of_others()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        """End."""
        super().__exit__(*error)
        if self._before != _of_others():
            self.has_drawn, self.choices, self.is_beside_torch = True, SMALL, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation with its random draws fixed."""
        out = func(*args, **(kwargs or {}))
        self.is_narrowed = self.is_narrowed or _is_narrowing(args, out)
        self.is_halved = self.is_halved or _is_half(out)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return out
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            x, p, train = args
            return (x / (1 - p) if train and p < 1 else x.clone()), torch.ones_like(out[1])
        if name == "bernoulli":
            if not isinstance(args[0], Tensor):
                return out
            is_one = out.dim() == 0  # one draw for the whole batch; others are masks
            self.has_drawn |= is_one
            return out.copy_(args[0] >= (self._chance.number if is_one else HALF))
        if name == "randperm":
            return out.copy_(torch.arange(len(out) - 1, -1, -1))  # every shuffled item moves
        if name in WHOLE:
            given = _given(func, args, kwargs or {})
            values = WHOLE[name](out, given) if out.numel() else [out]
            self.choices = max(self.choices, min(len(values), SMALL))
            return out.copy_(torch.as_tensor(values[self._chance.which % len(values)]))
        if name == "bernoulli_" and out.numel() > 1:
            return out.fill_(1)
        if name in FILLED:
            self.has_drawn = True
            number = self._chance.number
            return out.fill_(float(number >= HALF) if name == "bernoulli_" else number)
        given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
        given |= _given(func, args, kwargs or {})  # PyTorch leaves out what is as by default
        self.is_opaque |= given.get("dropout_p", 1.0) != 0
        return out


def _is_narrowing(args: Any, out: Any) -> bool:
    """Return whether an operation on float64 gives numbers of less."""
    return (
        isinstance(out, Tensor)
        and out.is_floating_point()
        and out.dtype != torch.double
        and any(isinstance(each, Tensor) and each.dtype == torch.double for each in args)
    )


def _is_half(out: Any) -> bool:
    """Return whether an operation gives numbers that are coarser than float32's."""
    return (
        isinstance(out, Tensor)
        and out.is_floating_point()
        and torch.finfo(out.dtype).eps > torch.finfo(torch.float).eps
    )


def _given(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return an operation's arguments by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _of_range(out: Tensor, given: Any) -> Sequence[Any]:
    """Return the least and the largest whole number and some between; all of a small range."""
    low, high = (given.get(a, given.get(b)) for a, b in (("low", "from"), ("high", "to")))
    low = 0 if low is None else int(low)
    if high is None:
        kind = out.dtype
        high = (
            int(2 / torch.finfo(kind).eps)
            if kind.is_floating_point
            else 2
            if kind == torch.bool
            else torch.iinfo(kind).max
        )
    size = int(high) - low
    if size <= SMALL:
        return range(low, int(high))
    some = {0, 1, 2, size - 2, size - 1, *(size * eighth // 8 for eighth in range(1, 8))}
    return [low + each for each in sorted(some)]


def _of_poisson(out: Tensor, given: Any) -> Sequence[Any]:
    rate = given["self"]
    few = [torch.full_like(rate, each) for each in (0, 1, 2, 3)]
    return [rate.round(), *few, (rate + 6 * rate.sqrt() + 6).ceil()]


def _of_binomial(out: Tensor, given: Any) -> Sequence[Any]:
    count, share = given["count"], given["prob"]
    return [(count * share).round(), torch.zeros_like(out), count, count.clamp(max=1)]


def _of_waiting(out: Tensor, given: Any) -> Sequence[Any]:
    return [1, 2, 3, math.ceil(10 / given["p"])]


def _of_kinds(out: Tensor, given: Any) -> Sequence[Any]:
    """Return the categories by probability, without those of zero weight."""
    order = given["self"].argsort(dim=-1, descending=True, stable=True)
    some = max(1, int((given["self"] > 0).sum(-1).min()))
    at = torch.arange(out.shape[-1], device=out.device)
    return [order[..., (at + first) % some] for first in range(min(some, SMALL))]


WHOLE = {
    "randint": _of_range,
    "randint_like": _of_range,
    "random_": _of_range,
    "poisson": _of_poisson,
    "binomial": _of_binomial,
    "geometric_": _of_waiting,
    "multinomial": _of_kinds,
}
"""Operations that draw whole numbers, with their possible results; `Chance.which` selects one."""


def reseed(chance: Chance) -> None:
    """Reseed all generators."""
    seed_default(0, "probe", 0)
    random.seed(chance.seed)
    np.random.seed(chance.seed)


def _of_others() -> tuple[Any, ...]:
    """Return the states of Python's and numpy's generators."""
    _, words, place, *rest = cast(tuple[Any, ...], np.random.get_state())
    return random.getstate(), words.tobytes(), place, *rest
