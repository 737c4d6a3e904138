"""Check a model's privacy assumptions on synthetic examples, before the first step.

There are two checks. First, the tape's gradients must add up to autograd's. They do not if a weight
is used a second time outside its layer, or if a hook changes an output. Second, an example's output
and gradient must not depend on other examples in the batch, and buffers must not depend on any
example. A module that normalises over the batch or keeps a running mean would let an example
influence more than its own clipped gradient.

Differences beyond rounding in the model's own precision are decided in float64, where rounding is a
thousand times smaller than the tolerance. A dependence on size or padding that is below rounding
with the weights that a run starts from may grow in training: a second trial has larger weights.
A gradient that is zero, as before units that are off, shows nothing: other weights are tried.
Where a model's own casts leave no way to float64, and it calculates in half precision, a dependence
below a hundredth is hidden by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.distributed.memory import release_pages
from dpexp.grad_sample import Try, settle
from dpexp.grad_sample.reading import run_again
from dpexp.grad_sample.rules import has_foreign_rule
from dpexp.grad_sample.shared_inputs import trial
from dpexp.privacy.certificate import UNTRIED
from dpexp.training.probing import known, summed, verdict
from dpexp.training.probing.draws import EDGES, MIDDLE, OTHERS, Chance, FixedDraws
from dpexp.training.probing.made_up import FIRST, SECOND, MadeUp, make_up
from dpexp.training.probing.recorder import gap
from dpexp.training.probing.stage import LOUD, restored_before_each, staged
from dpexp.training.probing.trial import Subject, Trial
from dpexp.types import Batch, ConfigError, first_weight, one_line
from dpexp.warned import warn_caller

CLEAR = 1e-5
"""Tolerance in the model's own precision; larger differences are checked in float64 (ours)."""

SHARP = 1e-9
"""Tolerance in float64: sums of 10^5 products have a relative rounding error of 10^-11."""

COARSE = 1e-2
"""Tolerance if float64 is not possible; batch statistics change an example by much more."""

ALOUD = {torch.double: SHARP, torch.float: 1e-4}
"""Tolerance for larger weights, by precision: those of float32 may amplify its rounding (ours)."""

DRAWS = {0: 0, SHARP: 1, COARSE: 2}
MADE, LOUDER = 3, 4
"""Which draw of shifts each stage takes, so that none is taken twice: a trial's by its tolerance,
that in which examples are made, and those with larger weights."""

AGAIN = 6
"""Draws of weights with which gradients are compared that were zero in all trials (ours): six
rectified units are all off in one draw of 64, and a parameter that nothing uses has none ever."""

SIZES = (7, 5, 3, 2)
"""Of batches by which it is told what holds examples (ours): what is the same for all has a length
that is a multiple of one of these, but seldom of all."""

MANY = "with how many are in its batch"


def check_model(
    model: nn.Module,
    parameters: Sequence[str],
    task: Any,
    device: torch.device,
    *,
    is_forward_only: bool = False,
) -> str | None:
    """Check a model on synthetic examples; the model and random states are not changed.

    Args:
        model: on its device.
        parameters: names of those that a method trains.
        task: for its loss and its examples' shape; no example is read.
        device: the model's.
        is_forward_only: whether the method takes losses alone, so that it may also move what no
            gradient reaches.

    Returns:
        A deviation for the certificate if the model cannot be checked; otherwise None.

    Raises:
        ConfigError: naming a layer whose gradient differs from the tape's, or a module that mixes
            examples.
    """
    told: list[str] = []
    try:
        unchecked = _checked(model, parameters, task, device, told, is_forward_only)
    except Exception as error:  # a model may reject synthetic inputs in any way
        if run_again(model):  # what reads its parameters itself may bear to be run again
            return check_model(model, parameters, task, device, is_forward_only=is_forward_only)
        if isinstance(error, ConfigError):
            raise
        words = f"{type(error).__name__}: {one_line(error)[:150]}"
        told, unchecked = [f"{UNTRIED.capitalize()} ({words})."], UNTRIED
    for line in told:
        warn_caller(line)
    return unchecked


