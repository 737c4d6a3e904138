"""Isolate a model under test: everything that it changes is restored."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.models.mode import in_mode
from dpexp.privacy.seeds import generator

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
def chance_kept(cuda: Iterable[torch.device | int] | None = ()) -> Iterator[None]:
    """Restore the states of torch's, Python's and numpy's generators afterwards.

    Args:
        cuda: GPUs whose generators are restored; None: all.
    """
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
