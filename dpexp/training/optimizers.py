"""Checks that an optimizer can step along a given gradient."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from dpexp.training.uncompiled import take_step
from dpexp.types import ConfigError, one_line


def check_optimizer(optimizer: torch.optim.Optimizer, setting: str = "optimizer") -> None:
    """Check that a copy of the optimizer can take a step on synthetic numbers.

    Some optimizers need a closure that recomputes the loss, which would be another release. Some
    need sparse gradients, but noisy ones are dense.

    Args:
        optimizer: of a run; it is not changed.
        setting: that chooses it.

    Raises:
        ConfigError: naming the optimizer.
    """
    kind = type(optimizer)
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise _refused(kind, "it computes the loss anew within a step", setting)
    try:
        _stepped(optimizer, 1.0, torch.float32)
    except Exception as error:  # any optimizer may fail in its own way
        raise _refused(kind, one_line(error)[:150], setting) from None


def check_size(optimizer: torch.optim.Optimizer, size: float, dtype: torch.dtype) -> None:
    """Check that a copy of the optimizer can step along gradients of a run's size.

    An optimizer that squares gradients has half the range of one that adds them. Outside it, its
    state is infinite or zero, and its steps are meaningless.

    Args:
        optimizer: of a run, after `check_optimizer`; it is not changed.
        size: of one entry of a gradient, > 0.
        dtype: of the weights.

    Raises:
        ConfigError: naming the clip norm.
    """
    usual, kept = (_stepped(optimizer, each, dtype) for each in (1.0, size))
    for before, now in zip(usual, kept, strict=True):
        if not now.isfinite().all() or (before.all() and not now.any()):
            what = "zero" if now.isfinite().all() else "not finite"
            raise ConfigError(
                f"Expected gradients that {type(optimizer).__name__} can square in "
                f"{str(dtype).removeprefix('torch.')}; at their size here, about {size:.2g}, what "
                f"it remembers is {what}. Set privacy.clip_norm."
            )


def _stepped(optimizer: torch.optim.Optimizer, size: float, dtype: torch.dtype) -> list[Tensor]:
    """Return the state of a copy of the optimizer after a step along gradients of a size.

    Empty if its constructor needs more than its defaults.
    """
    kind = type(optimizer)
    takes = inspect.signature(kind).parameters
    weight = nn.Parameter(torch.zeros(2, 2, dtype=dtype))
    weight.grad = torch.full((2, 2), size, dtype=dtype)
    try:
        settings = {key: v for key, v in optimizer.defaults.items() if key in takes}
        like = kind([weight], **settings | ({"lr": 0.1} if "lr" in takes else {}))
    except Exception:
        return []
    take_step(like)
    remembered = (value for state in like.state.values() for value in state.values())
    return [value for value in remembered if torch.is_tensor(value) and value.shape == weight.shape]


def _refused(kind: type, reason: str, setting: str) -> ConfigError:
    return ConfigError(
        "Expected an optimizer that steps along the one gradient that it is given; "
        f"{kind.__name__} does not ({reason}). Set {setting}._target_=torch.optim.SGD, Adam or "
        "another."
    )


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float], multiplier: float) -> None:
    """Set each group's learning rate to its initial one times a multiplier."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * multiplier
