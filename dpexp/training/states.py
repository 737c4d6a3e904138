"""Traverse a method's or an analysis's state: nested dicts and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def mapped(change: Callable[[Any], Any], state: Any) -> Any:
    """Return a state with `change` applied to every leaf; a tuple is a leaf."""
    if isinstance(state, Mapping):
        return {key: mapped(change, each) for key, each in state.items()}
    return [mapped(change, each) for each in state] if isinstance(state, list) else change(state)


def new_tensors(state: Any, before: Any) -> list[Tensor]:
    """Return a state's tensors, in order, except those that the previous state already had."""
    held = {id(tensor) for tensor in _tensors(before)}
    return [tensor for tensor in _tensors(state) if id(tensor) not in held]


def copied(state: Any) -> Any:
    """Return a copy of a state, tensors included."""
    return mapped(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)


def marks(state: Any) -> list[tuple[int, int]]:
    """Return every tensor's address and version; equal marks mean that no value has changed."""
    return [(tensor.data_ptr(), tensor._version) for tensor in _tensors(state)]


def _tensors(state: Any) -> Iterator[Tensor]:
    leaves: list[Any] = []
    mapped(leaves.append, state)
    return (leaf for leaf in leaves if isinstance(leaf, Tensor))