def _checked(
    model: nn.Module,
    parameters: Sequence[str],
    task: Any,
    device: torch.device,
    told: list[str],
    is_forward_only: bool,
) -> str | None:
    """Check a model as it is hooked now, and add what is to be told; see `check_model`."""
    own = first_weight(model).dtype
    with staged(model, own, device, draw=MADE):
        examples = make_up(task, model, device, own)
    key = known.key_of(model, parameters, task, examples, device)
    if known.is_known(key, model):
        return None
    subject = Subject(model, parameters, task.loss)
    wrong = _tried(subject, examples, device, own, SHARP if own == torch.double else 0)
    if wrong is not None and own != torch.double:
        wrong = _decided(subject, examples, device, own)
    release_pages()
    if wrong is None:
        wrong, is_hidden = _aloud(subject, examples, device, own)
        if wrong is None and is_hidden:
            why = "its casts allow no float64, and half precision hides a hundredth"
            told.append(f"{UNTRIED.capitalize()} ({why}).")
            return UNTRIED
    if wrong is not None:
        raise ConfigError(wrong)
    if not subject.unused:  # else a later run tells it again
        known.remember(key, model)
    elif not is_forward_only:
        told.append(verdict.unused(sorted(subject.unused)))
    return None


def _decided(
    subject: Subject, examples: MadeUp, device: torch.device, own: torch.dtype
) -> str | None:
    """Return the finding in float64, or with a coarse tolerance if float64 is not possible."""
    try:
        return _tried(subject, examples, device, torch.double, SHARP)
    except ConfigError:
        raise
    except Exception:  # a model may require its own precision
        return _tried(subject, examples, device, own, COARSE)


def _tried(
    subject: Subject, examples: MadeUp, device: torch.device, dtype: torch.dtype, tolerance: float
) -> str | None:
    """Return what is wrong beyond a tolerance; 0 allows for rounding, and requires equality."""
    model, examples = subject.model, examples.to(dtype)
    with staged(model, dtype, device, draw=DRAWS[tolerance]), torch.enable_grad(), trial():
        subject.note_values()
        with restored_before_each(model) as restore:
            batches = [*examples.of_sizes(SIZES), examples.crowd]  # where rows are chosen, all
            tries = [_try(subject, batch, restore) for batch in batches]
            settle(model, subject.parameters, tries)
        wrong, draws = _compared(subject, examples, tolerance, MIDDLE)
        chances = [*(EDGES if draws.has_drawn else ()), *OTHERS[: draws.choices]]
        for chance in chances:
            with suppress(ConfigError):  # a layer that is skipped at random; a step reports it
                wrong = wrong or _compared(subject, examples, tolerance, chance)[0]
        return wrong


def _aloud(
    subject: Subject, examples: MadeUp, device: torch.device, own: torch.dtype
) -> tuple[str | None, bool]:
    """Return what is wrong with larger weights, in float64 where a model calculates in it.

    And whether half precision may hide what is wrong, as float64 is not possible.

    Batches of one shape are compared to the last bit before, but others only as closely as rounding
    in the model's own precision allows: a dependence may be less than that until weights grow.
    """
    for place, dtype in enumerate(dict.fromkeys([torch.double, own])):
        if dtype in ALOUD:
            with suppress(Exception):  # it may require its own precision, or other weights
                heard = _heard(subject, examples.to(dtype), device, dtype, LOUDER + place, own)
                if heard is None:
                    continue
                wrong, most = heard
                wrong = wrong or _silent(subject, examples.to(dtype), device, dtype, most)
                return wrong, most == COARSE and dtype != torch.double
    return None, False


