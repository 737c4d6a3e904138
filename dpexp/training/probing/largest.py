"""The largest integers that a model takes, found by trial on examples of one number."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.models.mode import in_mode
from dpexp.models.vocabulary import ended
from dpexp.training.probing.stage import chance_kept, state_kept

LARGEST = 2**15 - 1
"""Of those that are tried (ours)."""

PARTS = 64
"""Of an axis; parts of a longer one are not tried apart (ours)."""


def largest(model: nn.Module, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the largest integer that a model takes at each place of an example, in int64.

    It is found for all places alike, and then for each part of each axis, as ids, token types and
    columns may have tables of their own. All of them together are taken, too.

    Args:
        model: in any mode; it is not changed.
        shape: of an example.
        dtype: of integers.

    Returns:
        For a model that takes no example of ones, or cannot be tried, the last row of its smallest
        table; 1 if it has none.
    """
    most = min(torch.iinfo(dtype).max, LARGEST)
    found = torch.ones(tuple(shape), dtype=torch.int64)
    of_tables = found * min(most, _last_row(model))
    tried = _on_cpu(model)
    if tried is None:
        return of_tables

    with chance_kept(), in_mode(tried, is_training=False), torch.no_grad():

        def is_taken() -> bool:
            return _takes(tried, found[None].to(dtype))

        if not is_taken():
            return of_tables
        parts = [
            found.select(axis, at)
            for axis, length in enumerate(shape)
            if 1 < length <= PARTS
            for at in range(length)
        ]
        for part in [found, *parts]:
            _raise(part, most, is_taken)
    return found


def takes(model: nn.Module, inputs: Tensor) -> bool:
    """Return whether a model, which is not changed, takes inputs [n, ...] of its own precision.

    On a GPU a copy is tried on the CPU; a model of which there is none is said to take them.
    """
    tried = _on_cpu(model)
    if tried is None:
        return True
    with chance_kept(), in_mode(tried, is_training=False), torch.no_grad():
        return _takes(tried, inputs)


def is_finite_of(model: nn.Module, inputs: Tensor) -> bool:
    """Return whether a model, as for `takes`, makes finite outputs of inputs [n, ...]."""
    tried = _on_cpu(model)
    if tried is None:
        return False
    with chance_kept(), in_mode(tried, is_training=False), torch.no_grad(), suppress(Exception):
        with state_kept(tried):
            outputs = tried(ended(tried, inputs))
            return len(outputs) == len(inputs) and bool(outputs.isfinite().all())
    return False


def _takes(model: nn.Module, inputs: Tensor) -> bool:
    with suppress(Exception), state_kept(model):  # anyone's model, which may raise anything
        model(ended(model, inputs))
        return True
    return False


def _raise(part: Tensor, most: int, is_taken: Callable[[], bool]) -> None:
    """Raise the numbers of a part to the largest one, up to `most`, that is still taken."""
    before, low, high = part.clone(), int(part.min()), most + 1

    def at_least(value: int) -> None:
        part.copy_(before.clamp(min=value))

    middle = low + 1  # mostly too much, where a part has no larger table
    while high - low > 1:
        at_least(middle)
        low, high = (middle, high) if is_taken() else (low, middle)
        middle = (low + high) // 2
    at_least(low)


def _on_cpu(model: nn.Module) -> nn.Module | None:
    """Return a model on the CPU, itself or a copy; None if it cannot be copied.

    On a GPU an index that is too large ends the process.
    """
    held = [each for module in model.modules() for each in tree_leaves(vars(module))]
    tensors = [each for each in held if isinstance(each, Tensor)]
    if all(each.device.type == "cpu" for each in tensors):
        return model
    with suppress(Exception):  # anyone's model
        return copy.deepcopy(model, {id(each): _moved(each) for each in tensors})
    return None


def _moved(tensor: Tensor) -> Tensor:
    own = tensor.detach().to("cpu", copy=True)
    return nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own


def _last_row(model: nn.Module) -> int:
    tables = (nn.Embedding, nn.EmbeddingBag)
    sizes = [each.num_embeddings for each in model.modules() if isinstance(each, tables)]
    return min(sizes, default=2) - 1
