"""Which modules are hooked for which parameters, and models that cannot be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from dpexp.grad_sample.attention import OWN, is_taken_apart, parts_of
from dpexp.grad_sample.composed import is_composed
from dpexp.grad_sample.freezing import trains
from dpexp.grad_sample.modules import WHOLE
from dpexp.grad_sample.rules import parameters_with_a_rule
from dpexp.types import ConfigError, full_name

MIXING = (nn.modules.batchnorm._BatchNorm,)
TABLES = (nn.Embedding, nn.EmbeddingBag)

PARAMETRIZED = ".parametrizations."
"""In the names of parameters that torch.nn.utils.parametrize makes a weight of."""


_AT_PARENT: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Modules of a model whose parameters are hooked at the module around them (`hook_at_parent`)."""


_UNTRIED: WeakSet[nn.Module] = WeakSet()
"""Models that could not be tried before their first step."""


def mark_untried(model: nn.Module) -> None:
    """Have a model refused where its gradients rest on having been tried, from now on."""
    _UNTRIED.add(model)


def is_untried(model: nn.Module) -> bool:
    """Return whether a model could not be tried."""
    return model in _UNTRIED


def hook_at_parent(model: nn.Module, name: str) -> None:
    """Have a module's parameters taken by torch.func at the module around it, from now on.

    For what is not called on examples, and what cannot be repeated for each example, as tables of
    relative positions.
    """
    names = _AT_PARENT.setdefault(model, set())
    names.add(name)
    if is_taken_apart(model.get_submodule(name)):
        names.add(full_name(name, "out_proj"))  # which is one of its parts


def hooked_at_parent(model: nn.Module) -> frozenset[str]:
    """Return the modules for which `hook_at_parent` was called."""
    return frozenset(_AT_PARENT.get(model, ()))


@dataclass(frozen=True)
class Hooked:
    """A module whose input and output gradient are wanted.

    Attributes:
        module: it.
        names: of parameters that train, relative to the module, to the model's names.
        has_rule: whether a rule holds for all of them; else they take torch.func, and more time.
        owner: the name of the model's module that has the parameters, or whose part has them.
    """

    module: nn.Module
    names: dict[str, str]
    has_rule: bool
    owner: str


def hooked_layers(model: nn.Module, parameters: Collection[str]) -> dict[str, Hooked]:
    """Find the modules to hook for some parameters.

    A parameter that stands in several places is hooked in each: its gradients add up.

    Args:
        model: any module.
        parameters: names, as in `named_parameters`.

    Returns:
        Modules by name; an attention's parts have its name before their own.

    Raises:
        ConfigError: naming the layer that mixes examples, or a parameter that overlaps another or
            is frozen by the model's author.
    """
    refuse_mixing(model)
    refuse_overlaps(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    first: dict[int, str] = {}  # a module that stands in two places is hooked once
    for name, module in modules.items():
        first.setdefault(id(module), name)
    places: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(each), []).append(name)
    found: dict[str, dict[str, str]] = {}
    for parameter in parameters:
        if not trains(model.get_parameter(parameter)):
            raise ConfigError(
                f"Expected the method to leave frozen what the model freezes; it trains "
                f"{parameter!r}, whose requires_grad is False. Leave it out of `trainable`, or "
                "let the model train it."
            )
        for place in places[id(model.get_parameter(parameter))]:
            _require_dense(place.rpartition(".")[0], modules)
            unit = _unit_of(place, modules)
            own = place.removeprefix(f"{unit}.") if unit else place
            name = first[id(modules[unit])]
            while name and name in _AT_PARENT.get(model, ()):
                parent, _, last = name.rpartition(".")
                name, own = first[id(modules[parent])], f"{last}.{own}"
            names = found.setdefault(name, {})
            if parameter not in names.values():  # one module reads it at all of its places
                names[own] = parameter
    hooked: dict[str, Hooked] = {}
    for name, names in found.items():
        hooked |= _hooked(name, modules[name], names)
    return _counted_once(hooked)


def _hooked(name: str, module: nn.Module, names: dict[str, str]) -> dict[str, Hooked]:
    """Return what to hook for some of a module's parameters."""
    if not (is_taken_apart(module) and names.keys() <= OWN):
        has_rule = set(names) <= set(parameters_with_a_rule(module))
        return {name: Hooked(module, names, has_rule, name)}
    found = {}
    for part, layer in parts_of(module).items():
        if of_part := {own: full for own, full in names.items() if own in layer.names}:
            found[full_name(name, part)] = Hooked(layer, of_part, True, name)
    return found


