"""Before the first step: does the model treat made-up examples as privacy needs it?

Two things are asked of it. The gradients that the tape takes add up to autograd's: a weight that is
used a second time past its layer, or an output that a hook alters, gives others. And what one
example comes to, its output and its gradient, depends on no other example in the batch, nor does
any buffer on any of them: a module that normalises over the batch or keeps a running mean would
let an example move more than its own clipped gradient.

What is not equal to the last digits in the model's own precision is decided in float64, where
rounding is a thousand times smaller than what is tolerated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample import settle
from dpexp.privacy.certificate import UNTRIED
from dpexp.training.probing import verdict
from dpexp.training.probing.made_up import FIRST, SECOND, MadeUp, make_up
from dpexp.training.probing.recorder import gap
from dpexp.training.probing.stage import (
    EDGES,
    MIDDLE,
    OTHERS,
    Chance,
    FixedDraws,
    staged,
    state_kept,
)
from dpexp.training.probing.trial import Subject, Trial
from dpexp.training.probing.verdict import size_of
from dpexp.types import Batch, ConfigError, one_line

CLEAR = 1e-5
"""In the model's own precision, smaller differences are rounding, and larger ones are looked at in
float64 (ours)."""

SHARP = 1e-9
"""In float64: sums of 10^5 products round at 10^-11 of what they add up."""

COARSE = 1e-2
"""Where float64 cannot be had; what a batch's statistics mix is a good part of an example."""

MANY = "with how many are in its batch"


def check_model(
    model: nn.Module, parameters: Sequence[str], task: Any, device: torch.device
) -> str | None:
    """Try a model on made-up examples; nothing of it is changed, and no random number is drawn.

    Args:
        model: on its device.
        parameters: those that a method trains, by name.
        task: its loss and its examples' shape; no example is looked at.
        device: the model's.

    Returns:
        What the certificate should say where the model cannot be tried; None where it was.

    Raises:
        ConfigError: naming the layer whose gradient is not what the tape takes it for, or the
            module that mixes examples.
    """
    try:
        own = next(model.parameters()).dtype
        wrong = _tried(model, parameters, task, device, own, SHARP if own == torch.double else 0)
        if wrong is not None and own != torch.double:
            wrong = _decided(model, parameters, task, device)
    except ConfigError:
        raise
    except Exception as error:  # whatever a model says of inputs that are none of the data's
        words = f"{type(error).__name__}: {one_line(error)[:150]}"
        warnings.warn(f"{UNTRIED.capitalize()} ({words}).", stacklevel=2)
        return UNTRIED
    if wrong is not None:
        raise ConfigError(wrong)
    return None


def _decided(
    model: nn.Module, parameters: Sequence[str], task: Any, device: torch.device
) -> str | None:
    """Decide in float64, or coarsely where the model cannot be had in it."""
    try:
        return _tried(model, parameters, task, device, torch.double, SHARP)
    except ConfigError:
        raise
    except Exception:  # a model may insist on its own precision
        own = next(model.parameters()).dtype
        return _tried(model, parameters, task, device, own, COARSE)


def _tried(
    model: nn.Module,
    parameters: Sequence[str],
    task: Any,
    device: torch.device,
    dtype: torch.dtype,
    tolerance: float,
) -> str | None:
    """Say what is wrong beyond a tolerance; 0: beyond rounding, and beyond nothing for equals."""
    with staged(model, dtype, device), torch.enable_grad():
        examples = make_up(task, model, device, dtype)
        one = examples.one
        settle(model, parameters, lambda: task.loss(model(one.inputs), one.targets), len(one))
        subject = Subject(model, parameters, task.loss)
        wrong, draws = _compared(subject, examples, tolerance, MIDDLE)
        chances = [*(EDGES if draws.has_drawn else ()), *OTHERS[: draws.choices]]
        for chance in chances:
            with suppress(ConfigError):  # a layer that chance leaves out; a step will say so
                wrong = wrong or _compared(subject, examples, tolerance, chance)[0]
        return wrong


