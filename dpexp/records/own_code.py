"""Hash the user's own Python files behind a config: a model, a method, whatever `_target_` names.

A config names code, but what stands in its files may have changed. A finished run is not looked up
for other code, and an interrupted run does not go on with it. Files are found and read without
being imported, so that nothing of theirs runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpexp.records.loaded_code import require_as_loaded
from dpexp.types import ConfigError

INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries, whose versions a record has."""


def own_code(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of the files behind every `_target_` that is the user's own.

    They are the file that defines it, what that imports of the user's own, and so on.

    Returns:
        Dotted name -> file, relative to the folder that Python finds it in -> hash. Without what is
        dpexp's, the standard library's or an installed library's, and what is not found.
    """
    return {
        name: {place: hashlib.sha256(content).hexdigest() for place, (_, content) in files.items()}
        for name, files in _behind(config)
    }


def own_loaded_code(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the same of code that is to run, or has.

    Raises:
        ConfigError: if a module that is loaded is not as in its file.
    """
    for _, files in _behind(config):
        require_as_loaded(dict(files.values()))
    return own_code(config)


def _behind(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, tuple[Path, bytes]]]]:
    """Yield every `_target_` that is the user's own with its files: path and content by place."""
    for name in sorted({*_targets(config)}):
        if files := _files(name):
            yield name, files


def is_own(module: str | None) -> bool:
    """Return whether a module is the user's own: of a script, a notebook or a file of theirs."""
    return module is not None and (
        module == "__main__" or _root(module.partition(".")[0]) is not None
    )


def changed_files(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> list[tuple[str, str]]:
    """Return the file and name of each file that differs, of names that both have.

    Args:
        before: from `own_code`, when a run began.
        now: from `own_code`.
    """
    return [
        (file, name)
        for name, files in now.items()
        if name in before
        for file in sorted({*files, *before[name]})
        if files.get(file) != before[name].get(file)
    ]


def require_same(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]
) -> None:
    """Check that a run goes on with the user's code that it began with.

    Args:
        before: from `own_code`, when it began.
        now: from `own_code`.

    Raises:
        ConfigError: if a file differs, or is not known.
    """
    differing = [f"{file} of {name}" for file, name in changed_files(before, now)]
    differing += [f"what is known of {name}" for name in sorted({*before} ^ {*now})]
    if differing:
        raise ConfigError(
            "Expected to go on with the code of yours that the run began with; "
            f"{', '.join(differing)} differs. Put the former code back, or set results to another "
            "folder to begin anew."
        )


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(name := node.get("_target_"), str):
            yield name
        node = [*node.values()]
    if isinstance(node, Sequence) and not isinstance(node, str):
        for each in node:
            yield from _targets(each)


def _files(name: str) -> dict[str, tuple[Path, bytes]]:
    """Return the user's files that a dotted name needs, by their place below Python's path."""
    found: dict[str, tuple[Path, bytes]] = {}
    waiting = [name.split(".")]
    while waiting:
        parts = waiting.pop()
        for path, place in _modules(parts):
            if str(place) in found:
                continue
            try:
                content = path.read_bytes()
            except OSError:
                continue
            found[str(place)] = path, content
            waiting += _imports(content, place)
    return found


def _modules(parts: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Yield the files along a dotted name, each beside its place: packages, then the module."""
    root = _root(parts[0])
    if root is None:
        return
    for length in range(1, len(parts) + 1):
        stem = Path(*parts[:length])
        for place in (stem / "__init__.py", stem.with_suffix(".py")):
            if (root / place).is_file():
                yield root / place, place
        if not (root / stem).is_dir():
            return


def _root(top: str) -> Path | None:
    """Return the folder of Python's path that has a module; None if it is not the user's own."""
    if top == "dpexp" or top in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    if not folders and spec.origin is not None:
        folders = [Path(spec.origin)]
    if not folders or {*INSTALLED} & {*folders[0].resolve().parts}:
        return None
    return folders[0].parent


def _imports(content: bytes, place: Path) -> Iterator[list[str]]:
    """Yield the dotted names that a file imports, as parts; of what it names itself, absolute."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    package = list(place.parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, *(node.module or "").split(".")] if node.module else above
            yield from ([*base, alias.name] for alias in node.names)
