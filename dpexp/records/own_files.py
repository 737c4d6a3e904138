"""Find the user's own files behind a dotted name, without importing any."""

from __future__ import annotations

import ast
import dis
import marshal
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import BYTECODE_SUFFIXES, ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from dpexp.imported import file_of, is_own_file

FINDERS = {
    "__import__", "import_module", "find_spec", "get_class", "get_method", "get_object",
    "get_static_method", "locate",
}  # fmt: skip
"""Functions that find code by a word."""

MAIN = "__main__"


def files_behind(parts: Sequence[str]) -> dict[str, tuple[Path, bytes]]:
    """Return the user's files that a dotted name needs: those along it and all that they import.

    Returns:
        By a file's place, as modules are named: its path and content. Without what is dpexp's, the
        standard library's or an installed library's, and what is not found.
    """
    found: dict[str, tuple[Path, bytes]] = {}
    done: set[Any] = set()
    waiting = [tuple(parts)]
    while waiting:
        names = waiting.pop()
        if names in done:
            continue
        done.add(names)
        for module in _along(names):
            if module.origin in done:
                continue
            done.add(module.origin)
            path = file_of(module.origin)
            is_whole = path == Path(module.origin)
            try:
                content = path.read_bytes()
                source = content if is_whole else module.spec.loader.get_data(module.origin)
            except FileNotFoundError:  # of a module that is loaded: it is no longer as it was
                content = source = b""
            except (OSError, AttributeError):
                continue
            place = "/".join([*module.package, path.name]) if is_whole else path.name
            found[place] = path, content
            waiting += map(tuple, _imports(Path(module.origin), source, module.package))
    return found


class _Module(NamedTuple):
    """A module of the user's: its file, and the package that it is in, or is."""

    origin: str
    package: list[str]
    spec: Any


def _along(parts: Sequence[str]) -> Iterator[_Module]:
    """Yield the user's modules along a dotted name: packages, then the module."""
    if parts[0] == MAIN:
        yield from _script()
        return
    within: Any = None
    for length in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:length]), within)
        if spec is None:
            return
        places = spec.submodule_search_locations
        within = None if places is None else [*places]
        if spec.has_location and spec.origin is not None and is_own_file(spec.origin):
            yield _Module(spec.origin, [*parts[: length - (within is None)]], spec)
        if within is None:
            return


def _script() -> Iterator[_Module]:
    """Yield the script that runs; a notebook has none."""
    main = sys.modules[MAIN]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is not None and is_own_file(file):
        package = spec.parent.split(".") if spec is not None and spec.parent else []
        yield _Module(file, package, spec)


def _spec(name: str, within: Any) -> ModuleSpec | None:
    """Return where a module is, or would be imported from, given its package's folders."""
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    for finder in [*sys.meta_path]:
        try:
            spec = finder.find_spec(name, within)
        except KeyError:  # a namespace's folders ask for its parent, which is not imported
            spec = ModuleSpec(name, None, is_package=True)
            part = name.rpartition(".")[2]
            places = [Path(folder, part) for folder in within]
            spec.submodule_search_locations = [str(place) for place in places if place.is_dir()]
        except (ImportError, ValueError, AttributeError, TypeError, OSError):
            continue
        if spec is not None:
            return spec
    return None


def _imports(path: Path, content: bytes, package: list[str]) -> Iterator[list[str]]:
    """Yield the dotted names that a file imports, as parts; of what it names itself, absolute."""
    if path.suffix in BYTECODE_SUFFIXES:
        yield from _of_bytecode(content, package)
        return
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            taken = [alias.name for alias in node.names]
            yield from _taken(node.module or "", node.level, taken, package)
        else:
            for word in _words(node):
                name = word.lstrip(".")
                yield from _taken(name, len(word) - len(name), [""], package)


def _taken(name: str, level: int, taken: Sequence[str], package: list[str]) -> Iterator[list[str]]:
    """Yield what `from name import taken` may import, of a level's dots."""
    above = package[: len(package) - level + 1] if level else []
    base = [*above, *name.split(".")] if name else above
    for each in taken:
        if found := [*base, each] if each else base:
            yield found


def _words(node: ast.AST) -> Iterator[str]:
    """Yield the words by which a call finds code, and `_target_`s in dictionaries."""
    values: list[ast.expr | None] = []
    if isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in FINDERS:
            values = [*node.args[:1], *(each.value for each in node.keywords)]
        elif name == "dict":
            values = [each.value for each in node.keywords if each.arg == "_target_"]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        values = [value for key, value in pairs if _word(key) == "_target_"]
    yield from (word for each in values if (word := _word(each)))


def _word(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def _of_bytecode(content: bytes, package: list[str]) -> Iterator[list[str]]:
    """Yield the same of a module that is there as bytecode alone."""
    try:
        waiting = [marshal.loads(content[16:])]
    except (ValueError, EOFError, TypeError):  # of another version of Python
        return
    while waiting:
        code = waiting.pop()
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        steps = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
        for index, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, taken = (each.argval for each in steps[index - 2 : index])
                yield from _taken(step.argval, level, taken or [""], package)
