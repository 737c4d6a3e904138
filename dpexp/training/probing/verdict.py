"""Findings about models that do not keep examples apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.models.mode import in_mode
from dpexp.training.probing.draws import Chance, FixedDraws
from dpexp.training.probing.recorder import first_difference, gap
from dpexp.training.probing.stage import set_attributes, state_kept
from dpexp.training.probing.trial import Trial
from dpexp.types import Batch

BESIDE = 0.1
"""A gradient's difference is relative to its own size or this share of the largest one's (ours)."""


def mixing(
    model: nn.Module, one: Trial, other: Trial, row: int, most: float, how: str
) -> str | None:
    """Compare an example's results, and the buffers, between two batches.

    Args:
        model: of both trials.
        one: a trial.
        other: another trial, in which the example is the first.
        row: the example in the first trial.
        most: the relative difference allowed.
        how: what differs between the batches, in words.
    """
    if one.draws.is_opaque and len(one.outputs) != len(other.outputs):
        return None  # dropout of another shape
    if (wrong := buffers(model, one, other)) is not None:
        return wrong
    if are_apart(one, other, row, most):
        return explain(model, one, other, row, most, how)
    return None


def are_apart(one: Trial, other: Trial, row: int, most: float) -> bool:
    """Return whether an example's output or gradients differ; see `mixing`."""
    return gap(one.outputs[row], other.outputs[0]) > most or differ(
        one.each[row], other.each[0], most
    )


def differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor], most: float) -> bool:
    """Return whether an example's gradients differ by more than a fraction."""
    sizes = {name: size_of(each) for name, each in one.items()}
    largest = max(filter(math.isfinite, sizes.values()), default=0.0)
    for name, mine in one.items():
        apart = size_of(mine - other[name])
        if not math.isfinite(apart):
            if gap(mine, other[name]) > most:
                return True
        # A gradient that cancels to zero, as of a bias before a norm, is only rounding.
        elif apart > most * max(sizes[name], BESIDE * largest):
            return True
    return False


def size_of(tensor: Tensor) -> float:
    """Return the norm."""
    return float(torch.linalg.vector_norm(tensor))


def explain(model: nn.Module, one: Trial, other: Trial, row: int, most: float, how: str) -> str:
    """Return an error that names the module at which an example differs; see `mixing`."""
    event = first_difference(one.recorder, other.recorder, row, most)
    if event is None or (event.module == "" and event.kind == "gradient"):
        where = "the loss, or the model itself,"
    else:
        where = _named(model, event.module)
    what = "output" if event is None or event.kind == "output" else "gradient"
    if event and event.kind == "output" and gap(one.outputs[row], other.outputs[0]) <= most:
        return (
            f"Expected the model to keep examples apart in training; by {where} the rows of a "
            f"made-up example change {how}, though its output does not, as where a batch is sorted "
            "or two stand one after the other: which gradient is whose is not known. Put an "
            "example's rows side by side (torch.stack([a, b], 1).flatten(0, 1) in place of "
            "torch.cat([a, b])), or call the layer on each."
        )
    cure = "Use what looks at each example by itself, such as nn.GroupNorm."
    if one.draws.is_beside_torch:
        cure = (
            "It may be a draw from Python's or NumPy's generator, of which each example takes the "
            f"next number: draw with torch, as torch.rand_like. Else use{cure[3:]}"
        )
    return (
        f"Expected the model to keep examples apart in training; by {where} the {what} of a "
        f"made-up example changes {how}, so no one example's influence is bounded. {cure}"
    )


def _named(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name)).__name__
    return f"{name!r}, a {kind}," if name else f"the model itself, a {kind},"


def moved(model: nn.Module, trials: Sequence[Trial]) -> str | None:
    """Return an error if the forward pass changed a parameter, trained or frozen."""
    for name in filter(None, (trial.moved for trial in trials)):
        owner, _, own = name.rpartition(".")
        return (
            f"Expected a forward pass that leaves every parameter as it is; {own!r} of "
            f"{_named(model, owner)} is moved in training, and what it takes up leaves with "
            "the weights without noise. Remove it, or hold it fixed."
        )
    return None


def buffers(model: nn.Module, one: Trial, other: Trial) -> str | None:
    """Return an error if buffers depend on examples."""
    for name, mine in one.buffers.items():
        theirs = other.buffers.get(name)
        if theirs is None or mine.shape != theirs.shape or gap(mine, theirs) > 0:
            owner, _, own = name.rpartition(".")
            return (
                f"Expected buffers that no example changes; {own!r} of {_named(model, owner)} does "
                "in training, and leaves with the weights without noise. Remove it, or hold "
                "it fixed."
            )
    return None


def attributes(
    model: nn.Module, one: Trial, other: Trial, alone: Batch, tolerance: float, chance: Chance
) -> str | None:
    """Return an error if later outputs depend on attributes that modules keep from examples.

    Outputs in training and in eval mode are compared. Attributes that are only kept for inspection,
    such as attention maps, do no harm.
    """
    kept, others = one.attributes, other.attributes
    differing = [at for at, value in kept.items() if not _alike(value, others.get(at))]
    if not differing:
        return None
    for is_training in (True, False):
        outputs = []
        with suppress(Exception):  # attributes kept from more examples may not fit one
            for some in (kept, others):
                with (
                    state_kept(model),
                    in_mode(model, is_training=is_training),
                    torch.no_grad(),
                    FixedDraws(chance),
                ):
                    set_attributes(model, some)
                    outputs.append(model(alone.inputs))
            if gap(*outputs) > tolerance:
                module, own = differing[0]
                return (
                    f"Expected nothing that a model remembers to depend on examples; {own!r} of "
                    f"{_named(model, module)} does in training, and later outputs on it. "
                    "Remove it."
                )
    return None


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and gap(one, other) == 0
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one is other or one == other or (one != one and other != other)


def unused(names: Sequence[str]) -> str:
    """Return a warning of parameters that no gradient of the loss reaches.

    Args:
        names: of the parameters, one or more.
    """
    has, it = ("has", "it") if len(names) == 1 else ("have", "them")
    return (
        f"{', '.join(names)} {has} no gradient in the loss of made-up examples, so that nothing "
        f"but noise, where there is some, moves {it}. Freeze what the model does not use."
    )
