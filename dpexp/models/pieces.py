"""What an object's behaviour consists of: its class and what it holds, piece by piece."""

from __future__ import annotations

import _thread
import copyreg
import dataclasses
import enum
import functools
import sys
import types
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils.hooks import RemovableHandle

from dpexp.grad_sample.freezing import trains
from dpexp.imported import is_own
from dpexp.models.naming_code import imported, named, resolved
from dpexp.records.own_code import loaded_files_of
from dpexp.records.weights import digest

Piece = tuple[str, Any]

NAMED = {"torch", "numpy", "builtins", *sys.stdlib_module_names}
"""Packages whose classes and functions are named and not looked into."""

HARMLESS = (_thread.LockType, _thread.RLock, RemovableHandle)
"""Types that compute nothing, whatever state they are in."""

BY_TEXT = (torch.iinfo, torch.finfo, OpOverload, OpOverloadPacket)
"""Types whose values are told apart by their text."""

OF_PYTHON = 1 << 9
"""Flag of a class that is made as a program runs, not part of a library in C."""

DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)

NEUTRAL = {
    "__annotations__", "__dict__", "__doc__", "__module__", "__orig_bases__", "__parameters__",
    "__qualname__", "__slotnames__", "__type_params__", "__weakref__", "_abc_impl",
    "_backward_cls", "__pydantic_core_schema__", "__pydantic_serializer__",
    "__pydantic_validator__",
}  # fmt: skip
"""Attributes of a class that say where it stands, follow from others, or differ by process."""

OF_ATTRIBUTES = (vars(copyreg)["__newobj__"], vars(copyreg)["__newobj_ex__"])
"""What makes an object that is no more than its attributes."""

PARAMETRIZE = "torch.nn.utils.parametrize"
"""Makes a class for each module, whose properties remember the module that was there first."""


@dataclass
class Pieces:
    """What an object consists of.

    Attributes:
        kind: of object, and what tells it apart as text.
        of: its pieces under labels, in an order that does not depend on the process.
        names: that its code uses.
        members: of a set, in any order.
        is_library: whether it is a library's own doing.
    """

    kind: str
    of: Iterable[Piece] = ()
    names: frozenset[str] = frozenset()
    members: Iterable[Any] | None = None
    is_library: bool = False


@dataclass
class Opaque:
    """Something that nothing can be said of."""

    is_harmless: bool


class State:
    """A model's modules, and the tensors in its state, whose values are hashed apart."""

    def __init__(self, model: nn.Module) -> None:
        """Look a model through."""
        self._held = [*model.modules(), *model.state_dict(keep_vars=True).values()]
        self.modules = {id(each) for each in self._held if isinstance(each, nn.Module)}
        self.tensors = {id(each) for each in self._held if isinstance(each, Tensor)}
        self.storages: dict[int, int] = {}


def is_of_the_user(value: Any) -> bool:
    """Return whether a function, a class, or else a value's class is the user's own."""
    if isinstance(value, FunctionType):
        return is_own(value.__globals__.get("__name__"))
    return is_own((value if isinstance(value, type) else type(value)).__module__)


def pieces(value: Any, state: State) -> Pieces | Opaque:
    """Return what an object consists of; `Opaque` for what cannot be looked into.

    Args:
        value: any object but a plain value, a tuple, code or a bound method.
        state: of the model that it was reached from.
    """
    kind = type(value)
    if isinstance(value, HARMLESS):
        return Opaque(is_harmless=True)
    if isinstance(value, BY_TEXT):
        return Pieces(f"{kind.__name__} {value}")
    if isinstance(value, ModuleType):
        return Pieces(f"module {value.__name__}")
    if name := _shared_name(value):
        return Pieces(f"of a library {name}")
    if isinstance(value, nn.Module):
        return Pieces("nn.Module", _of_module(value, state))
    if isinstance(value, Tensor):
        return _of_tensor(value, state)
    if isinstance(value, type):
        return _of_class(value)
    if kind is FunctionType:
        return _of_function(value)
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        owner = getattr(value, "__self__", None)
        name = value.__qualname__
        if owner is None or isinstance(owner, ModuleType):
            return Pieces(f"function {value.__module__}.{name}")
        return Pieces(f"function {name}", [("self", owner)])
    if isinstance(value, DESCRIPTORS):
        return Pieces(f"descriptor {value.__qualname__}")
    if isinstance(value, set | frozenset):
        return Pieces(f"set {len(value)}", [("class", kind), *_attributes(value)], members=value)
    if kind is list:
        return Pieces("list", _numbered(value))
    if kind is dict or kind is types.MappingProxyType:
        return Pieces("dict", _items(value))
    if found := _of_builtin(value):
        return Pieces(kind.__name__, found)
    return _of_object(value)


