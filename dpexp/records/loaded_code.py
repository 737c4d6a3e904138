"""Tell whether the user's modules are loaded as they stand in their files.

A notebook keeps what it has imported. A record hashes files, and would name code that did not run.
"""

from __future__ import annotations

import ast
import marshal
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dpexp.imported import content_at_import, file_of, is_own_file
from dpexp.types import ConfigError

_SEEN: dict[int, tuple[Any, bytes]] = {}
"""Of modules that were loaded by means unknown: by their specification, which a reload makes anew,
what was in their files at the first look."""


def require_as_loaded(files: Mapping[Path, bytes]) -> None:
    """Check that what is loaded of these files is what they say now, up to comments and layout.

    A file is compared with what was in it as it was imported. Of a module that was imported before
    dpexp, or by other means than Python's own, functions and constants are compared, and the rest
    with what was there at the first look.

    Args:
        files: of the user's modules, with their content.

    Raises:
        ConfigError: naming a file that has changed since it was imported.
    """
    contents = {os.path.realpath(path): content for path, content in files.items()}
    for name, module in [*sys.modules.items()]:
        origin = getattr(module, "__file__", None)
        if type(module) is not ModuleType or not isinstance(origin, str):
            continue
        if not is_own_file(origin):
            continue
        spec = getattr(module, "__spec__", None)
        now = contents.get(os.path.realpath(file_of(origin)))
        if now is None or getattr(spec, "_initializing", False):
            continue
        before, is_certain = content_at_import(name, origin)
        if before is None:
            key = module if spec is None else spec
            _, before = _SEEN.setdefault(id(key), (key, now))
        is_source = type(getattr(module, "__loader__", None)) is SourceFileLoader
        is_to_look = is_source and not is_certain
        if not _is_same(before, now) or (is_to_look and not may_be_of(module, now, origin)):
            raise ConfigError(
                f"Expected {Path(origin).name} as it was imported; it has changed since, or what "
                f"it defines has. Restart Python, or reload {name}."
            )


def _is_same(before: bytes, now: bytes) -> bool:
    """Return whether two contents of a file are the same program."""
    if before == now:
        return True
    try:
        return ast.dump(ast.parse(before)) == ast.dump(ast.parse(now))
    except (SyntaxError, ValueError, RecursionError):
        return False


def may_be_of(module: ModuleType, content: bytes, origin: str) -> bool:
    """Return whether a module is that of a source, as far as it can be told afterwards.

    By the bytecode that Python kept of what it imported, the names that the source defines, its
    functions and plain constants.
    """
    try:
        tree = ast.parse(content)
        code = compile(content, origin, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    kept = _kept_bytecode(module)
    if kept is not None and _content(kept) != _content(code):
        return False
    if not {*_defined(tree)} <= vars(module).keys():
        return False
    known = {*map(_content, _within(code))}
    functions = _functions(vars(module), module.__name__, origin, set())
    return all(_content(each.__code__) in known for each in functions) and all(
        _alike(vars(module).get(name, value), value) for name, value in _constants(tree)
    )


def _kept_bytecode(module: ModuleType) -> CodeType | None:
    """Return what Python has kept of a module as it imported it; None if it keeps nothing."""
    place = getattr(module, "__cached__", None)
    if place is None or sys.dont_write_bytecode or not os.access(os.path.dirname(place), os.W_OK):
        return None
    try:
        return marshal.loads(Path(place).read_bytes()[16:])
    except (OSError, ValueError, EOFError, TypeError):
        return None


def _functions(
    names: Mapping[str, Any], module: str, origin: str, seen: set[int]
) -> Iterator[FunctionType]:
    """Yield the functions of a file among what a module or class holds, also within its classes."""
    for value in names.values():
        if type(value) is property:
            value = value.fget
        elif type(value) in (classmethod, staticmethod):
            value = value.__func__
        if type(value) is FunctionType and value.__code__.co_filename == origin:
            yield value
        elif issubclass(type(value), type) and id(value) not in seen:
            seen.add(id(value))
            if value.__module__ == module:
                yield from _functions(vars(value), module, origin, seen)


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def _content(code: CodeType) -> tuple[Any, ...]:
    """Return what code does; neither its file nor its lines."""
    constants = [
        _content(each) if isinstance(each, CodeType) else (type(each).__name__, _words(each))
        for each in code.co_consts
    ]
    names = code.co_names, code.co_varnames, code.co_freevars
    return (
        code.co_qualname,
        code.co_code,
        code.co_exceptiontable,
        code.co_flags,
        *names,
        *constants,
    )


def _words(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _stored(tree: ast.Module) -> list[str]:
    """Return the names that a file assigns, defines or imports, each as often as it does."""
    stored = [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            stored += node.names
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            stored.append(node.name)
        elif isinstance(node, ast.alias):
            stored.append((node.asname or node.name).partition(".")[0])
    return stored


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the functions, classes and names that a file defines once, at its top."""
    stored = _stored(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        else:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [each.id for each in targets if isinstance(each, ast.Name)]
        yield from (name for name in names if stored.count(name) == 1)


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield numbers, words and tuples of them that a file assigns once, and to names of its own."""
    stored = _stored(tree)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue
        for target in targets:
            is_plain = isinstance(value, bool | int | float | complex | str | bytes | tuple | None)
            if isinstance(target, ast.Name) and is_plain and stored.count(target.id) == 1:
                yield target.id, value


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)