def _silent(
    subject: Subject, examples: MadeUp, device: torch.device, dtype: torch.dtype, most: float
) -> str | None:
    """Return what is wrong in gradients that were zero until now, with other weights each time."""
    for draw in range(AGAIN):
        if not subject.silent:
            break
        with (
            staged(
                subject.model, dtype, device, LOUD, subject.parameters, LOUDER + len(ALOUD) + draw
            ),
            torch.enable_grad(),
            trial(),
        ):
            subject.note_values()
            one = subject.trial(examples.one, MIDDLE, is_whole=True, is_recorded=False)
            if wrong := summed.compare(subject, examples.one, one, MIDDLE, most):
                return wrong
    return None


def _heard(
    subject: Subject,
    examples: MadeUp,
    device: torch.device,
    dtype: torch.dtype,
    draw: int,
    own: torch.dtype,
) -> tuple[str | None, float] | None:
    """Return what is wrong with larger weights, and the tolerance that its precision allows.

    None where a model's casts take float64 beyond the range of what they cast to, as the least
    number of float64, with which attention leaves padding out, is -∞ in float32.

    The crowd's outputs are compared with those of its parts: what has the highest of all ranks has
    a lower one in its part, and short examples need less padding.
    """
    model, silent = subject.model, {*subject.silent}
    with (
        staged(model, dtype, device, LOUD, subject.parameters, draw),
        torch.enable_grad(),
        trial(),
    ):
        subject.note_values()
        one = subject.trial(examples.one, MIDDLE, (1,), is_whole=True, is_recorded=False)
        draws = one.draws
        most = _loudest(draws, dtype)
        if draws.is_narrowed and dtype != own and not one.is_finite():
            subject.silent = silent
            return None
        if draws.is_opaque:
            return None, most
        if wrong := summed.compare(subject, examples.one, one, MIDDLE, most):
            return wrong, most
        alone = subject.trial(examples.alone, MIDDLE, (0,), is_recorded=False)
        if verdict.are_apart(one, alone, 1, most):
            beside, single = (subject.trial(b, MIDDLE) for b in (examples.one, examples.alone))
            return verdict.explain(model, beside, single, 1, most, MANY), most
        crowd = subject.outputs(examples.crowd, MIDDLE)
        differing = [
            row
            for rows, part in examples.parts
            for row, outputs in zip(rows, subject.outputs(part, MIDDLE), strict=True)
            if gap(crowd[row], outputs) > most
        ]
        return _explained(subject, examples, differing, most, MIDDLE), most


def _loudest(draws: FixedDraws, dtype: torch.dtype) -> float:
    """Return the tolerance with larger weights of what a model calculates in."""
    if draws.is_halved:
        return COARSE
    return ALOUD[torch.float if draws.is_narrowed else dtype]


def _try(subject: Subject, batch: Batch, restore: Callable[[], None]) -> Try:
    def loss() -> Tensor:
        restore()  # what the first batch would set, as some norms do, is to be seen by every trial
        return subject.loss(subject.model(batch.inputs), batch.targets)

    return Try(loss, len(batch))


