"""Test a method's declaration against its releases.

For any `Method`, ours or a user's, on a given model and examples:

    sensitivity      one more example, adversarial ones included, changes the vector before the
                     noise by at most the declared sensitivity, in l2 or, for Laplace noise, l1;
                     beside few examples, many or none, with weights as they are and far from it;
                     the declaration is the same at every step, as noise is calibrated once
    structure        blocks, their order and shapes do not depend on the examples
    post-processing  given equal releases, other examples, many of them or none, or more
                     micro-batches of them, lead to bit-identical gradients, state, bases and
                     weights, and the next step on one fixed set gives the same sums: nothing
                     depends on the examples but the releases
    repetition       a new instance of the method takes the same step from a saved state

A pass is no proof: the neighbours are the worst that a search finds (`dpexp.attacks.sensitivity`)
in the first steps, and a few at later ones. A failure is a counterexample.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpexp.attacks.differences import first_difference
from dpexp.attacks.neighbours import (
    FAR,
    BeforeStep,
    adversarial,
    few_of,
    many,
    moved_by_examples,
    moved_when_tight,
    none,
)
from dpexp.attacks.noiseless import Bench, Injected, Made
from dpexp.attacks.sensitivity import Differs, Movement, Search, badness
from dpexp.privacy.seeds import generator
from dpexp.training.returned import NotAsDeclared
from dpexp.types import ConfigError, Key, State, counted, one_line

TOLERANCE = 1e-6
"""Relative tolerance of a change: the rounding that docs/privacy/rounding.md states."""

NUM, MORE = 4, 8
"""Examples besides the added one, and examples of another set (ours); powers of two, so that
dividing by them is exact."""

STEPS = 2
"""Number of steps searched at length, the second after an update of the weights (ours)."""

LATER = 12
"""Number of steps in all; at those after the first `STEPS` a few neighbours are tried (ours)."""

FEW = 3
"""Examples at once where a set is taken in several micro-batches (ours)."""

FAR_WEIGHTS = (2.0**-6, 2.0**6)
"""What trained weights are multiplied by (ours), as a method may change once they have grown, or
shrunk; powers of two."""

MOVES = "one example moves release"
"""How a finding of that kind begins; later steps and other draws are told of if none was before."""


@dataclass(frozen=True)
class Verdict:
    """The result of testing a method.

    Attributes:
        findings: violations, one sentence each; empty if there are none.
        worst: the largest change of a release by one example.
    """

    findings: tuple[str, ...]
    worst: Movement


def check(
    parts: Any,
    clip_norm: float,
    *,
    seed: int = 0,
    tries: int = 20,
    climbs: int = 50,
    steps: int = LATER,
) -> Verdict:
    """Test a method against its declaration.

    Args:
        parts: a run's (`dpexp.training.parts.Parts`); only the task's test and public sets are
            read.
        clip_norm: the run's.
        seed: of the neighbours.
        tries: examples that a climb tries from the worst one, >= 0.
        climbs: steps from each of the best synthetic sums, >= 0.
        steps: of the method's that are looked at, >= 2; the first two at length.

    Raises:
        ConfigError: for a method of another loop, or too few test examples.
    """
    test = parts.task.test
    if not hasattr(parts.method, "compress"):
        raise ConfigError(
            "Expected a method that releases sums of gradients; "
            f"{type(parts.method).__name__} has its own training loop. Set another method."
        )
    if len(test) < NUM + MORE:
        raise ConfigError(
            f"Expected {NUM + MORE} test examples or more; {parts.task.name} has {len(test)}. "
            "Set another task."
        )
    findings: dict[str, None] = {}
    try:
        worst = _check_sensitivity(parts, clip_norm, seed, tries, climbs, steps, findings)
        for look in (_check_draws, _check_weights):
            worst = max(worst, look(parts, clip_norm, findings), key=badness)
        _check_post_processing(parts, clip_norm, steps, findings)
        _check_repeated(parts, clip_norm, steps, findings)
    except (Differs, NotAsDeclared) as error:
        depends = "the structure of the releases depends on the examples: "
        findings[f"{depends if isinstance(error, Differs) else ''}{error}"] = None
        worst = Movement(float("nan"), "", str(error))
    return Verdict(tuple(findings), worst)


def _two_sets(examples: Any) -> tuple[Made, Made]:
    """Return `NUM` and `MORE` examples; texts are padded to the longest of all."""
    both = Made.of(examples, torch.arange(NUM + MORE))
    return both.take(torch.arange(NUM)), both.take(torch.arange(NUM, NUM + MORE))


def _check_sensitivity(
    parts: Any,
    clip_norm: float,
    seed: int,
    tries: int,
    climbs: int,
    steps: int,
    findings: dict[str, None],
) -> Movement:
    bench = Bench(parts, clip_norm)
    gen = generator(seed, "neighbours", 0)
    base, more = _two_sets(parts.task.test)
    state, worst = bench.start(), Movement(0.0, "", "none")
    declared = bench.releases(state)
    method = copy.deepcopy(parts.method)
    for step in range(steps):
        releases = bench.releases(state)
        if releases != declared:
            findings[
                f"the declared releases change by step {step + 1}, and noise is calibrated to "
                "those of the first; declare the largest of all steps at each"
            ] = None
            declared = releases  # told once a change
        # What a method keeps outside of its state may change it at a later step, too.
        at = BeforeStep(bench, method, state, step)
        outcome, seen = at.taken(method := copy.deepcopy(method), base)
        if seen.changes_sums:
            findings["compress changes the sums that it is given"] = None
        starts = list(adversarial(base, more, parts.task.num_classes))
        starts = starts if step < STEPS else few_of(starts)
        added = [moved_by_examples(at, base, starts, seen, tries if step < STEPS else 0, gen)]
        if step >= STEPS - 1:
            added.append(moved_when_tight(at, base, starts, gen))
        if step < STEPS or step == steps - 1:
            search = Search(
                partial(_compressed, method, seen.state),
                {key: tuple(total.shape) for key, total in seen.sums.items()},
                releases,
                next(iter(seen.sums.values())),
                gen,
            )
            added.append(search.worst(climbs if step < STEPS else 0))
        moved = max(added, key=badness)
        worst = max(worst, moved, key=badness)
        if step < STEPS or not any(each.startswith(MOVES) for each in findings):
            _tell(moved, f"step {step + 1}", findings)
        state = outcome.state
        bench.update(outcome)
    return worst


def _check_draws(parts: Any, clip_norm: float, findings: dict[str, None]) -> Movement:
    """Add an example to many, and to none."""
    bench, worst = Bench(parts, clip_norm), Movement(0.0, "", "none")
    base, more = _two_sets(parts.task.test)
    starts = few_of(adversarial(base, more, parts.task.num_classes))
    gen = generator(0, "neighbours", 1)
    for beside in (many(base, more), none(base)):
        at = BeforeStep(bench, parts.method, bench.start(), 0, micro_batch=len(beside) + 1)
        try:
            _, seen = at.taken(copy.deepcopy(at.method), beside)
        except NotAsDeclared:
            raise
        except Exception:  # anyone's method; without noise a release is zero, as it never is
            if len(beside):
                raise
            continue
        where = f"beside {counted(len(beside), 'other')}"
        moved = _moved_a_little(at, beside, starts, seen, gen, where, findings)
        worst = max(worst, moved, key=badness)
    return worst


def _check_weights(parts: Any, clip_norm: float, findings: dict[str, None]) -> Movement:
    """Add an example where training has brought the weights far from where they began."""
    worst = Movement(0.0, "", "none")
    base, more = _two_sets(parts.task.test)
    starts = few_of(adversarial(base, more, parts.task.num_classes))
    gen = generator(0, "neighbours", 2)
    for factor in FAR_WEIGHTS:
        bench = Bench(parts, clip_norm)
        at = BeforeStep(bench, parts.method, bench.start(), 0)
        bench.scale(factor)
        _, seen = at.taken(copy.deepcopy(at.method), base)
        where = f"with weights times {factor:g}"
        moved = _moved_a_little(at, base, starts, seen, gen, where, findings)
        worst = max(worst, moved, key=badness)
    return worst


def _moved_a_little(
    at: BeforeStep,
    beside: Made,
    starts: Any,
    seen: Any,
    gen: torch.Generator,
    where: str,
    findings: dict[str, None],
) -> Movement:
    """Add a few examples, and tell where no release was moved too far before."""
    moved = max(
        moved_by_examples(at, beside, starts, seen, 0, gen),
        moved_when_tight(at, beside, starts, gen),
        key=badness,
    )
    if not any(each.startswith(MOVES) for each in findings):
        _tell(moved, where, findings)
    return moved


def _tell(moved: Movement, where: str, findings: dict[str, None]) -> None:
    """Note that a release was moved by more than is declared."""
    if not moved.ratio <= 1 + TOLERANCE:
        findings[
            f"{MOVES} {moved.release} by {moved.ratio:.4g} of its "
            f"declared sensitivity ({moved.neighbours}; {where})"
        ] = None


def _compressed(method: Any, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
    """Compress with a copy of a method that has taken the step, and may keep something of it."""
    return copy.deepcopy(method).compress(state, sums)


def _check_post_processing(
    parts: Any, clip_norm: float, steps: int, findings: dict[str, None]
) -> None:
    """Inject equal releases for sets of examples that differ; compare the rest."""
    few, more = _two_sets(parts.task.test)
    spoilt, far = (Made(more.inputs.clone(), more.targets) for _ in range(2))
    if more.inputs.is_floating_point():
        spoilt.inputs[1].view(-1)[0] = float("nan")
        far.inputs[-1] *= FAR
    large = many(few, more)
    sets = [(spoilt, len(spoilt), steps, 1.0), (far, FEW, steps, 1.0)]
    sets += [(large, len(large), STEPS, 1.0)]
    sets += [(spoilt, len(spoilt), STEPS, factor) for factor in FAR_WEIGHTS]
    if _takes_none(parts, clip_norm, few, findings):
        sets.append((none(few), 1, STEPS, 1.0))
    for examples, micro_batch, taken, factor in sets:
        both = (
            _after_equal_releases(parts, clip_norm, *each, taken, factor)
            for each in ((few, few, NUM), (examples, few, micro_batch))
        )
        for (name, one), (_, two) in zip(*both, strict=True):
            where = first_difference(one, two)
            if where is not None:
                findings[
                    f"{name} depends on the examples beyond their releases "
                    f"(at {where or 'top level'})"
                ] = None
                return


def _takes_none(parts: Any, clip_norm: float, few: Made, findings: dict[str, None]) -> bool:
    """Return whether a method takes a step that draws no example."""
    what = "a step that draws no example fails"
    why = "a private run takes such steps, as a Poisson draw may be empty"
    with _failures_told(what, why, findings):
        for _ in _after_equal_releases(parts, clip_norm, none(few), few, 1, 0):
            pass
        return True
    return False


@contextmanager
def _failures_told(what: str, why: str, findings: dict[str, None]) -> Iterator[None]:
    """Make a finding of what anyone's method may raise, but for what is not as declared."""
    try:
        yield
    except NotAsDeclared:
        raise
    except Exception as error:
        findings[f"{what} ({type(error).__name__}: {one_line(error)}); {why}"] = None


