"""Copies of models that deepcopy alone refuses, or makes of two halves."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dis import get_instructions
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.grad_sample.hooking import refuse_overlaps
from dpexp.types import ConfigError

M = TypeVar("M", bound=nn.Module)

LOOKS_UP = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
"""Instructions of Python 3.11 and 3.12 that may find a global name; the others are of classes."""


def copied(model: M) -> M:
    """Return a model that shares nothing with this one.

    `torch.nn.utils.weight_norm` and `prune` keep a weight that is computed from parameters as a
    plain attribute, and models keep what they last put out, also in lists and dicts; torch copies
    no such tensor. The copy has its numbers, without their history. A view of a parameter stays one
    of the copy's parameter.

    Raises:
        ConfigError: parameters or buffers share memory, or a function, which no copy is made of,
            holds a part of the model.
    """
    refuse_overlaps(model)
    _refuse_buffers(model)
    _refuse_functions(model)
    known: dict[int, Any] = {}
    for parameter in model.parameters():
        copy.deepcopy(parameter, known)
    held = chain.from_iterable(tree_leaves(vars(module)) for module in model.modules())
    for each in held:
        if isinstance(each, Tensor) and not each.is_leaf:
            base = each._base
            other = known.get(id(base))
            if isinstance(base, nn.Parameter) and other is not None:
                offset = each.storage_offset() - base.storage_offset() + other.storage_offset()
                assert other.stride() == base.stride()
                known[id(each)] = other.as_strided(each.size(), each.stride(), offset)
            else:
                known[id(each)] = each.detach().clone()
    return copy.deepcopy(model, known)


def _refuse_functions(model: nn.Module) -> None:
    """Refuse attributes and hooks that are functions and hold a part of the model.

    deepcopy takes functions as they are: the copy's would go on to use the original's weights.
    """
    names = {id(part): name for name, part in model.named_modules()}
    names |= {id(parameter): name for name, parameter in model.named_parameters()}
    for where, module in model.named_modules():
        for attribute, value in vars(module).items():
            for held in _held_by(tree_leaves(value)):
                part = repr(names[held]) if names.get(held) else "the model itself"
                if held in names:
                    place = f"{where}.{attribute}" if where else attribute
                    raise ConfigError(
                        f"Expected a model that can be copied; {place!r} is, or has in it, a "
                        f"function that holds {part}, and would go on to use the weights of the "
                        "model that was given. Make it a method, or a module."
                    )


def _held_by(values: Iterable[Any]) -> Iterator[int]:
    """Yield the ids of modules and parameters that functions among values hold, by any way.

    A function holds what it has closed over, has as defaults, and finds by a global name; what it
    holds holds more.
    """
    waiting: list[Any] = []
    for value in values:  # which deepcopy takes apart, but for functions
        while isinstance(value, functools.partial):
            value = value.func
        # torch.compile's wrappers, which `unwrapped` takes off, have functions of torch's own.
        if isinstance(value, FunctionType) and not str(value.__module__).startswith("torch."):
            waiting.append(value)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType):
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module | nn.Parameter):
            yield id(value)
        elif isinstance(value, FunctionType):
            waiting += _of_function(value)
        elif isinstance(value, functools.partial):
            waiting += tree_leaves((value.func, value.args, value.keywords))
        elif isinstance(value, MethodType):
            waiting += (value.__self__, value.__func__)
        elif not isinstance(value, Tensor):
            waiting += tree_leaves(getattr(value, "__dict__", None))


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield from tree_leaves(cell.cell_contents)
    yield from tree_leaves((function.__defaults__, function.__kwdefaults__))
    known = function.__globals__
    found = (known[name] for name in _names(function.__code__) if name in known)
    # Of all that a program has, what functions of its modules hold would be the whole program.
    yield from (each for each in found if isinstance(each, nn.Module | nn.Parameter))


def _refuse_buffers(model: nn.Module) -> None:
    """Refuse buffers that hold a parameter's memory: they move with it, and a copy's would not."""
    places = {
        each.untyped_storage().data_ptr(): name
        for name, each in model.named_parameters()
        if each.data_ptr()
    }
    for name, buffer in model.named_buffers():
        if buffer.data_ptr() and (of := places.get(buffer.untyped_storage().data_ptr())):
            raise ConfigError(
                f"Expected buffers of their own memory; {name!r} holds that of {of!r}. Read the "
                "parameter in its place, or make it a copy."
            )


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that a function's code, and functions in it, look up."""
    # co_names has attributes' names too: `layer.scale` looks up no global `scale`.
    yield from (each.argval for each in get_instructions(code) if each.opname in LOOKS_UP)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
