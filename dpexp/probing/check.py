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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.mechanism.certificate import UNTRIED
from dpexp.probing.made_up import MadeUp, make_up
from dpexp.probing.recorder import Recorder, first_difference, gap
from dpexp.probing.stage import (
    EDGES,
    MIDDLE,
    Attributes,
    Chance,
    FixedDraws,
    attributes_of,
    buffers_of,
    set_attributes,
    staged,
    state_kept,
)
from dpexp.taps import Tape
from dpexp.types import Batch, ConfigError, Tap, one_line

Judge = Callable[[Tensor, Tensor], Tensor]

CLEAR = 1e-5
"""In the model's own precision, smaller differences are rounding, and larger ones are looked at in
float64 (ours)."""

SHARP = 1e-9
"""In float64: sums of 10^5 products round at 10^-11 of what they add up."""

COARSE = 1e-2
"""Where float64 cannot be had; what a batch's statistics mix is a good part of an example."""

BESIDE = 0.1
"""A parameter's gradient is held to its own size, or to this share of the largest one's (ours)."""


@dataclass
class Trial:
    """What a batch came to.

    Attributes:
        outputs: every example's.
        each: the first examples' gradients, by parameter.
        total: all examples' gradient, as the tape takes it; empty where it was not wanted.
        recorder: what was seen on the way.
        buffers: as they were left.
        attributes: likewise, of what modules hold beside them.
        draws: what chance had to do with it.
    """

    outputs: Tensor
    each: list[dict[str, Tensor]]
    total: dict[str, Tensor]
    recorder: Recorder
    buffers: dict[str, Tensor]
    attributes: Attributes
    draws: FixedDraws


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
        wrong, may_differ = _compared(model, parameters, task.loss, examples, tolerance, MIDDLE)
        for chance in EDGES if may_differ and wrong is None else ():
            with suppress(ConfigError):  # a layer that chance leaves out; a step will say so
                wrong = (
                    wrong or _compared(model, parameters, task.loss, examples, tolerance, chance)[0]
                )
        return wrong


def _compared(
    model: nn.Module,
    parameters: Sequence[str],
    loss: Judge,
    examples: MadeUp,
    tolerance: float,
    chance: Chance,
) -> tuple[str | None, bool]:
    """Say what is wrong where chance gives some numbers, and whether others may lead elsewhere."""
    one, other, alone = (
        _trial(model, parameters, loss, batch, chance, is_whole=batch is examples.one)
        for batch in examples
    )
    expected, sizes = _by_autograd(model, parameters, loss, examples.one, chance)
    wrong = (
        _gradients(one.total, expected, sizes, tolerance or CLEAR)
        or _mixing(model, one, other, 0, tolerance, "with the others in its batch")
        or _mixing(model, one, alone, 1, tolerance or CLEAR, "with how many are in its batch")
        or _attributes(model, one, other, examples.alone, tolerance, chance)
    )
    return wrong, one.draws.has_drawn


def _gradients(
    taken: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    sizes: Mapping[str, float],
    tolerance: float,
) -> str | None:
    """Compare the tape's summed gradients with autograd's."""
    for name, mine in taken.items():
        apart = _norm(mine - expected[name])
        if apart > tolerance * sizes[name]:
            layer, _, own = name.rpartition(".")
            size = _norm(expected[name])
            much = f"{apart / size:.2g} of its size" if size else "all of it"
            return (
                f"Expected layer {layer!r} to be used by nothing but its own forward pass; on "
                f"made-up examples the gradient of its {own} is off by {much}, as where a weight "
                "is used a second time or a hook alters an output. Give that use a layer of its "
                "own, or freeze it."
            )
    return None


