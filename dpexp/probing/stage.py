"""The stage on which a model is tried: everything it changes is put back."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpexp.models.mode import in_mode
from dpexp.seeds import generator, seed_default

SHAKEN = 0.1
"""Of a layer's usual scale (ours): what starts at zero would hide what lies before it."""

PERIOD = 65_537
"""Numbers after which what moves a weight repeats (ours): a prime, so that no two rows do."""

OF_ALL_MODULES = frozenset(vars(nn.Module()))
"""Attributes that are torch's own: parameters, buffers, hooks, the mode."""

HALF = 0.5


class Chance(NamedTuple):
    """What chance gives.

    Attributes:
        number: every number that a model draws with torch.
        seed: of Python's and numpy's generators, whose first two numbers are alike.
    """

    number: float
    seed: int


MIDDLE = Chance(HALF, 0)
EDGES = (Chance(0.01, 39_608), Chance(0.99, 1_470))
"""For what is done with a small or a large probability, such as mixing some batches."""

FILLED = ("bernoulli_", "uniform_", "normal_", "exponential_", "rand", "rand_like", "randn",
          "randn_like")  # fmt: skip
"""Operations that fill a tensor whatever it holds, by name."""


class FixedDraws(TorchDispatchMode):
    """Fixes what a model draws, whatever the batch's size: dropout keeps all, numbers are one.

    Attributes:
        is_opaque: whether some draw could not be fixed, as within a fused attention with dropout.
        has_drawn: whether other numbers could have led elsewhere; masks, as of dropout, aside.
    """

    def __init__(self, chance: Chance = MIDDLE) -> None:
        """Say what is drawn, and begin with nothing seen."""
        super().__init__()
        self.is_opaque = self.has_drawn = False
        self._chance, self._before = chance, None

    def __enter__(self) -> FixedDraws:
        """Begin to fix draws; Python's and numpy's begin anew."""
        reseed(self._chance)
        self._before = _of_others()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        """End."""
        super().__exit__(*error)
        self.has_drawn |= self._before != _of_others()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, without chance."""
        out = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return out
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            x, p, train = args
            return (x / (1 - p) if train and p < 1 else x.clone()), torch.ones_like(out[1])
        if name == "bernoulli":
            return out.copy_(args[0] >= HALF) if isinstance(args[0], Tensor) else out
        if name == "randperm":
            return out.copy_(torch.arange(len(out) - 1, -1, -1))  # what is shuffled changes place
        if name.startswith("randint"):
            return out.fill_(out.min() if out.numel() else 0).zero_()
        if name == "bernoulli_" and out.numel() > 1:
            return out.fill_(1)
        if name in FILLED:
            self.has_drawn = True
            number = self._chance.number
            return out.fill_(float(number >= HALF) if name == "bernoulli_" else number)
        self.is_opaque |= _draws(func, args, kwargs or {})
        return out


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Say whether an operation that may draw does: a fused attention only with dropout."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("dropout_p", 1.0) != 0


@contextmanager
def staged(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Put a model in training mode, its weights slightly moved and of some precision; put all back.

    Weights are moved where they lie, so that whatever else holds one sees it. They get their own
    tensors back, and random numbers their state.
    """
    kept = [(tensor, tensor.data) for tensor in _tensors(model)]
    cuda = [device] if device.type == "cuda" else []
    chance, of_numpy = random.getstate(), np.random.get_state()
    gen = generator(0, "shaken", 0)
    with torch.random.fork_rng(cuda), in_mode(model, is_training=True), state_kept(model):
        try:
            for tensor, data in kept:
                if data.is_floating_point():
                    moved = data.to(dtype, copy=True)
                    if isinstance(tensor, nn.Parameter):
                        moved += _noise(moved, gen)
                    tensor.data = moved
                else:
                    tensor.data = data.clone()
            yield
        finally:
            for tensor, data in kept:
                tensor.data = data
            random.setstate(chance)
            np.random.set_state(of_numpy)


def _tensors(model: nn.Module) -> list[Tensor]:
    held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return list(held.values())


def _noise(like: Tensor, gen: torch.Generator) -> Tensor:
    inputs = math.prod(like.shape[1:]) if like.ndim > 1 else 1
    drawn = torch.randn(min(like.numel(), PERIOD), generator=gen).to(like)
    drawn *= SHAKEN / math.sqrt(max(1, inputs))
    times = -(-like.numel() // max(1, len(drawn)))
    return drawn.repeat(times)[: like.numel()].view(like.shape)


def reseed(chance: Chance) -> None:
    """Begin all draws anew."""
    seed_default(0, "probe", 0)
    random.seed(chance.seed)
    np.random.seed(chance.seed)


def _of_others() -> tuple[Any, ...]:
    """Tell how far draws without torch have come."""
    _, words, place, *rest = np.random.get_state()
    return random.getstate(), words.tobytes(), place, *rest


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy a model's buffers."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


Attributes = dict[tuple[str, str], Any]


def attributes_of(model: nn.Module) -> Attributes:
    """Give the tensors, numbers and lists of both that modules hold beside buffers, copied."""
    return {
        (name, key): _copied(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if _is_plain(key, value)
    }


def set_attributes(model: nn.Module, attributes: Attributes) -> None:
    """Put back what `attributes_of` gave."""
    modules = dict(model.named_modules())
    for (name, key), value in attributes.items():
        held = vars(modules[name]).get(key)
        if isinstance(held, list | deque) and isinstance(value, list | deque):
            held.clear()
            held.extend(value)
        elif isinstance(held, dict) and isinstance(value, dict):
            held.clear()
            held.update(value)
        else:
            vars(modules[name])[key] = value


def _is_plain(key: str, value: Any) -> bool:
    if key in OF_ALL_MODULES:
        return False
    leaves = tree_leaves(list(value) if isinstance(value, deque) else value)
    return all(
        leaf is None
        or isinstance(leaf, bool | int | float)
        or (isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter))
        for leaf in leaves
    )


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, deque):
        return deque(map(_copied, value), value.maxlen)
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return {k: _copied(each) for k, each in value.items()} if isinstance(value, dict) else value


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Put back which buffers and plain attributes modules hold, and what is in them."""
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(held, held.detach().clone()) for held in model.buffers()]
    originals = {
        (name, key): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if _is_plain(key, value)
    }
    contents = attributes_of(model)
    try:
        yield
    finally:
        modules = dict(model.named_modules())
        for module, some in buffers:
            module._buffers.update(some)
        with torch.no_grad():
            for buffer, value in values:
                if buffer.dtype == value.dtype:
                    buffer.copy_(value)
        for name, module in modules.items():
            for key in [k for k, v in vars(module).items() if _is_plain(k, v)]:
                if (name, key) not in originals:
                    del vars(module)[key]
        for (name, key), value in originals.items():
            vars(modules[name])[key] = value
            if isinstance(value, Tensor):
                with torch.no_grad():
                    value.detach().copy_(contents[name, key])
        lists = {at: kept for at, kept in contents.items() if isinstance(kept, list | deque | dict)}
        set_attributes(model, lists)
