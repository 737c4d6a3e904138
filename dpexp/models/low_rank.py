"""Low-rank adapters of parameters that modules read themselves, as a recurrent layer's matrices.

The parameter W [p, ...] stays where it is, frozen, and whoever reads it gets W + s B A, by torch's
parametrizations. What the module computes is not looked into, so that any module will do. Where its
type has a rule, an example's gradients are products with that of W,

    dB_i = s dW_i A^T [p, r],        dA_i = s B^T dW_i [r, d],

and elsewhere torch.func's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpexp.grad_sample.parametrized import behind
from dpexp.types import LayerGrads, PerExampleGrads


class LowRank(nn.Module):
    """The adapter of one parameter: W to W + s B A.

    B is zero at first, and A is drawn by Xavier's normal, as where a layer is adapted.

    Attributes:
        lora_A: [r, d], d numbers a row of W.
        lora_B: [p, r].
        scale: s, alpha over the rank.
        is_of_its_type: whether the module computes what its type does, without hooks.
    """

    def __init__(self, weight: Tensor, rank: int, alpha: float, is_of_its_type: bool) -> None:
        """Draw it for a weight [p, ...], on its device and in its precision.

        Args:
            weight: what it adds to.
            rank: r >= 1.
            alpha: the adapter is multiplied by alpha / rank.
            is_of_its_type: see the attribute.
        """
        super().__init__()
        self.scale, self.is_of_its_type = alpha / rank, is_of_its_type
        like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        width = math.prod(weight.shape[1:])
        self.lora_A = nn.Parameter(torch.empty(rank, width, **like))
        self.lora_B = nn.Parameter(torch.zeros(len(weight), rank, **like))
        nn.init.xavier_normal_(self.lora_A)

    def forward(self, weight: Tensor) -> Tensor:
        """Return W + s B A, in W's shape."""
        return weight + self.scale * (self.lora_B @ self.lora_A).view_as(weight)


@behind(LowRank, fits=lambda adapter: adapter.is_of_its_type)
def _gradients(adapter: LowRank, used: LayerGrads) -> dict[str, PerExampleGrads]:
    """Return an example's gradients of A and B, from that of W + s B A."""
    a, b = (adapter.scale * each.detach() for each in (adapter.lora_A, adapter.lora_B))
    return {"lora_A": used.right(b), "lora_B": used.left(a)}


def put_in(module: nn.Module, own: str, rank: int, alpha: float) -> None:
    """Put an adapter on one of a module's own parameters; see `LowRank`."""
    weight = module.get_parameter(own)
    if isinstance(module, nn.RNNBase) and _forget not in module._forward_hooks.values():
        module.register_forward_hook(_forget)
    adapter = LowRank(weight, rank, alpha, is_of_its_type(module))
    parametrize.register_parametrization(module, own, adapter)


def is_of_its_type(module: nn.Module) -> bool:
    """Return whether a module computes what its type does: hooks may look at it or change it."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _forget(layer: nn.RNNBase, _: Any, __: Any) -> None:
    """Take what a recurrent layer keeps of its weights off the graph: else it has no copies."""
    layer._flat_weights = [each if each is None else each.detach() for each in layer._flat_weights]


def adapted(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield every such adapter's name, the module whose parameter it is of, and which one."""
    for name, module in model.named_modules():
        if not parametrize.is_parametrized(module):
            continue
        lists = module.parametrizations
        assert isinstance(lists, nn.ModuleDict)
        for own, chain in lists.items():
            if isinstance(chain, nn.ModuleList) and isinstance(chain[0], LowRank):
                yield f"{name}.parametrizations.{own}.0".lstrip("."), module, own


@torch.no_grad()
def take_out(module: nn.Module, own: str) -> None:
    """Put W + s B A in W's place, and the module's class back.

    torch's own function would change the class that copies of the module share.
    """
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    original, value = lists[own].original, getattr(module, own).clone()
    assert isinstance(original, nn.Parameter)
    original.copy_(value)
    del lists[own]
    kind = type(module)
    if lists:
        attributes = {k: v for k, v in vars(kind).items() if k not in (own, *PER_CLASS)}
        module.__class__ = type(kind.__name__, kind.__bases__, attributes)
    else:
        del module.parametrizations
        module.__class__ = kind.__bases__[0]
        for key in [key for key, hook in module._forward_hooks.items() if hook is _forget]:
            del module._forward_hooks[key]
    setattr(module, own, original)


PER_CLASS = ("__dict__", "__weakref__")
"""Attributes that Python gives each class."""
