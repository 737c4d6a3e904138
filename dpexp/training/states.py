"""Walks through a method's or an analysis's state: dicts, lists, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def mapped(change: Callable[[Any], Any], state: Any) -> Any:
    """Rebuild a state's dicts and lists, with every leaf changed; a tuple is a leaf."""
    if isinstance(state, Mapping):
        return {key: mapped(change, each) for key, each in state.items()}
    return [mapped(change, each) for each in state] if isinstance(state, list) else change(state)


def new_tensors(state: Any, before: Any) -> list[Tensor]:
    """List a state's tensors, in its order, without those that the state before held already."""
    held = {id(tensor) for tensor in _tensors(before)}
    return [tensor for tensor in _tensors(state) if id(tensor) not in held]


def copied(state: Any) -> Any:
    """Copy a state, its tensors too."""
    return mapped(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)


def marks(state: Any) -> list[tuple[int, int]]:
    """Give, of every tensor of a state, what another number in it changes: equal, none has changed.

    Where it lies, and how often torch has written into it.
    """
    return [(tensor.data_ptr(), tensor._version) for tensor in _tensors(state)]


def _tensors(state: Any) -> Iterator[Tensor]:
    leaves: list[Any] = []
    mapped(leaves.append, state)
    return (leaf for leaf in leaves if isinstance(leaf, Tensor))
