"""What a parameter's uses add up to, where a layer is called several times or weights are tied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpexp.grad_sample.composed import inputs_within, is_composed
from dpexp.grad_sample.hooking import Hooked
from dpexp.grad_sample.parametrized import gradients_behind
from dpexp.grad_sample.rules import (
    FormedGrads,
    GroupedGrads,
    SummedGrads,
    alone,
    layer_grads_of,
)
from dpexp.types import LayerGrads, full_name


class Adding:
    """Passes a layer's gradients on: at once, or those of several uses as their sum at the end."""

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, Hooked],
        on_layer: Callable[[str, LayerGrads], None],
    ) -> None:
        """Find the parameters that stand in several places.

        Args:
            model: it.
            layers: its hooked modules by name.
            on_layer: called with a layer's name and its gradients.
        """
        self._layers, self._on_layer = layers, on_layer
        places = [full for hooked in layers.values() for full in hooked.names.values()]
        self._tied = {full for full in places if places.count(full) > 1}
        self._matrices = {full for full in places if model.get_parameter(full).ndim > 1}
        self._parts: dict[str, list[tuple[LayerGrads, str]]] = {}
        self._totals: dict[tuple[str, str], Tensor] = {}  # of what a module read several times

    def forget(self) -> None:
        """Drop what a backward pass before has left."""
        self._parts, self._totals = {}, {}

    def has_part(self, name: str) -> bool:
        """Return whether each of a hooked module's parameters has gradients that are kept."""
        return all(full in self._parts for full in self._layers[name].names.values())

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is kept."""
        return not self._parts

    def take(
        self, layer: str, layer_grads: LayerGrads, wanted: Mapping[str, str], uses: int
    ) -> None:
        """Pass gradients on at once, or keep them until those of all uses are there.

        One matrix at most is passed on at a time.

        Args:
            layer: the name of the module that has the parameters.
            layer_grads: their gradients in one use.
            wanted: those that train, by their names in the layer: the model's names.
            uses: how often the layer is called in this pass.
        """
        matrices = [own for own, full in wanted.items() if full in self._matrices]
        if len(matrices) > 1:
            for own in matrices:
                self.take(layer, alone(layer_grads, own), {own: wanted[own]}, uses)
            wanted = {own: full for own, full in wanted.items() if own not in matrices}
        at_once = tuple(own for own, full in wanted.items() if uses == 1 and full not in self._tied)
        if at_once:
            self._on_layer(layer, _only(layer_grads, at_once))
        for own, full in wanted.items():
            if own not in at_once:
                self._parts.setdefault(full, []).append((_only(layer_grads, (own,)), own))

    def take_read(self, name: str, own: str, gradients: Tensor, views: int, uses: int) -> None:
        """Take the gradients of a parameter that a module read itself.

        Args:
            name: of the module.
            own: the parameter's name there.
            gradients: [rows, ...], one per row.
            views: how many rows are one example's.
            uses: how often the module's parameters are used in this pass.
        """
        wanted = {own: self._layers[name].names[own]}
        total = single(gradients)
        if uses > 1 or self._tied & {*wanted.values()}:
            # Added up at once: every read entry of a table has gradients as large as the table.
            if (name, own) in self._totals:
                self._totals[name, own] += total
                return
            total = self._totals[name, own] = total.clone()
        self.take(name, formed({own: total}, views), wanted, uses)

    def finish(self) -> None:
        """Pass on the sums of what was kept."""
        for full in list(self._parts):
            owner, _, own = full.rpartition(".")
            parts = tuple(self._parts.pop(full))
            self._on_layer(owner, SummedGrads(parts, (own,)))


def gradients_by_rule(
    name: str, hooked: Hooked, x: Tensor, dh: Tensor, rows: int
) -> Iterator[tuple[str, LayerGrads, dict[str, str]]]:
    """Yield the gradients of each layer whose parameters a hooked module reads, by their rules.

    Args:
        name: of the module in the model.
        hooked: it; a rule holds for all of its parameters that train.
        x: its input, [n, ...].
        dh: the gradient at its output, [n, ...].
        rows: of x and dh that are one example's, one after another.

    Yields:
        The layer's name in the model, its gradients, and those that train of its parameters' names
        with the model's names.
    """
    module = hooked.module

    def wanted(place: str, own: Iterable[str]) -> dict[str, str]:
        names = {each: full_name(place, each) for each in own}
        return {each: hooked.names[at] for each, at in names.items() if at in hooked.names}

    if is_composed(module):
        for part, (inner, at_output) in inputs_within(module, x, dh).items():
            layer = module.get_submodule(part)
            grads = layer_grads_of(full_name(name, part), layer, inner, at_output, rows)
            yield full_name(hooked.owner, part), grads, wanted(part, grads.parameters)
        return
    grads = layer_grads_of(name, module, x, dh, rows)
    yield hooked.owner, grads, wanted("", grads.parameters)
    for place, behind in gradients_behind(module, grads):
        each = formed({own: one.materialize() for own, one in behind.items()}, views=1)
        yield full_name(hooked.owner, place), each, wanted(place, behind)


def formed(gradients: dict[str, Tensor], views: int) -> LayerGrads:
    """Return a layer's gradients [rows, ...] by parameter as those of examples.

    Args:
        gradients: by the parameters' names in the layer.
        views: how many rows, one after another, are one example's; they add up.
    """
    each_row = FormedGrads(gradients, tuple(gradients))
    return GroupedGrads(each_row, views) if views > 1 else each_row


def single(tensor: Tensor) -> Tensor:
    """Bring what autocast halved to float32: norms and sums want its precision."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _only(layer_grads: LayerGrads, parameters: tuple[str, ...]) -> LayerGrads:
    """Return a layer's gradients of some of its parameters alone."""
    return replace(cast(Any, layer_grads), parameters=parameters)
