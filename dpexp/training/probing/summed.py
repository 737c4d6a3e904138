"""Compare the tape's summed gradients with autograd's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.grad_sample.hooking import called_for, hooked_layers
from dpexp.grad_sample.modules import floating_of
from dpexp.training.probing.draws import Chance, FixedDraws
from dpexp.training.probing.sketch import sketch
from dpexp.training.probing.stage import state_kept
from dpexp.training.probing.trial import Subject, Trial
from dpexp.training.probing.verdict import size_of
from dpexp.types import Batch


def compare(
    subject: Subject, batch: Batch, found: Trial, chance: Chance, tolerance: float
) -> str | None:
    """Return where a trial's sums differ from autograd's; note which gradients are not zero.

    Args:
        subject: on stage; what is not zero is no longer `silent`, and what the loss depends on no
            longer `unused`.
        batch: of the trial.
        found: the trial, with all that it summed.
        chance: its random draws.
        tolerance: as a fraction of the largest gradient's size, or of a gradient's terms' where
            these are larger.
    """
    expected, sizes, elsewhere, used = _by_autograd(subject, batch, chance)
    subject.unused -= used
    subject.silent -= {name for name, gradient in expected.items() if size_of(gradient)}
    return _gradients(found.total, expected, sizes, tolerance) or next(
        (_used(name, "is used elsewhere, too") for name in elsewhere), None
    )


def _gradients(
    taken: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    sizes: Mapping[str, float],
    tolerance: float,
) -> str | None:
    """Return where the tape's summed gradients differ from autograd's.

    A gradient that is almost zero beside others holds their rounding: a query's is, where attention
    is all on one token, the difference of numbers as large as theirs. NaN is no rounding.
    """
    largest = max(filter(math.isfinite, map(size_of, expected.values())), default=0.0)
    for name, mine in taken.items():
        apart = size_of(mine - expected[name])
        size = size_of(expected[name])
        if math.isnan(apart) and math.isfinite(size):
            layer, _, own = name.rpartition(".")
            return (
                f"Expected a rule for layer {layer!r} that gives numbers where autograd does; on "
                f"made-up examples the gradient of its {own} is NaN. Correct the rule, or freeze "
                "that layer."
            )
        if apart > tolerance * max(sizes[name], largest):
            much = f"{apart / size:.2g} of its size" if size else "all of it"
            return _used(
                name,
                f"has a gradient that is off by {much}, as where a weight is used a second time or "
                "a hook alters an output",
            )
    return None


def _used(name: str, how: str) -> str:
    layer, _, own = name.rpartition(".")
    return (
        f"Expected layer {layer!r} to be used by nothing but its own forward pass; on made-up "
        f"examples its {own} {how}. Give that use a layer of its own, or freeze it."
    )


def _by_autograd(
    subject: Subject, batch: Batch, chance: Chance
) -> tuple[dict[str, Tensor], dict[str, float], list[str], set[str]]:
    """Return gradients or sketches, the scale of their terms, what is used elsewhere, and at all.

    The scale is that of the rounding error. A use elsewhere is one that no call of a weight's layer
    accounts for. It is told by autograd's graph, so that it shows where its gradient is zero, too.
    """
    model, parameters = subject.model, subject.parameters
    weights = {name: model.get_parameter(name) for name in parameters}
    flags = [(p, p.requires_grad) for p in model.parameters()]
    hooked = hooked_layers(model, parameters)
    seen: dict[str, list[float]] = {name: [0.0, 0.0] for name in hooked}
    within: Counter[int] = Counter()

    def record(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        taps = math.prod(getattr(layer, "kernel_size", (1,)))
        is_norm = isinstance(layer, nn.GroupNorm | nn.LayerNorm)
        for x in filter(torch.is_tensor, tree_leaves((args, kwargs))):
            is_number = x.is_floating_point()
            norm = float(x.detach().double().norm()) if is_number else math.sqrt(x.numel())
            entries = x.numel() if is_norm else 0
            seen[name][0] = max(seen[name][0], norm * math.sqrt(taps), math.sqrt(entries))
        within.update(_uses(floating_of(output), tree_leaves((args, kwargs))))
        for each in floating_of(output):
            seen[name][0] = max(seen[name][0], math.sqrt(each.numel()))
            if each.requires_grad:
                each.register_hook(lambda dh: _note(seen[name], dh))

    hooks = [
        model.get_submodule(called_for(model, each.owner)).register_forward_hook(
            partial(record, name), with_kwargs=True
        )
        for name, each in hooked.items()
    ]
    try:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for weight in weights.values():
            weight.requires_grad_(True)
        with state_kept(model), FixedDraws(chance):
            total = subject.loss(model(batch.inputs), batch.targets)
            everywhere = _uses([total])
            taken = [*torch.autograd.grad(total, list(weights.values()), allow_unused=True)]
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for hook in hooks:
            hook.remove()
    used = {name for name, each in zip(weights, taken, strict=True) if each is not None}
    gradients = {name: _sketched(weights[name], taken.pop()) for name in reversed(weights)}
    sizes = dict.fromkeys(parameters, 0.0)
    for name, layer in hooked.items():
        for full in layer.names.values():
            sizes[full] += math.prod(seen[name])
    elsewhere = [n for n, weight in weights.items() if everywhere[id(weight)] > within[id(weight)]]
    return gradients, sizes, elsewhere, used


def _sketched(weight: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the sketch of a weight's gradient, which may be sparse, or None for zeros."""
    if gradient is None:
        return sketch(torch.zeros_like(weight, requires_grad=False))
    return sketch(gradient.to_dense() if gradient.is_sparse else gradient)


def _uses(outputs: Iterable[Tensor], inputs: Iterable[Any] = ()) -> Counter[int]:
    """Count the operations that use a leaf between inputs and outputs, by the leaf's id."""
    found: Counter[int] = Counter()
    seen = {each.grad_fn for each in inputs if torch.is_tensor(each)}
    left = [each.grad_fn for each in outputs]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for inner, _ in node.next_functions:
            if inner is not None and hasattr(inner, "variable"):
                found[id(inner.variable)] += 1
            else:
                left.append(inner)
    return found


def _note(seen: list[float], dh: Tensor) -> None:
    seen[1] += size_of(dh)
