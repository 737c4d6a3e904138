"""Copies of models that deepcopy alone refuses."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

M = TypeVar("M", bound=nn.Module)


def copied(model: M) -> M:
    """Return a model that shares nothing with this one.

    `torch.nn.utils.weight_norm` and `prune` keep a weight that is computed from parameters as a
    plain attribute, and models keep what they last put out, also in lists and dicts; torch copies
    no such tensor. The copy has its numbers, without their history.
    """
    held = chain.from_iterable(tree_leaves(vars(module)) for module in model.modules())
    computed = (each for each in held if isinstance(each, Tensor) and not each.is_leaf)
    return copy.deepcopy(model, {id(each): each.detach().clone() for each in computed})
