"""Use torch's optimizers without importing torch.compile's tracer, which takes a second.

torch excludes an optimizer's methods from what is compiled, and imports `torch._dynamo` to do so
even where nothing is. No step here is compiled. Once something else has imported the tracer, torch
does as it always does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as internals

TRACER = "torch._dynamo"

METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Of torch's Optimizer, those that import the tracer when they are first called."""

KEPT = "__dynamo_disable"
"""Where torch (`torch/_compile.py`) keeps a method's uncompiled form, once it has made it."""


def spare_tracer() -> None:
    """Let optimizers be made, saved and emptied without the tracer."""
    for name in METHODS:
        outer = getattr(Optimizer, name)
        inner = getattr(outer, "__wrapped__", None)
        if inner is not None and not hasattr(inner, KEPT):
            setattr(inner, KEPT, _plain(outer, inner))


def _plain(outer: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    def plain(*args: Any, **kwargs: Any) -> Any:
        if TRACER not in sys.modules:
            return inner(*args, **kwargs)
        with suppress(AttributeError):
            delattr(inner, KEPT)
        return outer(*args, **kwargs)  # makes torch's own

    return plain


def take_step(optimizer: Optimizer) -> None:
    """Take an optimizer's step, as `optimizer.step()` does, without the tracer where that can be.

    It can be for torch's own optimizers that have no hooks.
    """
    kind = type(optimizer)
    is_torchs = kind.__module__.startswith("torch.optim.")
    if TRACER in sys.modules or not is_torchs or "step" in vars(optimizer) or _is_hooked(optimizer):
        optimizer.step()
        return
    with torch.set_grad_enabled(bool(optimizer.defaults.get("differentiable", False))):
        inspect.unwrap(kind.step)(optimizer)


def _is_hooked(optimizer: Optimizer) -> bool:
    """Return whether a step calls hooks; also where a later torch has them in other places."""
    places = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    everywhere = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    hooks = [getattr(optimizer, name, True) for name in places]
    hooks += [getattr(internals, name, True) for name in everywhere]
    return any(bool(each) for each in hooks)
