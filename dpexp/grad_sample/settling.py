"""Find for each parameter the module whose inputs and outputs are every example's own."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor, nn

from dpexp.grad_sample.hooking import hook_at_parent
from dpexp.grad_sample.tape import Tape


def settle(
    model: nn.Module, parameters: Collection[str], loss: Callable[[], Tensor], num_examples: int
) -> None:
    """Try a model's hooks, and move those that cannot be where they are to the module around.

    A table of positions is called once for all examples, and its output may not bear to be repeated
    for each. A layer may have its examples on another axis than the first. A weight may be read by
    another module than the one that holds it. All that is found out here, by one batch, before the
    first step.

    Args:
        model: any module.
        parameters: those that train, by name.
        loss: takes a batch through the model.
        num_examples: in that batch, >= 2.

    Raises:
        Exception: whatever the model raises without hooks, or with all of them at the model itself.
    """
    while True:
        not_called: set[str] = set()
        with Tape(model, parameters, lambda *_: None) as tape:
            tape.expect(num_examples)
            try:
                loss()
            except Exception:
                moved = (tape.repeated | tape.apart) - {""}
                if not moved:
                    raise
            else:
                moved, not_called = tape.apart - {""}, tape.not_called - {""}
        if not moved:
            moved = {name for name in not_called if _takes_part(model, name, loss)}
        if not moved:
            return
        for name in moved:
            hook_at_parent(model, name)


def _takes_part(model: nn.Module, name: str, loss: Callable[[], Tensor]) -> bool:
    """Return whether some parameter of a module has a gradient."""
    model.zero_grad()
    loss().backward()
    found = any(each.grad is not None for each in model.get_submodule(name).parameters())
    model.zero_grad()
    return found