def _by_autograd(
    model: nn.Module, parameters: Sequence[str], loss: Judge, batch: Batch, chance: Chance
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Give the gradients, and for each how large its terms are: what their rounding scales with."""
    weights = {name: model.get_parameter(name) for name in parameters}
    flags = [(p, p.requires_grad) for p in model.parameters()]
    layers = {name.rpartition(".")[0] for name in parameters}
    seen: dict[str, list[float]] = {name: [0.0, 0.0] for name in layers}

    def hear(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        x = args[0] if args else kwargs["input"]
        taps = math.prod(getattr(layer, "kernel_size", (1,)))
        entries = x.numel() if isinstance(layer, nn.GroupNorm | nn.LayerNorm) else 0
        norm = float(x.detach().double().norm()) if x.is_floating_point() else math.sqrt(x.numel())
        seen[name][0] = max(norm * math.sqrt(taps), math.sqrt(entries), math.sqrt(output.numel()))
        if output.requires_grad:
            output.register_hook(lambda dh: _note(seen[name], dh))

    hooks = [
        model.get_submodule(name).register_forward_hook(partial(hear, name), with_kwargs=True)
        for name in layers
    ]
    try:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for weight in weights.values():
            weight.requires_grad_(True)
        with state_kept(model), FixedDraws(chance):
            total = loss(model(batch.inputs), batch.targets)
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


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def _note(seen: list[float], dh: Tensor) -> None:
    seen[1] += _norm(dh)


def _trial(
    model: nn.Module,
    parameters: Sequence[str],
    loss: Judge,
    batch: Batch,
    chance: Chance,
    *,
    is_whole: bool,
) -> Trial:
    """Take a batch through model and tape.

    Of a whole one every example's gradient is kept, and their sum as the tape takes it; of another
    the first example's.
    """
    total: dict[str, Tensor] = {}
    each: list[dict[str, Tensor]] = [{} for _ in range(len(batch) if is_whole else 1)]
    rows = torch.arange(len(batch), device=batch.inputs.device)
    shapes = {name: model.get_parameter(name) for name in parameters}

    def take(layer: str, tap: Tap) -> None:
        for own in tap.parameters:
            name = f"{layer}.{own}"
            for row, sums in [*enumerate(each), *([(None, total)] if is_whole else [])]:
                carrier = tap.gradient(own)
                carrier = carrier if row is None else carrier.keep(rows == row)
                sums[name] = torch.zeros_like(
                    shapes[name], requires_grad=False, memory_format=torch.contiguous_format
                )
                with torch.no_grad():
                    carrier.add_to(sums[name], None)

    recorder, draws = Recorder(len(batch)), FixedDraws(chance)
    with state_kept(model):
        with recorder.on(model), Tape(model, parameters, take) as tape, draws:
            tape.expect(len(batch))
            outputs = model(batch.inputs)
            tape.backward(loss(outputs, batch.targets))
        return Trial(
            outputs.detach().clone(),
            each,
            total,
            recorder,
            buffers_of(model),
            attributes_of(model),
            draws,
        )


def _mixing(
    model: nn.Module, one: Trial, other: Trial, row: int, most: float, how: str
) -> str | None:
    """Compare what an example comes to in two companies, and the buffers.

    Args:
        model: of both.
        one: a trial.
        other: another one, where the example is the first.
        row: the example in the first trial.
        most: as a share, what may differ.
        how: what of the company is another.
    """
    if one.draws.is_opaque and one.recorder.count != other.recorder.count:
        return None  # dropout of another shape
    if (wrong := _buffers(model, one.buffers, other.buffers)) is not None:
        return wrong
    if not _differ(one, other, row, most):
        return None
    return _said(model, first_difference(one.recorder, other.recorder, row, most), how)


def _differ(one: Trial, other: Trial, row: int, most: float) -> bool:
    if gap(one.outputs[row], other.outputs[0]) > most:
        return True
    sizes = {name: _norm(each) for name, each in one.each[row].items()}
    largest = max(sizes.values())
    for name, mine in one.each[row].items():
        # What cancels to nothing, as the bias before a norm, is rounding beside the others.
        apart = _norm(mine - other.each[0][name])
        if apart > most * max(sizes[name], BESIDE * largest):
            return True
    return False


def _said(model: nn.Module, event: Any, how: str) -> str:
    if event is None or (event.module == "" and event.kind == "gradient"):
        where = "the loss, or the model itself"
    else:
        where = _named(model, event.module)
    what = "output" if event is None or event.kind == "output" else "gradient"
    return (
        f"Expected the model to keep examples apart in training mode; by {where} the {what} of a "
        f"made-up example changes {how}, so no one example's influence is bounded. Use what looks "
        "at each example by itself, such as nn.GroupNorm."
    )


def _named(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name)).__name__
    return f"{name!r}, a {kind}," if name else f"the model itself, a {kind},"


def _buffers(
    model: nn.Module, one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> str | None:
    for name, mine in one.items():
        theirs = other.get(name)
        if theirs is None or mine.shape != theirs.shape or gap(mine, theirs) > 0:
            owner, _, own = name.rpartition(".")
            return (
                f"Expected buffers that no example changes; {own!r} of {_named(model, owner)} does "
                "in training mode, and leaves with the weights without noise. Remove it, or hold "
                "it fixed."
            )
    return None


def _attributes(
    model: nn.Module, one: Trial, other: Trial, alone: Batch, tolerance: float, chance: Chance
) -> str | None:
    """Refuse what modules remember of examples beside buffers, where outputs come to depend on it.

    What is only kept to be looked at, such as a map of attention, does no harm.
    """
    kept, others = one.attributes, other.attributes
    differing = [at for at, value in kept.items() if not _alike(value, others.get(at))]
    if not differing:
        return None
    outputs = []
    for attributes in (kept, others):
        with state_kept(model), torch.no_grad(), FixedDraws(chance):
            set_attributes(model, attributes)
            outputs.append(model(alone.inputs))
    if gap(*outputs) <= tolerance:
        return None
    module, own = differing[0]
    return (
        f"Expected nothing that a model remembers to depend on examples; {own!r} of "
        f"{_named(model, module)} does in training mode, and later outputs on it. Remove it."
    )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and gap(one, other) == 0
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one is other or one == other or (one != one and other != other)