def taken_apart(model: nn.Module, hooked: Mapping[str, Hooked]) -> dict[str, Any]:
    """Return the attentions of a model some of whose parts are hooked, by name.

    Args:
        model: any module.
        hooked: as `hooked_layers` found them.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if is_taken_apart(module)
        and name not in hooked
        and any(each.startswith(f"{name}." if name else "") for each in hooked)
    }


def called_for(model: nn.Module, name: str) -> str:
    """Return the module that a model calls where a layer is used without a tape.

    An attention reads the parameters of its last projection, and does not call it.
    """
    parent = name.rpartition(".")[0]
    return parent if name and is_taken_apart(model.get_submodule(parent)) else name


def _counted_once(hooked: dict[str, Hooked]) -> dict[str, Hooked]:
    """Leave out places of tied weights within a module that is run again, with all of its uses."""
    for outer, unit in hooked.items():
        for inner, layer in hooked.items():
            if (
                unit.has_rule
                or inner == outer
                or not inner.startswith(f"{outer}." if outer else "")
            ):
                continue
            for own, full in list(layer.names.items()):
                if full in unit.names.values():
                    del layer.names[own]
    return {name: each for name, each in hooked.items() if each.names}


def _unit_of(parameter: str, modules: dict[str, nn.Module]) -> str:
    """Return the module that is called where a parameter is used."""
    path = parameter.split(".")[:-1]
    for depth in range(len(path) + 1):
        module = modules[".".join(path[:depth])]
        if is_composed(module) or (isinstance(module, WHOLE) and not is_taken_apart(module)):
            return ".".join(path[:depth])
    owner = ".".join(path)
    return owner.partition(PARAMETRIZED)[0] if PARAMETRIZED in f"{owner}." else owner


def _require_dense(name: str, modules: Mapping[str, nn.Module]) -> None:
    """Refuse a table whose options leave an example without a gradient of its own.

    Raises:
        ConfigError: naming it.
    """
    table = modules[name]
    if not isinstance(table, TABLES):
        return
    if table.scale_grad_by_freq:
        raise ConfigError(
            f"Expected tables whose gradients are each example's own; {name} has "
            "scale_grad_by_freq, which divides them by how often the batch has an id. Leave it out."
        )
    if isinstance(table, nn.EmbeddingBag) and table.sparse:
        raise ConfigError(
            f"Expected an EmbeddingBag with dense gradients, which each example has of its own; "
            f"{name} has sparse=True. Leave it out."
        )


def refuse_mixing(model: nn.Module) -> None:
    """Refuse layers whose statistics mix examples, and tables that lookups write to.

    Raises:
        ConfigError: naming the first.
    """
    for name, module in model.named_modules():
        if isinstance(module, MIXING) or getattr(module, "track_running_stats", False):
            raise ConfigError(
                f"Expected layers that keep examples apart; {name} is a {type(module).__name__}, "
                "whose statistics mix them, so no one example's influence is bounded. "
                "Use nn.GroupNorm instead. Set model.fix=true, which puts it there, or "
                "model.fix=freeze, which keeps the statistics that the model has as constants."
            )
        if getattr(module, "max_norm", None) is not None and isinstance(module, TABLES):
            raise ConfigError(
                f"Expected tables that lookups leave as they are; {name} is a "
                f"{type(module).__name__} with max_norm, which rescales the rows that examples "
                "look up, so that the weights tell without noise which those were. Leave max_norm "
                "out."
            )


def refuse_overlaps(model: nn.Module) -> None:
    """Refuse a model of which two parameters share memory.

    Raises:
        ConfigError: naming both.
    """
    places: list[tuple[int, int, int, str, nn.Parameter]] = []
    for order, (name, parameter) in enumerate(model.named_parameters(remove_duplicate=False)):
        start = parameter.data_ptr()  # by what they hold: an empty one lies nowhere, or on meta
        span = (start, start + _extent(parameter)) if start else (-id(parameter),) * 2
        places.append((*span, order, name, parameter))
    near: list[tuple[int, int, int, str, nn.Parameter]] = []
    found: list[tuple[int, int, str, str]] = []
    for place in sorted(places, key=lambda place: place[:3]):
        near = [other for other in near if other[1] > place[0]]
        for other in near:
            if other[4] is not place[4] and _overlap(other[4], place[4]):
                first, second = sorted([place, other], key=lambda place: place[2])
                found.append((second[2], first[2], second[3], first[3]))
        near.append(place)
    if found:  # the first in the model's order, wherever memory lies
        _, _, again, first_of_it = min(found)
        raise ConfigError(
            f"Expected parameters that share no memory; {again!r} holds a part of "
            f"{first_of_it!r}. Make it a parameter of its own, or the same one."
        )


def _extent(tensor: Tensor) -> int:
    """Count the bytes from a tensor's first to its last."""
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share a byte; columns of one matrix lie between each other's."""
    start = min(one.data_ptr(), other.data_ptr())
    end = max(tensor.data_ptr() + _extent(tensor) for tensor in (one, other))
    seen = torch.zeros(end - start, dtype=torch.uint8)

    def of(tensor: Tensor) -> Tensor:
        size = tensor.element_size()
        strides = [size * stride for stride in tensor.stride()]
        at = tensor.data_ptr() - start
        return seen.as_strided((*tensor.shape, size), (*strides, 1), at)

    of(one).fill_(1)
    return bool(of(other).any())
