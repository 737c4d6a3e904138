"""Which parameters train: what a model's author froze stays frozen.

While a tape is attached, it sets `requires_grad=False` on all parameters. This module remembers
which of them the tape froze.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

_FROZEN_FOR_NOW = WeakTensorKeyDictionary()


def trains(parameter: nn.Parameter) -> bool:
    """Return whether the model's author lets a parameter train."""
    return parameter.requires_grad or parameter in _FROZEN_FOR_NOW


def freeze(parameters: Iterable[nn.Parameter]) -> None:
    """Hide trainable parameters from autograd until `thaw`."""
    for parameter in parameters:
        parameter.requires_grad_(False)
        _FROZEN_FOR_NOW[parameter] = True


def thaw(parameters: Iterable[nn.Parameter]) -> None:
    """Undo `freeze`."""
    for parameter in parameters:
        parameter.requires_grad_(True)
        _FROZEN_FOR_NOW.pop(parameter, None)