def _after_equal_releases(
    parts: Any,
    clip_norm: float,
    examples: Made,
    fixed: Made,
    micro_batch: int,
    steps: int,
    factor: float = 1.0,
) -> Iterator[tuple[str, Any]]:
    """Yield by name what steps on these examples lead to, if they release the same as others.

    Args:
        parts: a run's.
        clip_norm: the run's.
        examples: of every step.
        fixed: examples whose sums are taken after each step.
        micro_batch: of `examples` at once.
        steps: one less than are taken.
        factor: what trained weights are multiplied by before the first.
    """
    bench = Bench(parts, clip_norm)
    # The step divides releases by the number of examples, of which an empty draw expects one.
    method = Injected(copy.deepcopy(parts.method), scale=max(1, len(examples)))
    state = bench.start()
    bench.scale(factor)
    for step in range(steps + 1):
        outcome, seen = bench.step(method, state, examples, step, micro_batch=micro_batch)
        state = outcome.state
        yield from (("the prepared state", seen.given), ("the gradient", outcome.gradients))
        yield "the state", state
        bench.update(replace(outcome, gradients=dict(outcome.gradients)))
        # Attributes of a method outside its state must not affect per-example gradients.
        _, after = bench.step(copy.deepcopy(method), state, fixed, step + 1)
        yield "the next step's sum", after.sums
    yield "the model", dict(bench.model.state_dict())