def _compared(
    subject: Subject, examples: MadeUp, tolerance: float, chance: Chance
) -> tuple[str | None, FixedDraws]:
    """Say what is wrong where chance gives some numbers, and what it was asked for."""
    model, most = subject.model, tolerance or CLEAR
    one = subject.trial(examples.one, chance, (0, 1), is_whole=True)
    other = subject.trial(examples.other, chance, (0,))
    alone = subject.trial(examples.alone, chance, (0,))
    crowd = subject.trial(examples.crowd, chance, (FIRST, SECOND), is_heard=False)
    wrong = (
        verdict.moved(model, [one, other, alone, crowd])
        or _gradients(one.total, *_by_autograd(subject, examples.one, chance), most)
        or verdict.mixing(model, one, other, 0, tolerance, "with the others in its batch")
        or verdict.mixing(model, one, alone, 1, most, MANY)
        or verdict.buffers(model, one, crowd)
        or _crowded(subject, examples, crowd, one, alone, most, chance)
        or verdict.attributes(model, one, other, examples.alone, tolerance, chance)
        or verdict.attributes(model, one, crowd, examples.alone, most, chance)
    )
    return wrong, one.draws


def _crowded(
    subject: Subject,
    examples: MadeUp,
    crowd: Trial,
    one: Trial,
    alone: Trial,
    most: float,
    chance: Chance,
) -> str | None:
    """Compare what examples come to in a crowd with what they come to by themselves.

    Whatever a module orders examples by, not all of nine can have the place that one alone has.
    """
    if crowd.draws.is_opaque:
        return None  # dropout of another shape
    singles = {FIRST: examples.alone, **examples.singles}
    differing = [
        at
        for at, single in singles.items()
        if gap(
            crowd.outputs[at],
            (alone.outputs if at == FIRST else subject.outputs(single, chance))[0],
        )
        > most
    ]
    if verdict.differ(alone.each[0], crowd.each[FIRST], most):
        differing.append(FIRST)
    if verdict.differ(one.each[0], crowd.each[SECOND], most):
        differing.append(SECOND)
    if not differing:
        return None
    row = differing[0]
    among, alone = (subject.trial(batch, chance) for batch in (examples.crowd, singles[row]))
    return verdict.said(subject.model, among, alone, row, most, MANY)


def _gradients(
    taken: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    sizes: Mapping[str, float],
    tolerance: float,
) -> str | None:
    """Compare the tape's summed gradients with autograd's."""
    for name, mine in taken.items():
        apart = size_of(mine - expected[name])
        if apart > tolerance * sizes[name]:
            layer, _, own = name.rpartition(".")
            size = size_of(expected[name])
            much = f"{apart / size:.2g} of its size" if size else "all of it"
            return (
                f"Expected layer {layer!r} to be used by nothing but its own forward pass; on "
                f"made-up examples the gradient of its {own} is off by {much}, as where a weight "
                "is used a second time or a hook alters an output. Give that use a layer of its "
                "own, or freeze it."
            )
    return None


def _by_autograd(
    subject: Subject, batch: Batch, chance: Chance
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return gradients by name, and the scale of each one's terms, which rounding grows with."""
    model, parameters = subject.model, subject.parameters
    weights = {name: model.get_parameter(name) for name in parameters}
    flags = [(p, p.requires_grad) for p in model.parameters()]
    layers = {name.rpartition(".")[0] for name in parameters}
    seen: dict[str, list[float]] = {name: [0.0, 0.0] for name in layers}

    def record(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        x = args[0] if args else kwargs["input"]
        taps = math.prod(getattr(layer, "kernel_size", (1,)))
        entries = x.numel() if isinstance(layer, nn.GroupNorm | nn.LayerNorm) else 0
        norm = float(x.detach().double().norm()) if x.is_floating_point() else math.sqrt(x.numel())
        seen[name][0] = max(norm * math.sqrt(taps), math.sqrt(entries), math.sqrt(output.numel()))
        if output.requires_grad:
            output.register_hook(lambda dh: _note(seen[name], dh))

    hooks = [
        model.get_submodule(name).register_forward_hook(partial(record, name), with_kwargs=True)
        for name in layers
    ]
    try:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for weight in weights.values():
            weight.requires_grad_(True)
        with state_kept(model), FixedDraws(chance):
            total = subject.loss(model(batch.inputs), batch.targets)
            found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for hook in hooks:
            hook.remove()
    gradients = {
        name: torch.zeros_like(weight) if gradient is None else gradient
        for (name, weight), gradient in zip(weights.items(), found, strict=True)
    }
    return gradients, {name: math.prod(seen[name.rpartition(".")[0]]) for name in parameters}


def _note(seen: list[float], dh: Tensor) -> None:
    seen[1] += size_of(dh)
