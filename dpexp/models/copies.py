"""Copies of models that deepcopy alone refuses, or makes of two halves."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.grad_sample.hooking import refuse_overlaps
from dpexp.types import ConfigError

M = TypeVar("M", bound=nn.Module)


def copied(model: M) -> M:
    """Return a model that shares nothing with this one.

    `torch.nn.utils.weight_norm` and `prune` keep a weight that is computed from parameters as a
    plain attribute, and models keep what they last put out, also in lists and dicts; torch copies
    no such tensor. The copy has its numbers, without their history. A view of a parameter stays one
    of the copy's parameter.

    Raises:
        ConfigError: two parameters share memory, or a function, which no copy is made of, holds a
            part of the model.
    """
    refuse_overlaps(model)
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
            for function in tree_leaves(value):
                for held in _held_by(function):
                    if id(held) in names:
                        part = repr(names[id(held)]) if names[id(held)] else "the model itself"
                        place = f"{where}.{attribute}" if where else attribute
                        raise ConfigError(
                            f"Expected a model that can be copied; {place!r} is, or has in it, a "
                            f"function that holds {part}, and would go on to use the weights of "
                            "the model that was given. Make it a method, or a module."
                        )


def _held_by(function: Any) -> Iterator[Any]:
    """Return what a function has closed over, has as defaults, and finds by a global name."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        for each in tree_leaves(held):
            yield each
            if each is not function:
                yield from _defaults(each)
    yield from _defaults(function)
    globals_of = function.__globals__
    yield from (globals_of[name] for name in _names(function.__code__) if name in globals_of)


def _defaults(function: Any) -> Iterator[Any]:
    if isinstance(function, FunctionType):
        yield from tree_leaves((function.__defaults__, function.__kwdefaults__))


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that a function's code, and functions in it, look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