def _check_repeated(parts: Any, clip_norm: float, steps: int, findings: dict[str, None]) -> None:
    """Repeat steps from their state with a new instance, as a run that goes on does."""
    bench, method = Bench(parts, clip_norm), copy.deepcopy(parts.method)
    examples, _ = _two_sets(parts.task.test)
    outcome, _ = bench.step(method, bench.start(), examples, 0)
    for name, gradient in outcome.gradients.items():
        if not gradient.isfinite().all():
            findings[f"the gradient of {name} is not finite at the first step"] = None
    for step in range(1, steps):
        state = copy.deepcopy(outcome.state)
        bench.update(outcome)
        taken = [bench.step(method, copy.deepcopy(state), examples, step)]
        keep = "keep in the state what lasts from step to step"
        with _failures_told("a step fails where a run goes on", keep, findings):
            taken.append(bench.step(copy.deepcopy(parts.method), state, examples, step))
        if len(taken) < 2:
            return
        one, other = (
            {
                "sum": saw.sums,
                "release": saw.released,
                "gradient": out.gradients,
                "state": out.state,
            }
            for out, saw in taken
        )
        where = first_difference(one, other)
        if where is not None:
            findings[
                f"a step depends on more than the state, so that a run cannot go on exactly (at "
                f"{where}); {keep}"
            ] = None
            return
        outcome = taken[0][0]
