"""Test a method's declaration against its releases.

For any `Method`, ours or a user's, on a given model and examples:

    sensitivity      one more example, adversarial ones included, changes the vector before the
                     noise by at most the declared sensitivity, in l2 or, for Laplace noise, l1;
                     the declaration is the same at every step, as noise is calibrated once
    structure        blocks, their order and shapes do not depend on the examples
    post-processing  given equal releases, other examples, or more micro-batches of them, lead to
                     bit-identical gradients, state, bases and weights, and the next step on one
                     fixed set gives the same sums: nothing depends on the examples but the releases
    repetition       a new instance of the method takes the same step from a saved state

A pass is no proof: the neighbours are the worst that a search finds (`dpexp.attacks.sensitivity`),
in the first steps only. A failure is a counterexample.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpexp.attacks.differences import first_difference
from dpexp.attacks.noiseless import Bench, Injected, Made, Watching
from dpexp.attacks.sensitivity import Differs, Movement, Search, badness, movement
from dpexp.privacy.seeds import generator
from dpexp.training.returned import NotAsDeclared
from dpexp.types import ConfigError, Key, State

TOLERANCE = 1e-6
"""Relative tolerance of a change: the rounding that docs/privacy/rounding.md states."""

NUM, MORE = 4, 8
"""Examples besides the added one, and examples of another set (ours); powers of two, so that
dividing by them is exact."""

STEPS = 2
"""Number of steps tested, the second after an update of the weights (ours)."""

FAR = 1e4
"""What an example is multiplied by that has far larger gradients than others (ours)."""

FEW = 3
"""Examples at once where a set is taken in several micro-batches (ours)."""

TIGHT = 1e-3
"""Clip norm, in the run's, at which examples are added once more (ours). Where it is so large that
it clips hardly anyone, what an example's norm leaves out would not show."""


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
    parts: Any, clip_norm: float, *, seed: int = 0, tries: int = 20, climbs: int = 50
) -> Verdict:
    """Test a method against its declaration.

    Args:
        parts: a run's (`dpexp.training.parts.Parts`); only the task's test and public sets are
            read.
        clip_norm: the run's.
        seed: of the neighbours.
        tries: examples that a climb tries from the worst one, >= 0.
        climbs: steps from each of the best synthetic sums, >= 0.

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
        worst = _check_sensitivity(parts, clip_norm, seed, tries, climbs, findings)
        _check_post_processing(parts, clip_norm, findings)
        _check_repeated(parts, clip_norm, findings)
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
    parts: Any, clip_norm: float, seed: int, tries: int, climbs: int, findings: dict[str, None]
) -> Movement:
    bench = Bench(parts, clip_norm)
    gen = generator(seed, "neighbours", 0)
    base, more = _two_sets(parts.task.test)
    state, worst = bench.start(), Movement(0.0, "", "none")
    declared = bench.releases(state)
    for step in range(STEPS):
        releases = bench.releases(state)
        if releases != declared:
            findings[
                f"the declared releases change by step {step + 1}, and noise is calibrated to "
                "those of the first; declare the largest of all steps at each"
            ] = None
        outcome, seen = bench.step(copy.deepcopy(parts.method), state, base, step)
        if seen.changes_sums:
            findings["compress changes the sums that it is given"] = None
        added = [_moved_by_examples(bench, parts, state, step, base, more, seen, tries, gen)]
        if step == STEPS - 1:
            _, tight = bench.step(copy.deepcopy(parts.method), state, base, step, TIGHT)
            added.append(
                _moved_by_examples(bench, parts, state, step, base, more, tight, 0, gen, TIGHT)
            )
        search = Search(
            partial(_compressed, parts.method, seen.state),
            {key: tuple(total.shape) for key, total in seen.sums.items()},
            releases,
            next(iter(seen.sums.values())),
            gen,
        )
        moved = max(*added, search.worst(climbs), key=badness)
        worst = max(worst, moved, key=badness)
        if not moved.ratio <= 1 + TOLERANCE:
            findings[
                f"one example moves release {moved.release} by {moved.ratio:.4g} of its "
                f"declared sensitivity ({moved.neighbours}; step {step + 1})"
            ] = None
        state = outcome.state
        bench.update(outcome)
    return worst


def _moved_by_examples(
    bench: Bench,
    parts: Any,
    state: State,
    step: int,
    base: Made,
    more: Made,
    seen: Watching,
    tries: int,
    gen: torch.Generator,
    share: float = 1.0,
) -> Movement:
    """Add adversarial examples one at a time, and climb from the one that changes most."""
    releases = bench.releases(state, share)
    at = "" if share == 1 else f", clipped at {share:g} of the clip norm"

    def moved(words: str, inputs: Tensor, target: Tensor) -> Movement:
        method = copy.deepcopy(parts.method)
        _, one_more = bench.step(method, state, base.with_one(inputs, target), step, share)
        return movement(seen.released, one_more.released, releases, words + at)

    starts = [
        (moved(words, inputs, target), inputs, target)
        for words, inputs, target in _adversarial(base, more, parts.task.num_classes)
    ]
    worst, inputs, target = max(starts, key=lambda start: badness(start[0]))
    for _ in range(tries if base.inputs.is_floating_point() else 0):
        far = 10 ** float(torch.empty(()).uniform_(-3, 1, generator=gen))
        drawn = torch.randn(inputs.shape, generator=gen, dtype=torch.float64).to(inputs)
        nearby = inputs + far * inputs.abs().mean() * drawn
        tried = moved(f"{worst.neighbours.removesuffix(', climbed')}, climbed", nearby, target)
        if tried.ratio > worst.ratio:
            worst, inputs = tried, nearby
    return worst


def _adversarial(base: Made, more: Made, num_classes: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield examples to add: ordinary, huge, tiny, cancelling, and not finite."""
    inputs, target, first = more.inputs[0], more.targets[0], base.targets[0]
    is_number = base.targets.is_floating_point()
    other = -1e6 * (1 + first.abs()) if is_number else (first + 1) % max(2, num_classes)
    yield "an example", inputs, target
    yield "the first example again", base.inputs[0], first
    yield "the first example with another target", base.inputs[0], other
    if is_number:
        yield "a target that is not a number", inputs, torch.full_like(target, float("nan"))
    if not inputs.is_floating_point():  # tokens
        yield "a text of one token", inputs[..., :1].expand_as(inputs), target
        return
    for factor in (-1.0, 0.0, 1e-8, 1e4, 1e8, 1e30):
        yield f"an example times {factor:g}", factor * inputs, target
        yield f"another target, times {factor:g}", factor * inputs, other
    for bad in ("nan", "inf"):
        spoilt = inputs.clone()
        spoilt.view(-1)[0] = float(bad)
        yield f"an example with {bad}", spoilt, target


