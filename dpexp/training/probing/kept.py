"""Keep what trials of sound networks found, for other processes on the same machine.

A finding is kept by all that decided it: the network and the examples, the code of this suite and
of the libraries of models, the processor and the kernels compiled for it. So it stands for a trial
that would come to the same again. What cannot be said in words is not kept.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from dpexp import imported
from dpexp.grad_sample.reading import Reads
from dpexp.grad_sample.shared_inputs import Seen
from dpexp.kernels.compiled import compiled
from dpexp.kernels.keeping import processor
from dpexp.records.caches import Kept
from dpexp.records.provenance import code_sha256, versions
from dpexp.types import ConfigError

KIND = "sound"
"""Name of the folder among the caches."""

OF_MODELS = ("timm", "torchvision", "transformers")
"""Packages whose files are looked at, as their users edit them."""

LIBRARIES = ("dpexp", "torch", *OF_MODELS)
"""Packages whose classes and functions are known by their names."""


class Found(NamedTuple):
    """What a trial leaves behind of a sound network, beside that it is sound.

    Attributes:
        hooked: the modules whose hooks it has at the module around them.
        seen: of its modules, by name.
        reads: of those that read parameters, by name.
    """

    hooked: frozenset[str]
    seen: Mapping[str, Seen]
    reads: Mapping[str, Reads | None]


def find(key: Hashable, model: nn.Module) -> Found | None:
    """Return what another process found of such a network; None if none is known to have.

    Args:
        key: what decides the outcome of a trial of this code on this machine.
        model: to be tried.
    """
    name, text = _name(key, model), None
    if name is not None and _is_as_imported():
        with suppress(ConfigError):  # of DPEXP_CACHE, which says so where it is needed
            text = _kept().get(name)
    found = _read(text) if isinstance(text, str) else None
    names = {name for name, _ in model.named_modules()}
    is_whole = found is not None and {*found.seen} == names >= {*found.hooked, *found.reads}
    return found if is_whole else None


def keep(key: Hashable, model: nn.Module, found: Found) -> None:
    """Note what a trial found of a sound network.

    Args:
        key: as for `find`.
        model: that was tried.
        found: by its trial.
    """
    name, text = _name(key, model), _text(found)
    if name is not None and _is_as_imported() and _read(text) == found:
        with suppress(ConfigError):
            _kept().put(name, text)


@cache
def _is_as_imported() -> bool:
    """Return whether this suite's files are those that this process imported, as far as is known.

    A notebook may have imported them hours ago, and what its trials find is not of newer ones.
    """
    package = Path(imported.__file__).parent
    return all(os.stat(path).st_mtime_ns < imported.BEGUN for path in package.rglob("*.py"))


@cache
def _kept() -> Kept:
    """Return the findings of this code on this machine."""
    said = [code_sha256(), platform.platform(), processor(), *map(str, versions().items())]
    said.append(torch.backends.cpu.get_cpu_capability())
    if torch.cuda.is_available():
        said += [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    return Kept(KIND, "\0".join(said).encode())


def _kernels(model: nn.Module) -> str:
    """Return which kernels a network is trained by, of those that are compiled here."""
    if not any(isinstance(each, nn.Conv2d) for each in model.modules()):
        return ""
    library = compiled()
    return "none" if library is None else library.sha256


@cache
def _files(package: str) -> str:
    """Return a hash of a package's files by their places, sizes and times of change."""
    digest, found = hashlib.sha256(), find_spec(package)
    for root in sorted((found and found.submodule_search_locations) or []):
        for path in sorted(Path(root).rglob("*.py")):
            state = os.stat(path)
            digest.update(f"{path} {state.st_size} {state.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _name(key: Hashable, model: nn.Module) -> str | None:
    """Return in words what decides a trial; None if it holds what is not of the libraries."""
    packages = {type(each).__module__.partition(".")[0] for each in model.modules()}
    files = [_files(package) for package in OF_MODELS if package in packages]
    try:
        return repr((_said(key), _kernels(model), files))
    except ValueError:
        return None


def _said(value: Any) -> Any:
    """Return a key's piece in words, numbers and tuples of both."""
    if isinstance(value, tuple | torch.Size):
        return tuple(map(_said, value))
    if isinstance(value, type | FunctionType):
        is_named = value.__module__.partition(".")[0] in LIBRARIES and "<" not in value.__qualname__
        if not is_named:
            raise ValueError(value)
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    raise ValueError(value)


def _text(found: Found) -> str:
    seen = {
        name: (
            sorted(each.shared),
            [(tuple(shape), {c: sorted(r) for c, r in calls.items()})
             for shape, calls in each.tried.items()],
            each.is_repeated,
        )
        for name, each in found.seen.items()
    }  # fmt: skip
    return repr((sorted(found.hooked), seen, dict(found.reads)))


def _read(text: str) -> Found | None:
    """Return what `_text` told; None if it cannot be read."""
    try:
        hooked, seen, reads = ast.literal_eval(text)
        return Found(
            frozenset(hooked),
            {
                name: Seen(
                    frozenset(shared),
                    {shape: {c: {*rows} for c, rows in calls.items()} for shape, calls in tried},
                    is_repeated,
                )
                for name, (shared, tried, is_repeated) in seen.items()
            },
            reads,
        )
    except (ValueError, TypeError, SyntaxError, AttributeError, RecursionError, MemoryError):
        return None