def _of_builtin(value: Any) -> list[Piece]:
    """Return the pieces of what Python makes of a class's or a function's parts."""
    if isinstance(value, CellType):
        try:
            return [("content", value.cell_contents)]
        except ValueError:  # not set yet
            return [("empty", None)]
    if isinstance(value, classmethod | staticmethod):
        return [("function", value.__func__)]
    if type(value) is property:
        return [("get", value.fget), ("set", value.fset), ("delete", value.fdel)]
    if isinstance(value, weakref.ReferenceType):
        return [("referent", value())]
    if isinstance(value, enum.Enum):
        return [("class", type(value)), ("name", value._name_), ("value", value._value_)]
    if isinstance(value, dataclasses.Field):
        names = ("name", "default", "default_factory", "init", "kw_only", "metadata", "compare")
        return [(name, getattr(value, name)) for name in names]
    if type(value) is np.ndarray:
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        return [("dtype", value.dtype), ("shape", value.shape), ("content", content)]
    if isinstance(value, torch.jit.ScriptFunction):
        return [("code", value.code)]
    return []


def _of_object(value: Any) -> Pieces | Opaque:
    """Return what pickle and copy make an object anew of."""
    kind = type(value)
    reduce = copyreg.dispatch_table.get(kind, lambda each: each.__reduce_ex__(4))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = reduce(value)
    except Exception:  # anyone's class, which may raise anything
        if is_own(kind.__module__) or not callable(value) or not hasattr(value, "__name__"):
            return Opaque(is_harmless=False)
        made = value.__name__
    if isinstance(made, str):
        place = getattr(value, "__module__", None)
        return Pieces(f"global {place}.{made}", [("class", kind), *_attributes(value)])
    function, arguments, state, items, pairs = (*made, None, None, None)[:5]
    found: list[Piece] = [("class", kind), ("function", function), ("arguments", arguments)]
    if function in OF_ATTRIBUTES and kind.__getstate__ is object.__getstate__:
        whole, slots = state if isinstance(state, tuple) else (state, None)
        found += _sorted(whole or {}) + _sorted(slots or {})
    else:
        found.append(("state", state))
    found += _numbered(items or ())
    found += _items(dict(pairs or ()))
    return Pieces("object", found, is_library=not is_own(kind.__module__))


def _of_module(module: nn.Module, state: State) -> Iterator[Piece]:
    """Yield a module's class and attributes; hooks under numbers of its own."""
    yield "class", type(module)
    held = dict(vars(module))
    if id(module) in state.modules:
        held.pop("training", None)  # is set as it trains
    if isinstance(module, torch.fx.GraphModule):
        held.pop("_graph")  # of which its code is made, with notes of where in files that was
    hooks = {name: each for name, each in held.items() if name in HOOKS and each}
    numbers = {key: index for index, key in enumerate(sorted({*_keys(hooks.values())}))}
    for name, each in _sorted(held):
        if name in hooks:
            for key, hook in each.items():
                yield f"{name} {numbers[key]}", hook
        elif name not in HOOKS:
            yield name, each


HOOKS = {name for name in vars(nn.Module()) if "hooks" in name}
"""Attributes of a module that hold hooks, under numbers of the process."""


def _keys(groups: Iterable[Mapping[int, Any]]) -> Iterator[int]:
    for group in groups:
        yield from group


def _of_tensor(value: Tensor, state: State) -> Pieces | Opaque:
    """Return a tensor's pieces; of one in the model's state, all but its values."""
    kind = type(value)
    found: list[Piece] = [("class", kind)]
    if isinstance(value, nn.Parameter):
        found.append(("trains", trains(value)))
    else:
        found += [("requires_grad", value.requires_grad), *_attributes(value)]
        if value.layout == torch.strided and value.device.type != "meta":
            where = value.untyped_storage()._cdata
            number = state.storages.setdefault(where, len(state.storages))
            found += [("storage", number), ("offset", value.storage_offset())]
    if id(value) in state.tensors or nn.parameter.is_lazy(value):
        return Pieces("tensor", found)
    found += [("dtype", str(value.dtype)), ("shape", (*value.shape,))]
    if value.device.type != "meta":
        try:
            found.append(("values", _values(value.detach())))
        except (RuntimeError, TypeError, NotImplementedError):
            return Opaque(is_harmless=False)
    return Pieces("tensor", found)


def _values(value: Tensor) -> Any:
    if value.layout == torch.sparse_coo:
        value = value.coalesce()
        return _values(value.indices()), _values(value.values())
    if value.is_quantized:
        raise NotImplementedError
    return digest({"": value.resolve_conj().resolve_neg()})


