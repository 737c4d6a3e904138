"""A run's weights: their hash, and the file that keeps them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dpexp.records.files import replace_file
from dpexp.types import ConfigError, one_line

_NAMES, _SHARED = "dpexp.names", "dpexp.shared"
"""Entries of the file's metadata: names in the model by names in the file, and names of tensors
that are stored under another one."""


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of named tensors, to compare two runs' weights bit for bit.

    Args:
        tensors: of any shape, dtype and device, e.g. a model's `state_dict()`.

    Returns:
        SHA-256 of names, dtypes, shapes and values, in 64 hexadecimal digits.
    """
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().flatten()
        whole.update(values.view(torch.uint8).numpy().data)
    return whole.hexdigest()


def write(
    path: Path, state: Mapping[str, Any], name_in_file: Callable[[str], str] = lambda name: name
) -> None:
    """Write a model's state as a safetensors file.

    A tensor that stands under several names, as tied weights do, is stored once.

    Args:
        path: of the file.
        state: a model's `state_dict()`.
        name_in_file: maps a name in the model to the one that its library reads.

    Raises:
        RecordError: if it cannot be written.
    """
    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        where = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and where in first:
            shared[name] = first[where]
            continue
        first[where] = name
        # Views of one tensor share memory, which the format refuses.
        stored[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    names = {name_in_file(name): name for name in stored}
    metadata = {"format": "pt", _NAMES: json.dumps(names), _SHARED: json.dumps(shared)}
    content = save({file: stored[name] for file, name in names.items()}, metadata)

    def fill(file: IO[bytes]) -> None:
        file.write(content)

    replace_file(path, fill)


def read(path: Path) -> dict[str, Tensor]:
    """Read what `write` wrote: a model's state, with its tensors on the CPU.

    Raises:
        ConfigError: if the file is missing or damaged, or another program wrote it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = json.loads(metadata[_NAMES])
            shared = json.loads(metadata[_SHARED])
            given = [*names.values(), *shared]
            # Else a tensor that other programs read may not be the one that is read here.
            if set(names) != set(file.keys()) or len(set(given)) != len(given):
                raise ValueError("two tensors of one name, or one of none")
            state = {names[name]: file.get_tensor(name) for name in names}
            return {**state, **{name: state[other] for name, other in shared.items()}}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"Expected the weights that a run keeps in {path}; they cannot be read "
            f"({type(error).__name__}: {one_line(error)[:200]}). Train the run anew with "
            "weights=keep and another results folder."
        ) from error
