"""Record a batch's tensors and gradients in forward and backward, module by module."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.grad_sample.modules import is_running_again
from dpexp.grad_sample.rules import has_foreign_rule, has_rule


@dataclass
class Event:
    """A tensor that entered or left a module, or a gradient at one.

    Attributes:
        module: to blame if this tensor is the first to differ: the module it left, or the parent of
            the module it entered.
        kind: "output" or "gradient".
        value: of every example, side by side.
        user: the module that this tensor entered, if no rule of ours says that it keeps examples
            apart.
    """

    module: str
    kind: str
    value: Tensor
    user: str | None = None


@dataclass
class Recorder:
    """Hooks on all modules.

    Attributes:
        count: examples in the batch.
        events: those of forward, then of backward, in order.
    """

    count: int
    events: list[Event] = field(default_factory=list)
    _inside: list[str] = field(default_factory=list)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Record a model within the context."""
        hooks = []
        for name, module in model.named_modules():
            enter, leave = partial(self._enter, name), partial(self._leave, name)
            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(module.register_forward_hook(leave, with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_running_again():
            return
        around = self._inside[-1] if self._inside else name
        self._inside.append(name)
        user = None if has_rule(type(module)) and not has_foreign_rule(module) else name
        self._note([args, kwargs], around, name, user)

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_running_again():
            return
        self._inside.pop()
        around = self._inside[-1] if self._inside else ""
        self._note(output, name, around)

    def _note(self, tensors: Any, module: str, of_gradient: str, user: str | None = None) -> None:
        """Record tensors and their gradients, with the module to blame for each."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            self._keep(tensor, module, "output")
            if tensor.requires_grad:
                tensor.register_hook(
                    partial(self._keep, module=of_gradient, kind="gradient", user=user)
                )

    def _keep(self, tensor: Tensor, module: str, kind: str, user: str | None = None) -> None:
        if tensor.dim() and len(tensor) and len(tensor) % self.count == 0:
            each = tensor.detach().clone().unflatten(0, (self.count, -1))
            self.events.append(Event(module, kind, each, user))


def first_difference(one: Recorder, other: Recorder, row: int, most: float) -> Event | None:
    """Return the first event that differs by more than a fraction, forward before backward.

    Args:
        one: a batch's recorder.
        other: another batch's, whose first example is compared with `row` of `one`.
        row: in the first batch.
        most: the fraction.
    """
    for kind in ("output", "gradient"):
        seen, expected = (
            [event for event in each.events if event.kind == kind] for each in (one, other)
        )
        for place, (mine, theirs) in enumerate(zip(seen, expected, strict=False)):
            own, its = mine.value[row], theirs.value[0]
            if own.shape == its.shape and gap(own, its) > most:
                return _innermost(seen[place:])
    return None


def _innermost(gradients: Sequence[Event]) -> Event:
    """Return which of a tensor's events to blame: the first, or the last module that it entered.

    A tensor's gradient is seen where it left a module and where it entered the next ones, at once.
    What has left a module is used by these, and only then by the parent.
    """
    first = gradients[0]
    same = takewhile(lambda each: torch.equal(each.value, first.value), gradients)
    entered = [each.user for each in same if each.user is not None]
    return replace(first, module=entered[-1]) if entered else first


LEAST = sys.float_info.min
"""The distance of what differs by less than can be told (ours)."""


def gap(one: Tensor, other: Tensor) -> float:
    """Return the distance of two tensors, relative to the larger.

    Values that are not finite in both alike do not differ; in one alone the distance is infinite.
    Whole numbers that differ by less than a double tells are 1 apart.
    """
    if any(each.is_complex() for each in (one, other)):
        one, other = (torch.view_as_real(each.to(torch.complex128)) for each in (one, other))
    elif not any(each.is_floating_point() for each in (one, other)):
        return 0.0 if torch.equal(one.long(), other.long()) else _apart(one, other) or 1.0
    return _apart(one, other)


def _apart(one: Tensor, other: Tensor) -> float:
    """Return what `gap` does, of real numbers in float64."""
    one, other = one.double(), other.double()
    odd = ~(one.isfinite() & other.isfinite())
    if odd.any():
        if not torch.allclose(one[odd], other[odd], rtol=0.0, atol=0.0, equal_nan=True):
            return math.inf
        one, other = one.masked_fill(odd, 0.0), other.masked_fill(odd, 0.0)
    if torch.equal(one, other):
        return 0.0
    largest = torch.maximum(one.abs().amax(), other.abs().amax())  # squares leave float64's range
    one, other = one / largest, other / largest
    apart = float((one - other).norm()) / max(float(one.norm()), float(other.norm()))
    return max(apart, LEAST)
