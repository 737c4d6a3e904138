"""Hash what a model computes, so that a finished run is looked up for the same model alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from dpexp.grad_sample.freezing import trains
from dpexp.records.own_code import is_own
from dpexp.records.weights import digest

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def code_digest(model: nn.Module) -> str:
    """Return a hash of a model's modules: their classes' code, and what they hold.

    Classes of torch are named, others are hashed by their functions' bytecode and plain attributes,
    which a notebook's cells have too, and so are functions, classes and plain globals that their
    code names, as far as they are the user's own. Of a module count its settings, tensors outside
    of its state, functions, hooks and which parameters are frozen. Not seen: what code finds by a
    name made as it runs. Another version of Python may give another hash.

    Returns:
        SHA-256 in 64 hexadecimal digits.
    """
    whole, seen = hashlib.sha256(), set[int]()
    for name, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        whole.update(f"{name} {kind.__qualname__} {_settings(module)!r}\n".encode())
        for base in kind.__mro__:
            if not base.__module__.startswith(("torch.nn.", "builtins")):
                for part in _of_class(base, seen):
                    whole.update(part)
        for part in _of_module(module, seen):
            whole.update(part)
    return whole.hexdigest()


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    """Return the plain values among a module's attributes, sorted by name."""
    values = {**vars(module), "training": None}
    return [(name, _words(value)) for name, value in sorted(values.items()) if _is_plain(value)]


def _words(value: Any) -> str:
    """Return a plain value's text; a set's is sorted, as its order changes between processes."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(map(_words, value))}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[*map(_words, value)]}" if _has_set(value) else repr(value)
    return repr(value)


def _has_set(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_set, value))
    return isinstance(value, set | frozenset)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, PLAIN) and not isinstance(value, Tensor)


def _of_class(kind: type, seen: set[int]) -> Iterator[bytes]:
    """Yield a class's functions and plain attributes, once."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for name, value in sorted(vars(kind).items()):
        value = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(value, FunctionType):
            yield name.encode()
            yield from _function(value, seen)
        elif not name.startswith("__") and _is_plain(value):
            yield f"{name}={_words(value)}".encode()


def _of_module(module: nn.Module, seen: set[int]) -> Iterator[bytes]:
    """Yield what a module holds that is neither plain nor in its state."""
    for name, parameter in module.named_parameters(recurse=False):
        if not trains(parameter):
            yield f"{name} is frozen".encode()
    for name in sorted(module._non_persistent_buffers_set):
        yield from _held(name, module._buffers[name], seen)
    for name, value in sorted(vars(module).items()):
        if name not in ("_parameters", "_buffers", "_modules"):
            yield from _held(name, value, seen)


def _held(
    name: str, value: Any, seen: set[int], within: frozenset[int] = frozenset()
) -> Iterator[bytes]:
    """Yield tensors, arrays and functions, also within lists and dictionaries."""
    if id(value) in within:
        return
    if isinstance(value, Tensor):
        yield f"{name} {digest({'': value})}".encode()
    elif isinstance(value, np.ndarray):
        if value.dtype != object:
            yield f"{name} {value.dtype.str} {value.shape}".encode()
            yield value.tobytes()
    elif isinstance(value, FunctionType):
        yield f"{name} {value.__qualname__}".encode()
        yield from _function(value, seen)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _held(f"{name}.{index}", each, seen, within | {id(value)})
    elif isinstance(value, dict):  # hooks stand here under numbers of the process
        for index, (key, each) in enumerate(value.items()):
            word = key if isinstance(key, str) else index
            yield from _held(f"{name}.{word}", each, seen, within | {id(value)})
    elif not isinstance(value, nn.Module) and callable(value) and hasattr(value, "__name__"):
        yield f"{name} {value.__name__}".encode()


def _function(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    """Yield a function's code, defaults, and what it has closed over or names; once."""
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _code(function.__code__)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    for index, value in enumerate([*defaults, *map(_content, function.__closure__ or ())]):
        if _is_plain(value):
            yield f"{index}={_words(value)}".encode()
        else:
            yield from _held(str(index), value, seen)
    if is_own(function.__module__):
        yield from _named({*_names(function.__code__)}, function.__globals__, seen)


def _named(names: set[str], there: Mapping[str, Any], seen: set[int]) -> Iterator[bytes]:
    """Yield what these names stand for in a module: the user's own, and plain values."""
    for name in sorted(names & there.keys()):
        value = there[name]
        if isinstance(value, ModuleType):
            if is_own(value.__name__) and id(value) not in seen:
                yield name.encode()
                yield from _named(names - {name}, vars(value), seen)
        elif isinstance(value, FunctionType | type):
            yield f"{name} {value.__qualname__}".encode()
            if is_own(value.__module__):
                yield from (
                    _of_class(value, seen) if isinstance(value, type) else _function(value, seen)
                )
        elif _is_plain(value):
            yield f"{name}={_words(value)}".encode()
        else:
            yield from _held(name, value, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in code and in functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif _is_plain(constant):
            yield _words(constant).encode()
