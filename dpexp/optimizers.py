"""What an optimizer has to take: a step along a gradient that is given."""

from __future__ import annotations

import inspect

import torch
from torch import nn

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
    takes = inspect.signature(kind).parameters
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.ones(2, 2)
    try:
        settings = {key: v for key, v in optimizer.defaults.items() if key in takes}
        like = kind([weight], **settings | ({"lr": 0.1} if "lr" in takes else {}))
    except Exception:  # whose constructor asks for more than its defaults say
        return
    try:
        like.step()
    except Exception as error:  # as many ways as there are optimizers
        raise _refused(kind, one_line(error)[:150], setting) from None


def _refused(kind: type, reason: str, setting: str) -> ConfigError:
    return ConfigError(
        "Expected an optimizer that steps along the one gradient that it is given; "
        f"{kind.__name__} does not ({reason}). Set {setting}._target_=torch.optim.SGD, Adam or "
        "another."
    )
