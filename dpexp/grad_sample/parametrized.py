"""Parameters of which torch.nn.utils.parametrize makes a layer's weight.

The layer computes what its type does, with the weight that is made. So the type's rule gives the
weight's gradients, and a rule of the parametrization those of what it is made of:

    @behind(LowRank)
    def of_low_rank(adapter: LowRank, used: LayerGrads) -> dict[str, PerExampleGrads]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from torch import nn
from torch.nn.utils import parametrize

from dpexp.types import LayerGrads, PerExampleGrads

Behind = Callable[[Any, LayerGrads], Mapping[str, PerExampleGrads]]
"""Maps a parametrization and its weight's gradients to those of its parameters by name."""


class Registered(NamedTuple):
    """A rule, and which parametrizations of its type it holds for."""

    rule: Behind
    fits: Callable[[Any], bool]


_BEHIND: dict[type[nn.Module], Registered] = {}


def behind(
    kind: type[nn.Module], fits: Callable[[Any], bool] = lambda made_by: True
) -> Callable[[Behind], Behind]:
    """Return a decorator that registers a rule for exactly this type of parametrization.

    Args:
        kind: the type.
        fits: whether the rule holds; other layers are run again under torch.func.
    """

    def register(function: Behind) -> Behind:
        _BEHIND[kind] = Registered(function, fits)
        return function

    return register


def kind_of(layer: nn.Module) -> type[nn.Module]:
    """Return a layer's type, or the one that it had before its weights were parametrized."""
    kind = type(layer)
    return kind.__bases__[0] if parametrize.is_parametrized(layer) else kind


def made_weights(layer: nn.Module) -> dict[str, nn.Module]:
    """Return what a layer's weights are made by, of those that one with a rule makes."""
    if not parametrize.is_parametrized(layer):
        return {}
    chains = layer.parametrizations
    assert isinstance(chains, nn.ModuleDict)
    alone = {own: chain[0] for own, chain in chains.items() if len(chain) == 1}  # type: ignore[arg-type, index]
    return {
        own: each
        for own, each in alone.items()
        if type(each) in _BEHIND and _BEHIND[type(each)].fits(each)
    }


def names_behind(layer: nn.Module, weights: tuple[str, ...]) -> tuple[str, ...]:
    """Name the parameters behind some of a layer's weights, as in its `named_parameters`."""
    return tuple(
        f"{place_of(own)}.{name}"
        for own, made_by in made_weights(layer).items()
        if own in weights
        for name, _ in made_by.named_parameters()
    )


def gradients_behind(
    layer: nn.Module, used: LayerGrads
) -> Iterator[tuple[str, dict[str, PerExampleGrads]]]:
    """Yield the places of a layer's parametrizations, and the gradients of their parameters.

    Args:
        layer: it; all of its weights that train are made of others.
        used: the gradients of the weights that are made.
    """
    for own, made_by in made_weights(layer).items():
        of_one = replace(cast(Any, used), parameters=(own,))
        yield place_of(own), dict(_BEHIND[type(made_by)].rule(made_by, of_one))


def place_of(weight: str) -> str:
    """Return where the parametrization of a weight stands in its layer."""
    return f"parametrizations.{weight}.0"
