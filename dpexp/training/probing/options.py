"""Check, before the first step, that loss, augmentation and clipping rule keep examples apart.

What mixes examples, as mixup and CutMix do, a mean over the batch, or a clip norm taken from it,
lets one example move its neighbours' gradients, too. Each of them is clipped, but together they
move by more than one clip norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data import LossFn
from dpexp.data.augmentation import FEWER, Augmentation
from dpexp.distributed import memory
from dpexp.imported import is_written_in
from dpexp.privacy.clipping import Clipping, held_weights
from dpexp.privacy.seeds import generator
from dpexp.training.probing.check import CLEAR, MADE
from dpexp.training.probing.draws import MIDDLE, FixedDraws
from dpexp.training.probing.made_up import make_up
from dpexp.training.probing.recorder import gap
from dpexp.training.probing.stage import chance_kept, staged
from dpexp.training.probing.trial import Subject
from dpexp.types import Batch, ConfigError, first_weight
from dpexp.warned import warn_caller

FINE = 1e-6
"""Relative tolerance of weights: a number by itself may be rounded otherwise than among others."""

CLOSE = 1e-5
"""Relative rounding of a weight in float32 (ours)."""

BOUNDS = (1.0, 1e-3)
CROWDS = (*((centre, 1.0) for centre in (0.01, 0.1, 1.0, 10.0, 100.0)), (1.0, 6.0))
"""Bounds that norms are made up for; where these lie, in bounds, and how many decades either way
they reach (ours): what follows the batch may show only where most norms are small, or most large.
Infinity by itself comes last: a rule that remembers may see nothing after it."""

ROWS, EVERY, ODD = 160, 8, 12
"""Rows of a made-up batch; how far those lie apart that a loss also takes alone, and those that do
not fit where most do (ours)."""

MOST = 2**24
"""Numbers of all views of a larger crowd (ours): 64 MB in float32."""

SCALES = (0.1, 1.0, 10.0)
"""Of made-up outputs (ours): for a loss all are unsure, or all are sure."""


def check_loss(task: Any, model: nn.Module, device: torch.device) -> None:
    """Compare a loss's gradients of made-up outputs in a crowd with those of each by itself.

    `check_model` sees few examples, which may all be of different classes: a loss that counts those
    of a class, or that drops all but the worst, would be the same for each of them. The suite's own
    losses are known to add up.

    Args:
        task: for its loss and its examples' shape; no example is read.
        model: on its device, in its mode; it says what outputs are like.
        device: the model's.

    Raises:
        ConfigError: if the loss is not one number, or no sum over examples.
    """
    loss, dtype = task.loss, first_weight(model).dtype
    if is_written_in(loss, "dpexp"):
        return
    try:
        with staged(model, dtype, device, draw=MADE):
            crowd = make_up(task, model, device, dtype).crowd
            seen = Subject(model, (), loss).outputs(crowd, MIDDLE)
    except Exception:  # a model may reject synthetic inputs in any way; `check_model` says so
        return
    name = getattr(loss, "__name__", type(loss).__name__)
    for batch in _of_outputs(seen, crowd.targets, task.num_classes):
        try:
            with chance_kept([device] if device.type == "cuda" else []), FixedDraws(MIDDLE):
                whole = _slopes(loss, batch, name)[::EVERY]
                alone = [
                    _slopes(
                        loss, Batch(batch.inputs[at : at + 1], batch.targets[at : at + 1]), name
                    )
                    for at in range(0, ROWS, EVERY)
                ]
        except ConfigError:
            raise
        except Exception:  # a loss may take probabilities alone, say; `check_model` says so
            continue
        if gap(whole, torch.cat(alone)) > CLEAR:
            raise ConfigError(
                f"Expected a loss that adds up over examples; what {name} has of a made-up one "
                "changes with the others in its batch. Take sums in place of means "
                "(reduction='sum'), and each example's term from its own output and target."
            )


def _of_outputs(seen: Tensor, targets: Tensor, num_classes: int) -> Iterator[Batch]:
    """Return outputs as inputs [ROWS, ...], and targets: of all kinds, two, one, and most that fit.

    Args:
        seen: outputs of a model, [n, ...].
        targets: of its examples, for their dtype, and how many numbers one has.
        num_classes: of the task.
    """
    gen = generator(0, "made-up/outputs", 0)
    shape, whole = (ROWS, *seen.shape[1:]), (ROWS, *targets.shape[1:])
    scaled = [scale * torch.randn(shape, generator=gen).to(seen) for scale in SCALES]
    for outputs in (seen[torch.arange(ROWS) % len(seen)], *scaled):
        rows = outputs.flatten(1)
        if targets.is_floating_point():
            drawn = torch.randn(whole, generator=gen).to(targets)
            two = (drawn > 0).to(targets)
            places = torch.arange(drawn[0].numel(), device=rows.device) % rows.shape[1]
            fitting = rows[:, places].view(whole).to(targets)
        else:
            drawn = torch.randint(num_classes, whole, generator=gen).to(targets)
            two, best = drawn % 2, rows.argmax(1).to(targets) % num_classes
            fitting = best.view(ROWS, *[1] * (drawn.ndim - 1)).repeat(1, *drawn.shape[1:])
        fitting[::ODD] = drawn[::ODD]
        same = drawn[:1].expand(whole)
        yield from (Batch(outputs, each) for each in (drawn, two, same, fitting))


@torch.enable_grad()
def _slopes(loss: LossFn, batch: Batch, name: str) -> Tensor:
    """Return a loss's gradients of outputs, [n, ...]."""
    outputs = batch.inputs.detach().clone().requires_grad_()
    total = loss(outputs, batch.targets.clone())
    if not torch.is_tensor(total):
        raise ConfigError(
            f"Expected a loss of one number as a tensor, the sum over a batch; {name} gives one of "
            f"type {type(total).__name__}. Return the sum itself, not its float or item()."
        )
    if total.numel() != 1:
        raise ConfigError(
            f"Expected a loss of one number, the sum over a batch; {name} gives numbers of shape "
            f"{[*total.shape]}. Sum them (reduction='sum')."
        )
    (slopes,) = torch.autograd.grad(total, outputs, allow_unused=True, materialize_grads=True)
    return slopes


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
    crowds = [
        crowd,
        *(() if is_written_in(type(augmentation), "dpexp") else _larger(crowd, task, augmentation)),
    ]
    for place, each in enumerate(crowds):
        _require_apart(augmentation, each, device, EVERY if place else 1)


