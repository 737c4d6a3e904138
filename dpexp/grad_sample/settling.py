"""Find for each parameter the module whose inputs and outputs are every example's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from dpexp.grad_sample.hooking import hook_at_parent
from dpexp.grad_sample.tape import Tape


class Try(NamedTuple):
    """A batch to try a model on.

    Attributes:
        loss: takes the batch through the model.
        num_examples: in it, >= 2.
    """

    loss: Callable[[], Tensor]
    num_examples: int


def settle(model: nn.Module, parameters: Collection[str], tries: Sequence[Try]) -> None:
    """Try a model's hooks, and move those that cannot be where they are to the module around.

    A table of positions is called once for all examples, and its output may not bear to be repeated
    for each. A layer may have its examples on another axis than the first. A weight may be read by
    another module than the one that holds it. All that is found out here, before the first step.
    What has as many rows as several batches in turn could have is told by batches of several sizes.

    Args:
        model: any module.
        parameters: those that train, by name.
        tries: batches.

    Raises:
        Exception: whatever the model raises without hooks, or with all of them at the model itself.
    """
    before: set[str] = set()
    while (moved := _to_move(model, parameters, tries)) - before:
        before |= moved
        for name in moved:
            hook_at_parent(model, name)


def _to_move(model: nn.Module, parameters: Collection[str], tries: Sequence[Try]) -> set[str]:
    """Return the modules whose hooks cannot be where they are."""
    not_called: set[str] = set()
    for loss, num_examples in tries:
        with Tape(model, parameters, lambda *_: None) as tape:
            tape.expect(num_examples)
            try:
                loss()
            except Exception:
                moved = (tape.repeated | tape.apart) - {""}
                if not moved:
                    raise
                return moved
            if moved := tape.apart - {""}:
                return moved
            not_called |= tape.not_called - {""}
    return {name for name in not_called if _takes_part(model, name, tries[0].loss)}


def _takes_part(model: nn.Module, name: str, loss: Callable[[], Tensor]) -> bool:
    """Return whether some parameter of a module has a gradient."""
    model.zero_grad()
    loss().backward()
    found = any(each.grad is not None for each in model.get_submodule(name).parameters())
    model.zero_grad()
    return found