def _compressed(method: Any, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
    """Compress with a copy of a method, which may keep something."""
    return copy.deepcopy(method).compress(state, sums)


def _check_post_processing(parts: Any, clip_norm: float, findings: dict[str, None]) -> None:
    """Inject equal releases for sets of examples that differ; compare the rest."""
    few, many = _two_sets(parts.task.test)
    spoilt, far = (Made(many.inputs.clone(), many.targets) for _ in range(2))
    if many.inputs.is_floating_point():
        spoilt.inputs[1].view(-1)[0] = float("nan")
        far.inputs[-1] *= FAR
    first = _after_equal_releases(parts, clip_norm, few, few, NUM)
    for examples, micro_batch in ((spoilt, len(spoilt)), (far, FEW)):
        other = _after_equal_releases(parts, clip_norm, examples, few, micro_batch)
        for (name, one), (_, two) in zip(first, other, strict=True):
            where = first_difference(one, two)
            if where is not None:
                findings[
                    f"{name} depends on the examples beyond their releases "
                    f"(at {where or 'top level'})"
                ] = None
                return


def _after_equal_releases(
    parts: Any, clip_norm: float, examples: Made, fixed: Made, micro_batch: int
) -> list[tuple[str, Any]]:
    """Return by name what steps on these examples lead to, if they release the same as others.

    Args:
        parts: a run's.
        clip_norm: the run's.
        examples: of every step.
        fixed: examples whose sums are taken after each step.
        micro_batch: of `examples` at once.
    """
    bench = Bench(parts, clip_norm)
    trace: list[tuple[str, Any]] = []
    # The step divides releases by the number of examples.
    method = Injected(copy.deepcopy(parts.method), scale=len(examples))
    state = bench.start()
    for step in range(STEPS + 1):
        outcome, seen = bench.step(method, state, examples, step, micro_batch=micro_batch)
        state = outcome.state
        trace += [("the prepared state", seen.given), ("the gradient", outcome.gradients)]
        trace += [("the state", state)]
        bench.update(replace(outcome, gradients=dict(outcome.gradients)))
        # Attributes of a method outside its state must not affect per-example gradients.
        _, after = bench.step(copy.deepcopy(method), state, fixed, step + 1)
        trace += [("the next step's sum", after.sums)]
    return [*trace, ("the model", dict(bench.model.state_dict()))]


def _check_repeated(parts: Any, clip_norm: float, findings: dict[str, None]) -> None:
    """Repeat the second step from its state with a new instance, as a run that goes on does."""
    bench, method = Bench(parts, clip_norm), copy.deepcopy(parts.method)
    examples, _ = _two_sets(parts.task.test)
    outcome, _ = bench.step(method, bench.start(), examples, 0)
    for name, gradient in outcome.gradients.items():
        if not gradient.isfinite().all():
            findings[f"the gradient of {name} is not finite at the first step"] = None
    state = copy.deepcopy(outcome.state)
    bench.update(outcome)
    steps = [
        bench.step(each, copy.deepcopy(state), examples, 1)
        for each in (method, copy.deepcopy(parts.method))
    ]
    one, other = (
        {"sum": seen.sums, "release": seen.released, "gradient": out.gradients, "state": out.state}
        for out, seen in steps
    )
    where = first_difference(one, other)
    if where is not None:
        findings[
            f"a step depends on more than the state, so that a run cannot go on exactly (at "
            f"{where}); keep in the state what lasts from step to step"
        ] = None