def _of_class(kind: type) -> Pieces:
    """Return a class's pieces: all of the user's own, functions and plain values of a library's."""
    held, is_the_users = vars(kind), is_own(kind.__module__)
    bases: list[Piece] = [("base", base) for base in kind.__bases__]
    if kind.__module__ == PARAMETRIZE:
        names = ",".join(sorted(name for name, each in held.items() if type(each) is property))
        return Pieces(f"parametrized {names}", bases)
    if _is_named(kind):
        changed = [each for each in _sorted(held) if _is_users_function(each[1])]
        return Pieces(f"class {kind.__module__}.{kind.__qualname__}", [*bases, *changed])
    found = [("metaclass", type(kind)), *bases]
    for name, value in _sorted(held):
        if name not in NEUTRAL and (is_the_users or _is_code(value)):
            found.append((name, value))
    return Pieces(f"class {kind.__qualname__}", found, is_library=not is_the_users)


def _of_function(function: FunctionType) -> Pieces:
    """Return a function's code, defaults, and what it has closed over, carries and names."""
    place = function.__globals__.get("__name__")
    name = function.__qualname__
    # Not looked up by its name: once torch.compile is used, torch wraps some of its functions anew.
    is_named = _of(function.__module__) and _of(place) and "<locals>" not in name
    if place == PARAMETRIZE or is_named:
        return Pieces(f"function {function.__module__}.{name}")
    found: list[Piece] = [("code", function.__code__), ("defaults", function.__defaults__)]
    found += _sorted(function.__kwdefaults__ or {})
    if compiled := vars(function).get("_torchdynamo_orig_callable"):
        return Pieces("compiled", [("of", compiled)])
    if place == functools.__name__ and "registry" in vars(function):
        # A function of functools.singledispatch, whose closure also holds what was called so far.
        registry = vars(function)["registry"]
        return Pieces("dispatch", [("code", function.__code__), *_items(registry)])
    found += [("closed over", cell) for cell in function.__closure__ or ()]
    found += _attributes(function)
    if not is_own(place):
        return Pieces("function", found, is_library=True)
    names = named(function.__code__)
    for chain in sorted(names.chains):
        if there := resolved(chain, function.__globals__):
            found.append(_unless_librarys(*there))
    for parts in sorted(imported(function)):
        if files := loaded_files_of(parts):
            found.append((".".join(parts), sorted(files.items())))
    return Pieces("function", found, names.words)


def _unless_librarys(name: str, holder: str | None, value: Any) -> Piece:
    """Return what a name leads to; only the name for what a library's module holds.

    A function or class counts there too, since it may be planted.
    """
    is_code = isinstance(value, type | FunctionType | ModuleType)
    return (name, name if holder is not None and not is_own(holder) and not is_code else value)


def _is_named(kind: type) -> bool:
    """Return whether a name leads to a class of torch, numpy or Python."""
    if not _of(kind.__module__):
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind or not kind.__flags__ & OF_PYTHON


def _shared_name(value: Any) -> str | None:
    """Return the name of what torch, numpy or Python holds for all, such as `os.environ`.

    What it holds is the process's: its environment, or the state of its random numbers.
    """
    owner = value
    if isinstance(value, types.BuiltinFunctionType | types.MethodType):
        owner = value.__self__
    place = type(owner).__module__
    if isinstance(owner, type | ModuleType | FunctionType | Tensor | nn.Module) or not _of(place):
        return None
    held = vars(sys.modules[place]) if place in sys.modules else {}
    return next((f"{place}.{name}" for name, each in held.items() if each is value), None)


def _of(place: Any) -> bool:
    """Return whether a module is torch's, numpy's or Python's."""
    return isinstance(place, str) and place.partition(".")[0] in NAMED and not is_own(place)


def _is_users_function(value: Any) -> bool:
    return type(value) is FunctionType and is_of_the_user(value)


def _is_code(value: Any) -> bool:
    plain = bool | int | float | complex | str | bytes | tuple | None
    return isinstance(value, FunctionType | property | classmethod | staticmethod | plain)


def _attributes(value: Any) -> list[Piece]:
    return _sorted(getattr(value, "__dict__", {}))


def _sorted(held: Mapping[Any, Any]) -> list[Piece]:
    return sorted(((str(name), each) for name, each in held.items()), key=lambda piece: piece[0])


def _numbered(values: Iterable[Any]) -> list[Piece]:
    return [(str(index), each) for index, each in enumerate(values)]


def _items(held: Mapping[Any, Any]) -> list[Piece]:
    found: list[Piece] = []
    for key, value in held.items():
        label = key if isinstance(key, str) else "value"
        found += [("key", key), (label, value)]
    return found
