"""What an optimizer has to take: a step along a gradient that is given."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from dpexp.types import ConfigError, one_line


def check_optimizer(optimizer: torch.optim.Optimizer, setting: str = "optimizer") -> None:
    """Let one like it take a step on a few made-up numbers.

    Some want a function that computes the loss again, which would be another release; some want
    sparse gradients, which noise never is.

    Args:
        optimizer: of a run; it is left alone.
        setting: what chooses it.

    Raises:
        ConfigError: naming it.
    """
    kind = type(optimizer)
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise _refused(kind, "it computes the loss anew within a step", setting)
    try:
        _stepped(optimizer, 1.0, torch.float32)
    except Exception as error:  # as many ways as there are optimizers
        raise _refused(kind, one_line(error)[:150], setting) from None


def check_size(optimizer: torch.optim.Optimizer, size: float, dtype: torch.dtype) -> None:
    """Let one like it take a step along numbers as large as a run's released gradients.

    Those that square gradients have half the range of those that add them: beyond it what they
    remember is infinite, or zero, and no step that they take says anything.

    Args:
        optimizer: of a run, which `check_optimizer` let pass; it is left alone.
        size: of one number of a gradient, > 0.
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
    """Return what one like it remembers after a step along gradients of a size.

    Empty where its constructor asks for more than its defaults say.
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
    like.step()
    remembered = (value for state in like.state.values() for value in state.values())
    return [value for value in remembered if torch.is_tensor(value) and value.shape == weight.shape]


def _refused(kind: type, reason: str, setting: str) -> ConfigError:
    return ConfigError(
        "Expected an optimizer that steps along the one gradient that it is given; "
        f"{kind.__name__} does not ({reason}). Set {setting}._target_=torch.optim.SGD, Adam or "
        "another."
    )
