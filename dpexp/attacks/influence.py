"""A search for an example that moves a clipped sum by more than its clip norm.

Clipping rests on floating point: on norms that are computed and on sums that are rounded
(`dpexp.grad_sample.rounding`, `dpexp.privacy.bound`). Here hill climbing looks for where that gives
way: for every layer rule and form of it, an example is made up from a few numbers (`Knobs`),
clipped and summed beside others as in a step, and the numbers are changed for as long as the sum
moves further.
"""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import torch

from dpexp.privacy.seeds import generator

OTHERS = ("none", "random", "the same direction", "the same terms", "opposite")
"""Who shares the example's micro-batch."""


@dataclass(frozen=True)
class Knobs:
    """What an example and its neighbours are made from. Ranges are in `LIMITS`.

    Attributes:
        log_x: decimal logarithm of the inputs' size.
        log_h: of the output gradients' size.
        log_gap: of how far, relative to their size, the two positions of a pair lie apart.
        pairing: share of the positions that come in pairs of nearly equal inputs and opposite
            gradients, whose terms cancel.
        constant: how much of an input is one and the same number; the rest is random.
        log_active: share of an input's and a gradient's numbers that are not zero, as a logarithm.
        log_clip: decimal logarithm of the clip norm, in norms as they are computed.
        others: index into `OTHERS`, rounded.
        log_many: decimal logarithm of how many others there are.
        log_loud: of their size, in the example's.
        coarse: above a half, numbers are rounded to bfloat16 first.
    """

    log_x: float
    log_h: float
    log_gap: float
    pairing: float
    constant: float
    log_active: float
    log_clip: float
    others: float
    log_many: float
    log_loud: float
    coarse: float


LIMITS = Knobs(
    log_x=(-37, 37),
    log_h=(-37, 37),
    log_gap=(-8, 0),
    pairing=(0, 1),
    constant=(0, 1),
    log_active=(-4, 0),
    log_clip=(-46, 1),
    others=(-0.49, len(OTHERS) - 0.51),
    log_many=(0, 2.1),
    log_loud=(-2, 2),
    coarse=(0, 1),
)


class Moved(NamedTuple):
    """What an example did.

    Attributes:
        distance: how far it moved the clipped sum, in clip norms.
        is_calm: whether it was summed in the model's precision, beside the others.
    """

    distance: float
    is_calm: bool


class Target(Protocol):
    """Something that clips and sums."""

    def moved(self, knobs: Knobs, seed: int) -> Moved:
        """Clip and sum an example beside its neighbours, and without it."""


@dataclass(frozen=True)
class Found:
    """The furthest that an example was found to move a sum.

    Attributes:
        moved: in clip norms.
        calm: the furthest by one that was summed in the model's precision.
        knobs: what it was made from.
        seed: the generator's, with which `moved` gives it again.
        tried: how many examples there were.
    """

    moved: float
    calm: float
    knobs: Knobs
    seed: int
    tried: int

    def words(self) -> dict[str, Any]:
        """Return the knobs by name, rounded for reading."""
        return {each.name: round(getattr(self.knobs, each.name), 3) for each in fields(self.knobs)}


PATIENCE = 40  # ours: steps of a climb that may go by without a gain


def climb(target: Target, seconds: float, seed: int, most: int | None = None) -> Found:
    """Search one form, from new places again and again.

    Args:
        target: what to attack.
        seconds: how long.
        seed: of the search.
        most: examples to try at most; None: as many as time allows.
    """
    gen = drawing(seed)
    best, calm, tried, until = None, 0.0, 0, time.monotonic() + seconds
    while True:
        of_example = int(torch.randint(2**31, (), generator=gen))
        only_calm = float(torch.rand((), generator=gen)) < 0.7
        knobs, here, since = _start(gen), 0.0, 0
        while since < PATIENCE:
            if best is not None and (time.monotonic() > until or tried == most):
                return replace(best, calm=calm, tried=tried)
            new = _step(knobs, gen) if since else knobs
            distance, is_calm = target.moved(new, of_example)
            tried, since = tried + 1, since + 1
            if best is None or distance > best.moved:
                best = Found(distance, calm, new, of_example, tried)
            if is_calm:
                calm = max(calm, distance)
            # What float64 takes is nearest to one everywhere; most climbs look where it does not.
            far = 0.0 if only_calm and not is_calm else distance
            if far > here * (1 + 1e-9):
                since = 0
            if far >= here:
                knobs, here = new, far


def drawing(seed: int, index: int = 0) -> torch.Generator:
    """Return the generator of a search, or of what an example and its neighbours are made of."""
    return generator(seed, "influence", index)


def _start(gen: torch.Generator) -> Knobs:
    """Draw from all that is allowed, but sizes and clip norms mostly from what networks have."""
    where = torch.rand(len(astuple(LIMITS)), generator=gen).tolist()
    limits = zip(where, astuple(LIMITS), strict=True)
    knobs = Knobs(*(low + at * (high - low) for at, (low, high) in limits))
    if float(torch.rand((), generator=gen)) < 0.2:
        return knobs
    log_x, log_h = (4 * torch.randn(2, generator=gen).clamp(-2, 2)).tolist()
    log_clip = 3 * float(torch.rand((), generator=gen)) - 2
    return replace(knobs, log_x=log_x / 2, log_h=log_h / 2, log_clip=log_clip)


def _step(knobs: Knobs, gen: torch.Generator) -> Knobs:
    """Move a few of the numbers, now far and now near."""
    reach = 10.0 ** (-3 * float(torch.rand((), generator=gen)))
    values = []
    for value, (low, high) in zip(astuple(knobs), astuple(LIMITS), strict=True):
        if float(torch.rand((), generator=gen)) < 0.3:
            value += reach * (high - low) * float(torch.randn((), generator=gen))
        values.append(min(max(value, low), high))
    return Knobs(*values)
