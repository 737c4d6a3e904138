"""Modules that read the parameters of layers within them, whose gradients follow by these rules.

A module that computes with a weight made of its children's parameters calls none of the children.
What each of them would have read and returned is said instead:

    @composed(Doubled, parts=("one", "other"))
    def within(layer: Doubled, x: Tensor, dh: Tensor) -> dict[str, tuple[Tensor, Tensor]]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

Within = Callable[[Any, Tensor, Tensor], Mapping[str, tuple[Tensor, Tensor]]]
"""Maps a module, its input [n, ...] and the gradient at its output to each part's by name."""


class Registered(NamedTuple):
    """What a type's parts are, what they read and return, and for which modules that holds."""

    within: Within
    parts: tuple[str, ...]
    fits: Callable[[Any], bool]


_COMPOSED: dict[type[nn.Module], Registered] = {}


def composed(
    kind: type[nn.Module],
    parts: tuple[str, ...],
    fits: Callable[[Any], bool] = lambda module: True,
) -> Callable[[Within], Within]:
    """Return a decorator that registers what happens within exactly this type of module.

    Args:
        kind: the type; it maps one tensor to one tensor, with the example as first axis of both.
        parts: names of its layers, each of a type with a rule.
        fits: whether the module reads its parts' parameters; else it calls them.
    """

    def register(function: Within) -> Within:
        _COMPOSED[kind] = Registered(function, parts, fits)
        return function

    return register


def is_composed(module: nn.Module) -> bool:
    """Return whether a module reads the parameters of its parts."""
    found = _COMPOSED.get(type(module))
    return found is not None and found.fits(module)


def parts_within(module: nn.Module) -> tuple[str, ...]:
    """Name the parts of a module for which `is_composed` holds; () of another."""
    return _COMPOSED[type(module)].parts if is_composed(module) else ()


def inputs_within(module: nn.Module, x: Tensor, dh: Tensor) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return each part's input and the gradient at its output, by name.

    Args:
        module: for which `is_composed` holds.
        x: its input, [n, ...].
        dh: the gradient at its output, [n, ...].
    """
    return _COMPOSED[type(module)].within(module, x, dh)
