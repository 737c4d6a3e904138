"""Which parameters train: what a model's author froze stays frozen.

A tape freezes all while it is attached, so that `requires_grad` says nothing then; which of them it
froze is kept here.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

_FROZEN_FOR_NOW = WeakTensorKeyDictionary()


def trains(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is to be trained, unless a method leaves it out."""
    return parameter.requires_grad or parameter in _FROZEN_FOR_NOW


def freeze(parameters: Iterable[nn.Parameter]) -> None:
    """Take from parameters that train that autograd sees them, until `thaw`."""
    for parameter in parameters:
        parameter.requires_grad_(False)
        _FROZEN_FOR_NOW[parameter] = True


def thaw(parameters: Iterable[nn.Parameter]) -> None:
    """Return that back."""
    for parameter in parameters:
        parameter.requires_grad_(True)
        _FROZEN_FOR_NOW.pop(parameter, None)
