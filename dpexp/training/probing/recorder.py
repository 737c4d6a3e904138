"""Record a batch's tensors and gradients in forward and backward, module by module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.grad_sample.modules import is_running_again


@dataclass
class Event:
    """A tensor that entered or left a module, or a gradient at one.

    Attributes:
        module: to blame if this tensor is the first to differ: the module it left, or the parent of
            the module it entered.
        kind: "output" or "gradient".
        value: of every example, side by side.
    """

    module: str
    kind: str
    value: Tensor


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
        self._note([args, kwargs], around, name)

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if is_running_again():
            return
        self._inside.pop()
        around = self._inside[-1] if self._inside else ""
        self._note(output, name, around)

    def _note(self, tensors: Any, module: str, of_gradient: str) -> None:
        """Record tensors and their gradients, with the module to blame for each."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            self._keep(tensor, module, "output")
            if tensor.requires_grad:
                tensor.register_hook(partial(self._keep, module=of_gradient, kind="gradient"))

    def _keep(self, tensor: Tensor, module: str, kind: str) -> None:
        if tensor.dim() and len(tensor) and len(tensor) % self.count == 0:
            each = tensor.detach().clone().unflatten(0, (self.count, -1))
            self.events.append(Event(module, kind, each))


def first_difference(one: Recorder, other: Recorder, row: int, most: float) -> Event | None:
    """Return the first event that differs by more than a fraction, forward before backward.

    Args:
        one: a batch's recorder.
        other: another batch's, whose first example is compared with `row` of `one`.
        row: in the first batch.
        most: the fraction.
    """
    for kind in ("output", "gradient"):
        pairs = zip(
            (event for event in one.events if event.kind == kind),
            (event for event in other.events if event.kind == kind),
            strict=False,
        )
        for mine, theirs in pairs:
            own, its = mine.value[row], theirs.value[0]
            if own.shape == its.shape and gap(own, its) > most:
                return mine
    return None


def gap(one: Tensor, other: Tensor) -> float:
    """Return the distance of two tensors, relative to the larger.

    Values that are not finite in both alike do not differ; in one alone the distance is infinite.
    """
    one, other = one.double(), other.double()
    if torch.equal(one, other):
        return 0.0
    odd = ~(one.isfinite() & other.isfinite())
    if odd.any():
        if not torch.equal(one[odd].nan_to_num(), other[odd].nan_to_num()):
            return math.inf
        one, other = one.masked_fill(odd, 0.0), other.masked_fill(odd, 0.0)
    size = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) / size if size else 0.0
