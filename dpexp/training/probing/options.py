"""Check, before the first step, that an augmentation and a clipping rule keep examples apart.

What mixes examples, as mixup and CutMix do, or a clip norm taken from the batch, lets one example
move its neighbours' gradients, too. Each of them is clipped, but together they move by more than
one clip norm.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data.augmentation import FEWER, Augmentation
from dpexp.distributed import memory
from dpexp.privacy.clipping import Clipping
from dpexp.privacy.seeds import generator
from dpexp.training.probing.check import CLEAR, MADE
from dpexp.training.probing.made_up import make_up
from dpexp.training.probing.recorder import gap
from dpexp.training.probing.stage import chance_kept, staged
from dpexp.types import Batch, ConfigError, first_weight

FINE = 1e-6
"""Relative tolerance of weights: a number by itself may be rounded otherwise than among others."""

BOUNDS = (1.0, 1e-3)
CROWDS = (*((centre, 1.0) for centre in (0.01, 0.1, 1.0, 10.0, 100.0)), (1.0, 6.0))
"""Bounds that norms are made up for; where these lie, in bounds, and how many decades either way
they reach (ours): what follows the batch may show only where most norms are small, or most large.
Infinity by itself comes last: a rule that remembers may see nothing after it."""


@torch.no_grad()
@memory.in_one_line("the views of made-up examples", FEWER)
def check_views(
    augmentation: Augmentation, task: Any, model: nn.Module, device: torch.device
) -> None:
    """Compare the views of made-up examples in a crowd with those of each by itself.

    Args:
        augmentation: of the run.
        task: for its examples' shape; no example is read.
        model: on its device; its precision and table of tokens say what examples may be.
        device: the model's.

    Raises:
        ConfigError: if the views of an example depend on another one, or on random numbers besides
            those that they are given, if they are not so many as declared, an example's one after
            another, or if they do not fit in memory.
    """
    dtype = first_weight(model).dtype
    try:
        with staged(model, dtype, device, draw=MADE):
            crowd = make_up(task, model, device, dtype).crowd
    except Exception:  # a model may reject synthetic inputs in any way; `check_model` says so
        return
    count, name, views = len(crowd), type(augmentation).__name__, augmentation.multiplicity
    draws = augmentation.draws(count, generator(0, "made-up/views", 0))
    with chance_kept([device] if device.type == "cuda" else []):
        whole = _views(augmentation, crowd, draws)
        if (whole.views, len(whole.inputs), len(whole)) != (views, count * views, count * views):
            raise ConfigError(
                f"Expected {views} views of each of {count} examples, one after another, of "
                f"{name}; got {len(whole.inputs)} inputs and {len(whole)} targets, with "
                f"views={whole.views}. Correct its `views`."
            )
        for index in range(count):
            one = slice(index, index + 1)
            example = Batch(crowd.inputs[one], crowd.targets[one])
            alone = _views(augmentation, example, draws[one])
            rows = slice(index * views, (index + 1) * views)
            pairs = (whole.inputs[rows], alone.inputs), (whole.targets[rows], alone.targets)
            if not all(_are_alike(*pair) for pair in pairs):
                raise ConfigError(
                    f"Expected an augmentation that keeps examples apart; of {name} an example's "
                    "views change with the others in its batch, or with random numbers besides "
                    "`draws`. Make each view of its own example and draws."
                )


def _views(augmentation: Augmentation, batch: Batch, draws: Tensor) -> Batch:
    """Return the views of a copy, which an augmentation may write to."""
    return augmentation.views(Batch(batch.inputs.clone(), batch.targets.clone()), draws.clone())


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal but for rounding of the larger numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or (one.is_floating_point() and gap(one, other) <= CLEAR)


@torch.no_grad()
def check_rule(clipping: Clipping) -> None:
    """Compare a rule's weights of made-up norms with those of each norm by itself.

    Raises:
        ConfigError: if the weight of an example depends on another one, or on what the rule saw
            before, or if they are not one weight an example.
    """
    gen, name = generator(0, "made-up/norms", 0), type(clipping).__name__
    others: list[tuple[Tensor, float, Tensor]] = []
    for bound, (centre, decades) in product(BOUNDS, CROWDS):
        norms = bound * centre * _spread(decades, gen)
        whole = clipping.weights(norms.clone(), bound)
        if whole.shape != norms.shape:
            raise ConfigError(
                f"Expected a clipping rule that gives each of {len(norms)} examples a weight; "
                f"{name} gives numbers of shape {[*whole.shape]}. Correct its `weights`."
            )
        for some in (norms[:2], norms.flip(0), *norms[:-1, None]):
            due = whole.flip(0) if len(some) == len(norms) else whole[_places(norms, some)]
            _require_same(clipping, some, bound, due)
        others.append((norms[-1:], bound, whole[-1:]))
    for infinite, bound, due in others:
        _require_same(clipping, infinite, bound, due)


def _require_same(clipping: Clipping, some: Tensor, bound: float, due: Tensor) -> None:
    """Raise ConfigError if these norms' weights are others than they were in a crowd."""
    own = clipping.weights(some.clone(), bound)
    if not torch.allclose(own, due, rtol=FINE, atol=0.0, equal_nan=True):
        raise ConfigError(
            f"Expected a clipping rule that keeps examples apart; of {type(clipping).__name__} an "
            "example's weight changes with the others in its batch, or with those before. Make "
            "each weight of its own norm and the bound."
        )


def _spread(decades: float, gen: torch.Generator) -> Tensor:
    """Return positive numbers about 1 and a 0 in any order, some of them equal, and infinity."""
    drawn = torch.rand(24, generator=gen, dtype=torch.float64)
    drawn = 10.0 ** (decades * (2 * drawn - 1))
    numbers = torch.cat([drawn, drawn[:3], drawn.new_tensor([0.0, 1.0])])
    numbers = numbers[torch.randperm(len(numbers), generator=gen)]
    return torch.cat([numbers, drawn.new_tensor([torch.inf])])


def _places(norms: Tensor, some: Tensor) -> Tensor:
    """Return where norms stand among all, [m]; equal ones have equal weights."""
    return (norms == some[:, None]).int().argmax(1)
