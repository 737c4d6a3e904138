"""Hash what a model computes, so that a finished run is looked up for the same model alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def code_digest(model: nn.Module) -> str:
    """Return a hash of a model's modules: their classes' code, and the settings that they hold.

    Classes of torch are named, others are hashed by their functions' bytecode, which a notebook's
    cells have too. Not seen: functions and globals that a class calls outside of itself. Another
    version of Python may give another hash.

    Returns:
        SHA-256 in 64 hexadecimal digits.
    """
    whole = hashlib.sha256()
    for name, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        whole.update(f"{name} {kind.__qualname__} {_settings(module)!r}\n".encode())
        for base in kind.__mro__:
            if not base.__module__.startswith(("torch.nn.", "builtins")):
                for part in _functions(base):
                    whole.update(part)
    return whole.hexdigest()


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    """Return the plain values among a module's attributes, sorted by name."""
    values = {**vars(module), "training": None}
    return [(name, repr(value)) for name, value in sorted(values.items()) if _is_plain(value)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return isinstance(value, PLAIN) and not isinstance(value, Tensor)


def _functions(kind: type) -> Iterator[bytes]:
    for name, value in sorted(vars(kind).items()):
        value = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(value, FunctionType):
            yield name.encode()
            yield from _code(value.__code__)


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif _is_plain(constant):
            yield repr(constant).encode()
