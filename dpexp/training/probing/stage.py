"""Isolate a model under test: everything that it changes is restored."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpexp.models.mode import in_mode
from dpexp.privacy.seeds import generator, seed_default

SHAKEN = 0.1
"""Shift of weights, as a fraction of a layer's usual scale (ours): a weight that starts at zero
would hide the layers before it."""

LOUD = 1.0
"""Shift of trained weights in the second trial (ours): each at a layer's usual scale, as training
may bring it there."""

PERIOD = 65_537
"""Period of the numbers that shift a weight (ours): a prime, so that no two rows are equal."""

OF_ALL_MODULES = frozenset(vars(nn.Module()))
"""torch's own attributes: parameters, buffers, hooks, the mode."""

HALF = 0.5


class Chance(NamedTuple):
    """Fixed values of random draws.

    Attributes:
        number: every number that a model draws with torch, if it is not whole.
        seed: of Python's and numpy's generators, whose first two numbers are alike.
        which: of the whole numbers that a draw may give, in the order of `_WHOLE`.
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
        is_narrowed: whether a model in float64 calculates some of it in less.
        choices: how many of `OTHERS` to try for the whole numbers that were drawn.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Have torch call this mode itself; it would import torch.compile's tracer to skip it."""
        return False

    def __init__(self, chance: Chance = MIDDLE) -> None:
        """Set the values of draws."""
        super().__init__()
        self.is_opaque = self.has_drawn = self.is_narrowed = False
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
            self.has_drawn, self.choices = True, SMALL

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation with its random draws fixed."""
        out = func(*args, **(kwargs or {}))
        self.is_narrowed = self.is_narrowed or _is_narrowing(args, out)
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


@contextmanager
def staged(
    model: nn.Module,
    dtype: torch.dtype,
    device: torch.device,
    shift: float = SHAKEN,
    names: Collection[str] | None = None,
    draw: int = 0,
) -> Iterator[None]:
    """Shift a model's weights, of a dtype, in the mode that the model is in; restore it later.

    Weights are shifted in place, so that every reference to them changes. Afterwards the original
    tensors and random states are restored.

    Args:
        model: to put on stage.
        dtype: of its floating-point tensors.
        device: the model's.
        shift: as a fraction of a layer's usual scale.
        names: of the parameters that are shifted; None: all of them.
        draw: which draw of the shifts.
    """
    named = model.named_parameters(remove_duplicate=False)
    shifted = {id(each) for name, each in named if names is None or name in names}
    kept = [(tensor, tensor.data) for tensor in _tensors(model)]
    cuda = [device] if device.type == "cuda" else []
    gen = generator(0, "shaken", draw)
    with chance_kept(cuda), in_mode(model, is_training=model.training), state_kept(model):
        try:
            for tensor, data in kept:
                if data.is_floating_point():
                    moved = data.to(dtype, copy=True)
                    if id(tensor) in shifted:
                        moved += _noise(moved, shift, gen)
                    tensor.data = moved
                else:
                    tensor.data = data.clone()
            yield
        finally:
            for tensor, data in kept:
                tensor.data = data


@contextmanager
def chance_kept(cuda: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restore the states of torch's, Python's and numpy's generators afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(cuda):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _tensors(model: nn.Module) -> list[Tensor]:
    held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return list(held.values())


def _noise(like: Tensor, shift: float, gen: torch.Generator) -> Tensor:
    inputs = math.prod(like.shape[1:]) if like.ndim > 1 else 1
    drawn = torch.randn(min(like.numel(), PERIOD), generator=gen).to(like)
    drawn *= shift / math.sqrt(max(1, inputs))
    times = -(-like.numel() // max(1, len(drawn)))
    return drawn.repeat(times)[: like.numel()].view(like.shape)


def reseed(chance: Chance) -> None:
    """Reseed all generators."""
    seed_default(0, "probe", 0)
    random.seed(chance.seed)
    np.random.seed(chance.seed)


def _of_others() -> tuple[Any, ...]:
    """Return the states of Python's and numpy's generators."""
    _, words, place, *rest = cast(tuple[Any, ...], np.random.get_state())
    return random.getstate(), words.tobytes(), place, *rest


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's buffers."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


Attributes = dict[tuple[str, str], Any]


def attributes_of(model: nn.Module) -> Attributes:
    """Return copies of modules' tensors, numbers and lists of both, other than buffers."""
    return {at: _copied(value) for at, value in _plain_attributes(model).items()}


def _plain_attributes(model: nn.Module) -> Attributes:
    return {
        (name, key): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if _is_plain(key, value)
    }


def set_attributes(model: nn.Module, attributes: Attributes) -> None:
    """Restore the attributes that `attributes_of` returned."""
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
            modules[name].__dict__[key] = value


def _is_plain(key: str, value: Any) -> bool:
    if key in OF_ALL_MODULES or type(value) is str:
        return False
    if value is None or type(value) in (bool, int, float):  # most are; a tree takes far longer
        return True
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
def restored_before_each(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Yield a function that restores modules' state and parameters, which is also done at the end.

    To be called before a forward pass: what a pass holds for its backward pass is not written to
    in between.
    """
    values = [(p, p.detach().clone()) for p in model.parameters()]
    with ExitStack() as stack:

        def restore() -> None:
            stack.close()
            with torch.no_grad():
                for parameter, value in values:
                    if not torch.equal(parameter, value):
                        parameter.copy_(value)
            stack.enter_context(state_kept(model))

        restore()
        yield restore
        restore()


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Restore modules' tensors and plain attributes afterwards, except parameters' values."""
    held_by = [(m, dict(m._buffers), dict(m._parameters)) for m in model.modules()]
    values = [(held, held.detach().clone()) for held in model.buffers()]
    originals = _plain_attributes(model)
    contents = {at: _copied(value) for at, value in originals.items()}
    try:
        yield
    finally:
        modules = dict(model.named_modules())
        for module, buffers, parameters in held_by:
            module._buffers.update(buffers)
            module._parameters.update(parameters)
        with torch.no_grad():
            for buffer, value in values:
                if buffer.dtype == value.dtype:
                    buffer.copy_(value)
        for name, module in modules.items():
            for key in [k for k, v in vars(module).items() if _is_plain(k, v)]:
                if (name, key) not in originals:
                    del module.__dict__[key]
        for (name, key), value in originals.items():
            modules[name].__dict__[key] = value
            if isinstance(value, Tensor):
                with torch.no_grad():
                    value.detach().copy_(contents[name, key])
        lists = {at: kept for at, kept in contents.items() if isinstance(kept, list | deque | dict)}
        set_attributes(model, lists)
