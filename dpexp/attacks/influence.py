"""A search for an example that changes a clipped sum by more than its clip norm.

Clipping depends on floating point: on computed norms and rounded sums
(`dpexp.grad_sample.rounding`, `dpexp.privacy.bound`). Hill climbing looks for a violation: for
every layer rule and each of its forms, it makes an example from a few numbers (`Knobs`), clips and
sums it with others as in a step, and varies the numbers to change the sum further.
"""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import torch

from dpexp.privacy.seeds import generator

OTHERS = ("none", "random", "the same direction", "the same terms", "opposite")
"""Kinds of other examples in the micro-batch."""


@dataclass(frozen=True)
class Knobs:
    """Parameters of an example and of the others in its micro-batch. Ranges are in `LIMITS`.

    Attributes:
        log_x: decimal logarithm of the inputs' size.
        log_h: of the output gradients' size.
        log_gap: of the relative distance between the two positions of a pair.
        pairing: share of the positions that come in pairs of nearly equal inputs and opposite
            gradients, whose terms cancel.
        constant: weight of a constant in the inputs; the rest is random.
        log_active: logarithm of the share of nonzero numbers in inputs and gradients.
        log_clip: decimal logarithm of the clip norm, relative to the computed norm.
        others: index into `OTHERS`, rounded.
        log_num_others: decimal logarithm of the number of others.
        log_other_size: of their size, relative to the example's.
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
    log_num_others: float
    log_other_size: float
    coarse: float


LIMITS: dict[str, tuple[float, float]] = {
    "log_x": (-37, 37),
    "log_h": (-37, 37),
    "log_gap": (-8, 0),
    "pairing": (0, 1),
    "constant": (0, 1),
    "log_active": (-4, 0),
    "log_clip": (-46, 1),
    "others": (-0.49, len(OTHERS) - 0.51),
    "log_num_others": (0, 2.1),
    "log_other_size": (-2, 2),
    "coarse": (0, 1),
}
"""The range of every knob, in their order."""


class Moved(NamedTuple):
    """An example's effect on the clipped sum.

    Attributes:
        distance: change of the clipped sum, in clip norms.
        is_calm: whether it was summed in the model's precision, not separately in float64.
    """

    distance: float
    is_calm: bool


class Target(Protocol):
    """Code that clips and sums."""

    def moved(self, knobs: Knobs, seed: int) -> Moved:
        """Return how far an example changes the clipped sum of its micro-batch."""


@dataclass(frozen=True)
class Found:
    """The largest change of a sum found.

    Attributes:
        moved: in clip norms.
        calm: the largest change by an example that was summed in the model's precision.
        knobs: parameters of the example.
        seed: of the generator; the target's `moved` reproduces the change with it.
        tried: number of examples tried.
    """

    moved: float
    calm: float
    knobs: Knobs
    seed: int
    tried: int

    def words(self) -> dict[str, Any]:
        """Return the knobs by name, rounded for reading."""
        return {knob.name: round(getattr(self.knobs, knob.name), 3) for knob in fields(self.knobs)}


PATIENCE = 40  # ours: steps of a climb without a gain before it restarts


def climb(target: Target, seconds: float, seed: int, most: int | None = None) -> Found:
    """Search one form by hill climbing with random restarts.

    Args:
        target: to attack.
        seconds: duration of the search.
        seed: of the search.
        most: limit on the number of examples; None: as many as time allows.
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
            # Examples summed in float64 all come close to one; most climbs ignore them.
            score = 0.0 if only_calm and not is_calm else distance
            if score > here * (1 + 1e-9):
                since = 0
            if score >= here:
                knobs, here = new, score


def drawing(seed: int, index: int = 0) -> torch.Generator:
    """Return the generator of a search (index 0) or of its examples."""
    return generator(seed, "influence", index)


def _start(gen: torch.Generator) -> Knobs:
    """Draw from the allowed ranges; sizes and clip norms mostly from those of real networks."""
    where = torch.rand(len(LIMITS), generator=gen).tolist()
    limits = zip(where, LIMITS.values(), strict=True)
    knobs = Knobs(*(low + at * (high - low) for at, (low, high) in limits))
    if float(torch.rand((), generator=gen)) < 0.2:
        return knobs
    log_x, log_h = (4 * torch.randn(2, generator=gen).clamp(-2, 2)).tolist()
    log_clip = 3 * float(torch.rand((), generator=gen)) - 2
    return replace(knobs, log_x=log_x / 2, log_h=log_h / 2, log_clip=log_clip)


def _step(knobs: Knobs, gen: torch.Generator) -> Knobs:
    """Change a few of the numbers by a random amount."""
    reach = 10.0 ** (-3 * float(torch.rand((), generator=gen)))
    values = []
    for value, (low, high) in zip(astuple(knobs), LIMITS.values(), strict=True):
        if float(torch.rand((), generator=gen)) < 0.3:
            value += reach * (high - low) * float(torch.randn((), generator=gen))
        values.append(min(max(value, low), high))
    return Knobs(*values)
