"""Hash the user's own Python files behind a config: a model, a method, whatever `_target_` names.

A config names code, but what stands in its files may have changed. A finished run is not looked up
for other code, and an interrupted run does not go on with it. Files are found and read without
being imported, so that nothing of theirs runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpexp.records.loaded_code import require_as_loaded
from dpexp.records.own_files import files_behind
from dpexp.types import ConfigError

FINDERS = ("hydra.utils.", "hydra._internal.", "importlib.import_module", "pydoc.locate")
"""Targets that find code by a word among their settings."""

OF_A_MODEL = "code"
"""Setting of a model that was handed over: the hash of what it computes, which names its run."""


def own_code(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of the files behind every `_target_` that is the user's own.

    They are the file that defines it, what that imports of the user's own, and so on.

    Returns:
        Dotted name -> file, relative to the folder that Python finds it in -> hash. Without what is
        dpexp's, the standard library's or an installed library's, and what is not found.
    """
    return {name: _hashes(files) for name, files in _behind(config)}


def own_loaded_code(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the same of code that is to run, or has.

    Raises:
        ConfigError: if a module that is loaded is not as in its file.
    """
    behind = [*_behind(config)]
    for _, files in behind:
        require_as_loaded(dict(files.values()))
    return {name: _hashes(files) for name, files in behind}


def loaded_files_of(parts: Sequence[str]) -> dict[str, str]:
    """Return the hashes of the user's files behind one dotted name; {} if it is not theirs.

    Raises:
        ConfigError: if a module that is loaded is not as in its file.
    """
    files = files_behind(parts)
    require_as_loaded(dict(files.values()))
    return _hashes(files)


def _hashes(files: Mapping[str, tuple[Path, bytes]]) -> dict[str, str]:
    return {place: hashlib.sha256(content).hexdigest() for place, (_, content) in files.items()}


def _behind(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, tuple[Path, bytes]]]]:
    """Yield every `_target_` that is the user's own with its files: path and content by place."""
    for name in sorted({*_targets(config)}):
        if files := files_behind(name.split(".")):
            yield name, files


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
    before: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Mapping[str, str]],
    what: str = "code of yours",
) -> None:
    """Check that a run goes on with the files that it began with.

    Args:
        before: from `own_code`, when it began; or other files' hashes, by what they belong to.
        now: likewise.
        what: the files are.

    Raises:
        ConfigError: if a file differs, or is not known.
    """
    differing = [f"{file} of {name}" for file, name in changed_files(before, now)]
    differing += [f"what is known of {name}" for name in sorted({*before} ^ {*now})]
    if differing:
        raise ConfigError(
            f"Expected to go on with the {what} that the run began with; "
            f"{', '.join(differing)} differs. Put the former back, or set results to another "
            "folder to begin anew."
        )


def _targets(node: Any, finds: bool = False) -> Iterator[str]:
    """Yield the dotted names of code in a config.

    Args:
        node: of the config.
        finds: whether any word in it may be one.
    """
    if isinstance(node, Mapping):
        if isinstance(name := node.get("_target_"), str):
            # A script's own model has its hash in the run's id, and the script is edited for more.
            if not (name.startswith("__main__.") and OF_A_MODEL in node):
                yield name
            finds = name.startswith(FINDERS)
        node = [*node.values()]
    if isinstance(node, str):
        if finds:
            yield node
    elif isinstance(node, Sequence):
        for each in node:
            yield from _targets(each, finds)