def _larger(crowd: Batch, task: Any, augmentation: Augmentation) -> Iterator[Batch]:
    """Return the crowd over and over: with targets of all kinds, and with one target.

    In a few examples no class is large.
    """
    size = augmentation.multiplicity * max(1, crowd.inputs[0].numel())
    rows = min(ROWS, max(len(crowd), MOST // size))
    gen, shape = generator(0, "made-up/targets", 0), (rows, *crowd.targets.shape[1:])
    some = torch.arange(rows, device=crowd.inputs.device) % len(crowd)
    if crowd.targets.is_floating_point():
        drawn = torch.randn(shape, generator=gen)
    else:
        drawn = torch.randint(task.num_classes, shape, generator=gen)
    drawn = drawn.to(crowd.targets)
    yield from (Batch(crowd.inputs[some], each) for each in (drawn, drawn[:1].expand(shape)))


def _require_apart(
    augmentation: Augmentation, crowd: Batch, device: torch.device, every: int
) -> None:
    """Raise ConfigError if views of a crowd are others than of its examples, of every so many."""
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
        for index in range(0, count, every):
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

    Weights that the sum would not take as they are, are warned of.

    Raises:
        ConfigError: if the weight of an example depends on another one, or on what the rule saw
            before, or if they are not one weight an example.
    """
    gen, name = generator(0, "made-up/norms", 0), type(clipping).__name__
    others: list[tuple[Tensor, float, Tensor]] = []
    taken: list[str] = []
    for bound, (centre, decades) in product(BOUNDS, CROWDS):
        norms = bound * centre * _spread(decades, gen)
        whole = clipping.weights(norms.clone(), bound)
        if not torch.is_tensor(whole) or whole.shape != norms.shape:
            is_tensor = torch.is_tensor(whole)
            given = f"shape {[*whole.shape]}" if is_tensor else f"type {type(whole).__name__}"
            raise ConfigError(
                f"Expected a clipping rule that gives each of {len(norms)} examples a weight; "
                f"{name} gives numbers of {given}. Correct its `weights`."
            )
        for some in (norms[:2], norms.flip(0), *norms[:-1, None]):
            due = whole.flip(0) if len(some) == len(norms) else whole[_places(norms, some)]
            _require_same(clipping, some, bound, due)
        others.append((norms[-1:], bound, whole[-1:]))
        held = held_weights(whole, norms, bound)
        differs = (
            ~torch.isclose(whole.double(), held.double(), CLOSE, 0) & norms.isfinite() & (norms > 0)
        )
        rows = torch.stack([norms.double(), whole.double(), held.double()], 1)[differs].tolist()
        taken += [
            f"norm {norm:.3g} the weight {weight:.3g} under a clip norm of {bound:g}; it is taken "
            f"as {own:.3g}"
            for norm, weight, own in rows
        ]
    if taken:
        warn_caller(
            f"The clipping rule {name} gives an example of {taken[0]}, as no example may exceed "
            "its clip norm and NaN counts as 0. Correct its `weights` if that is not meant."
        )
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