def _compared(
    subject: Subject, examples: MadeUp, tolerance: float, chance: Chance
) -> tuple[str | None, FixedDraws]:
    """Return what is wrong for given random draws, and which draws the model made."""
    model, most = subject.model, tolerance or CLEAR
    one = subject.trial(examples.one, chance, (0, 1), is_whole=True)
    other = subject.trial(examples.other, chance, (0,))
    alone = subject.trial(examples.alone, chance, (0,))
    rows = {FIRST, SECOND}
    if chance == MIDDLE and any(map(has_foreign_rule, model.modules())):
        rows |= {*examples.singles}  # no rule of ours tells rows apart, a user's may
    crowd = subject.trial(examples.crowd, chance, rows, is_recorded=False)
    wrong = (
        verdict.moved(model, [one, other, alone, crowd])
        or summed.compare(subject, examples.one, one, chance, most)
        or verdict.mixing(model, one, other, 0, tolerance, "with the others in its batch")
        or verdict.mixing(model, one, alone, 1, most, MANY)
        or verdict.buffers(model, one, crowd)
        or _crowded(subject, examples, crowd, one, alone, most, chance)
        or _turned(subject, examples, one, alone, most, chance)
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
    """Compare examples' results in a batch of nine with their results alone.

    However a module orders examples, not all nine can have the position of a single one.
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
    if wrong := _of_a_rule(subject, examples, crowd, most, chance):
        return wrong
    if verdict.differ(alone.each[0], crowd.each[FIRST], most):
        differing.append(FIRST)
    if verdict.differ(one.each[0], crowd.each[SECOND], most):
        differing.append(SECOND)
    return _explained(subject, examples, differing, most, chance)


def _of_a_rule(
    subject: Subject, examples: MadeUp, crowd: Trial, most: float, chance: Chance
) -> str | None:
    """Return what is wrong if a user's rule gives an example another gradient beside more of them.

    A difference is weighed by the largest gradient of the crowd: where one cancels, as that of an
    example which the model is sure of, all of it is rounding. What is not finite in one alone is
    another.
    """
    if len(crowd.each) <= len((FIRST, SECOND)):  # no such rule; see `_compared`
        return None
    foreign = {
        name: type(layer).__name__
        for name in crowd.each[FIRST]
        if has_foreign_rule(layer := subject.model.get_submodule(name.rpartition(".")[0]))
    }
    sizes = {n: [verdict.size_of(each[n]) for each in crowd.each.values()] for n in foreign}
    largest = {n: max(filter(math.isfinite, each), default=0.0) for n, each in sizes.items()}
    shorter = [at for at in crowd.each if at < len(examples.crowd) - 1]
    part = Batch(examples.crowd.inputs[:-1], examples.crowd.targets[:-1])  # of the other parity
    fewer = subject.trial(part, chance, shorter, is_recorded=False).each
    for at, among in [*crowd.each.items(), *fewer.items()]:
        batch = examples.alone if at == FIRST else examples.singles[at]
        single = subject.trial(batch, chance, (0,), is_recorded=False).each[0]
        for name, kind in foreign.items():
            apart = verdict.size_of(single[name] - among[name])
            own, others = (bool(each[name].isfinite().all()) for each in (single, among))
            if own != others or (math.isfinite(apart) and apart > most * largest[name]):
                return (
                    f"Expected the rule for {kind} to give every example its own gradient; what "
                    f"{name!r} has of a made-up example changes with how many are in its batch, so "
                    "no one example's influence is bounded. Correct the rule."
                )
    return None


def _turned(
    subject: Subject,
    examples: MadeUp,
    one: Trial,
    alone: Trial,
    most: float,
    chance: Chance,
) -> str | None:
    """Compare the first two examples' gradients in the crowd in its other order.

    What sorts a batch before a layer, and puts its outputs back, gives a row another's gradient. It
    is tried for one chance alone: how a batch is sorted hangs on examples.
    """
    if chance != MIDDLE:
        return None
    last = len(examples.turned) - 1
    rows = (last - FIRST, last - SECOND)
    turned = subject.trial(examples.turned, chance, rows, is_recorded=False)
    if turned.draws.is_opaque:
        return None  # dropout of another shape
    pairs = ((FIRST, alone.each[0]), (SECOND, one.each[0]))
    differing = [at for at, each in pairs if verdict.differ(each, turned.each[last - at], most)]
    return _explained(subject, examples, differing, most, chance, is_turned=True)


def _explained(
    subject: Subject,
    examples: MadeUp,
    differing: Sequence[int],
    most: float,
    chance: Chance,
    *,
    is_turned: bool = False,
) -> str | None:
    """Return an error that names the module at which an example of the crowd differs."""
    if not differing:
        return None
    at = differing[0]
    single = examples.alone if at == FIRST else examples.singles[at]
    batch = examples.turned if is_turned else examples.crowd
    among, alone = (subject.trial(each, chance) for each in (batch, single))
    row = len(batch) - 1 - at if is_turned else at
    return verdict.explain(subject.model, among, alone, row, most, MANY)
