"""Examples that are added to others to see how far one moves a method's releases."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpexp.attacks.noiseless import MICRO_BATCH, Bench, Made, Watching
from dpexp.attacks.sensitivity import Movement, badness, movement
from dpexp.training.outcome import StepOutcome
from dpexp.types import State

MANY = 128
"""Examples of a large draw (ours): more than a config's micro_batch has."""

FAR = 1e4
"""What an example is multiplied by that has far larger gradients than others (ours)."""

FAR_AND_WRONG = f"another target, times {FAR:g}"
"""What moves a sum most, of the kinds of examples that are added."""

TIGHT = 1e-3
"""Clip norm, in the run's, at which examples are added once more (ours). Where it is so large that
it clips hardly anyone, what an example's norm leaves out would not show."""


def many(base: Made, more: Made) -> Made:
    """Return `MANY` examples: all of both sets, again and again."""
    inputs, targets = (
        torch.cat([getattr(base, part), getattr(more, part)]) for part in ("inputs", "targets")
    )
    return Made(inputs, targets).take(torch.arange(MANY) % len(targets))


def none(base: Made) -> Made:
    """Return no examples, of the shapes of these."""
    return base.take(torch.arange(0))


@dataclass(frozen=True)
class BeforeStep:
    """A method before a step.

    Attributes:
        bench: with the weights before the step.
        method: as it is before the step.
        state: likewise.
        step: from 0.
        share: of the run's clip norm that bounds an example.
        micro_batch: examples at once.
    """

    bench: Bench
    method: Any
    state: State
    step: int
    share: float = 1.0
    micro_batch: int = MICRO_BATCH

    def taken(self, method: Any, examples: Made) -> tuple[StepOutcome, Watching]:
        """Take the step on some examples with a copy of the method."""
        return self.bench.step(
            method, self.state, examples, self.step, self.share, self.micro_batch
        )


def moved_by_examples(
    at: BeforeStep,
    base: Made,
    starts: Sequence[tuple[str, Tensor, Tensor]],
    seen: Watching,
    tries: int,
    gen: torch.Generator,
) -> Movement:
    """Add adversarial examples one at a time, and climb from the one that changes most."""
    releases = at.bench.releases(at.state, at.share)
    clipped = "" if at.share == 1 else f", clipped at {at.share:g} of the clip norm"

    def moved(words: str, inputs: Tensor, target: Tensor) -> Movement:
        _, one_more = at.taken(copy.deepcopy(at.method), base.with_one(inputs, target))
        return movement(seen.released, one_more.released, releases, words + clipped)

    tried = [(moved(*start), *start[1:]) for start in starts]
    worst, inputs, target = max(tried, key=lambda start: badness(start[0]))
    for _ in range(tries if inputs.is_floating_point() else 0):
        far = 10 ** float(torch.empty(()).uniform_(-3, 1, generator=gen))
        drawn = torch.randn(inputs.shape, generator=gen, dtype=torch.float64).to(inputs)
        nearby = inputs + far * inputs.abs().mean() * drawn
        found = moved(f"{worst.neighbours.removesuffix(', climbed')}, climbed", nearby, target)
        if found.ratio > worst.ratio:
            worst, inputs = found, nearby
    return worst


def moved_when_tight(
    at: BeforeStep, base: Made, starts: Sequence[tuple[str, Tensor, Tensor]], gen: torch.Generator
) -> Movement:
    """Add examples where the clip norm is so small that all are clipped."""
    tight = replace(at, share=TIGHT)
    _, seen = tight.taken(copy.deepcopy(at.method), base)
    return moved_by_examples(tight, base, starts, seen, 0, gen)


def few_of(kinds: Iterable[tuple[str, Tensor, Tensor]]) -> list[tuple[str, Tensor, Tensor]]:
    """Return two of the examples to add, for later steps and for draws of another size."""
    all_kinds = list(kinds)
    return [all_kinds[1], next((k for k in all_kinds if k[0] == FAR_AND_WRONG), all_kinds[2])]


def adversarial(base: Made, more: Made, num_classes: int) -> Iterator[tuple[str, Tensor, Tensor]]:
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
