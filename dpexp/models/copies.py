"""Copies of models that deepcopy alone refuses."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copied(model: M) -> M:
    """Return a model that shares nothing with this one.

    `torch.nn.utils.weight_norm` and `prune` keep a weight that is computed from parameters as a
    plain attribute, and torch copies no such tensor. The copy has its numbers, and computes them
    again in its next forward pass, as the model does.
    """
    computed = (
        value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    )
    return copy.deepcopy(model, {id(each): each.detach().clone() for each in computed})
