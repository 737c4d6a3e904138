"""Rules for layers of timm and torchvision that compute what layers of torch compute."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.grad_sample import rule
from dpexp.grad_sample.conv2d import Conv2dGrads
from dpexp.grad_sample.norm import NormGrads
from dpexp.grad_sample.rules import ROWWISE, Rule, has_rule, rule_of

LIBRARIES = ("timm.layers.", "torchvision.models.")

SAME: dict[str, type[nn.Module]] = {
    "Linear": nn.Linear,
    "LayerNorm": nn.LayerNorm,
    "GroupNorm": nn.GroupNorm,
    "GroupNorm1": nn.GroupNorm,
}
"""Types that compute what another does, by name."""


def register(model: nn.Module) -> None:
    """Register rules for those layers of a model that have one here."""
    for kind in {type(module) for module in model.modules()}:
        if not kind.__module__.startswith(LIBRARIES) or has_rule(kind):
            continue
        found = _rule_for(kind)
        if found is not None:
            rule(kind, fits=_is_torchs)(found)


def _rule_for(kind: type[nn.Module]) -> Rule | None:
    """Return the rule for a type; None if its layers are run again under torch.func."""
    name = kind.__name__
    if name in SAME and issubclass(kind, SAME[name]):
        if SAME[name] in ROWWISE:
            ROWWISE.add(kind)
        return rule_of(SAME[name])
    if name == "LayerNorm2d" and issubclass(kind, nn.LayerNorm):
        return norm_of_channels
    if name == "Conv2dSame" and issubclass(kind, nn.Conv2d):
        return convolution_of_same_size
    return None


def _is_torchs(layer: nn.Module) -> bool:
    """Return whether a layer computes as torch's: timm may take other norms where told to."""
    return not getattr(layer, "_fast_norm", False)


def norm_of_channels(layer: nn.LayerNorm, x: Tensor, dh: Tensor) -> NormGrads:
    """Return the gradients of a LayerNorm over the channels of images, for x [n, c, h, w]."""
    return NormGrads.read(layer, x.permute(0, 2, 3, 1), dh.permute(0, 2, 3, 1))


def convolution_of_same_size(layer: Any, x: Tensor, dh: Tensor) -> Conv2dGrads:
    """Return the gradients of a convolution that pads as TensorFlow's "same" does.

    Its output has the input's size over the stride, rounded up; an odd zero is put at the end.
    """
    missing = []
    for axis in (1, 0):  # the last axis first, as F.pad takes it
        size, stride = x.shape[2 + axis], layer.stride[axis]
        reach = (ceil(size / stride) - 1) * stride
        reach += (layer.kernel_size[axis] - 1) * layer.dilation[axis] + 1
        zeros = max(reach - size, 0)
        missing += [zeros // 2, zeros - zeros // 2]
    if any(missing):
        x = F.pad(x, missing)
    grads = Conv2dGrads.read(layer, x, dh)
    return replace(grads, at=replace(grads.at, padding=(0, 0)))
