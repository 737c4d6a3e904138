"""A search for an example that moves a clipped sum by more than its clip norm.

Clipping rests on floating point: on norms that are computed and on sums that are rounded
(`dpexp.rounding`). Here hill climbing looks for where that gives way: for every layer rule and form
of it, an example is made up from a few numbers (`Knobs`), clipped and summed beside others as in a
step, and the numbers are changed for as long as the sum moves further.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpexp.carriers import Explicit, Masked, Outer
from dpexp.privatize import ClippedSum
from dpexp.taps.conv2d import Conv2dMatrix, Conv2dTap, Conv2dWeight, Geometry
from dpexp.taps.embedding import EmbeddingWeight
from dpexp.taps.linear import LinearTap, LinearWeight
from dpexp.types import Carrier, Key, Release

KEY = Key("gradient", "weight")
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
    log_x=(-25, 20),
    log_h=(-30, 15),
    log_gap=(-8, 0),
    pairing=(0, 1),
    constant=(0, 1),
    log_active=(-4, 0),
    log_clip=(-2, 1),
    others=(-0.49, len(OTHERS) - 0.51),
    log_many=(0, 2.1),
    log_loud=(-2, 2),
    coarse=(0, 1),
)


@dataclass(frozen=True)
class Form:
    """A layer's arithmetic, and how large a layer.

    Attributes:
        x: shape of an example's input; positions first, but channels first for images.
        h: shape of its output gradient, alike.
        carrier: makes the batch's carrier of both.
        block: shape of its sum.
    """

    x: tuple[int, ...]
    h: tuple[int, ...]
    carrier: Callable[[Tensor, Tensor], Carrier]
    block: tuple[int, ...]


def _linear(d: int, p: int, t: int) -> Form:
    return Form((t, d), (t, p), lambda x, h: Outer(LinearWeight(), x, h), (p, d))


def _basis(size: int, rank: int) -> Tensor:
    gen = torch.Generator().manual_seed(0)
    return torch.linalg.qr(torch.randn(size, rank, generator=gen)).Q


def _linear_carriers(d: int, p: int, t: int, rank: int, side: str) -> Form:
    def carrier(x: Tensor, h: Tensor) -> Carrier:
        tap = LinearTap(x, h, ("weight",))
        return tap.left(_basis(d, rank).T) if side == "left" else tap.right(_basis(p, rank))

    return Form((t, d), (t, p), carrier, (p, rank) if side == "left" else (rank, d))


def _images(d: int, p: int, size: int, kernel: int, groups: int = 1, last: bool = False) -> Form:
    at = Geometry((kernel, kernel), (1, 1), (kernel // 2, kernel // 2), (1, 1), groups)
    layout = torch.channels_last if last else torch.contiguous_format

    def carrier(x: Tensor, h: Tensor) -> Carrier:
        both = (each.contiguous(memory_format=layout) for each in (x, h))
        return Outer(Conv2dWeight(at), *both)

    block = (p, d // groups, kernel, kernel)
    return Form((d, size, size), (p, size, size), carrier, block)


def _image_carriers(d: int, p: int, size: int, rank: int, side: str, last: bool = False) -> Form:
    at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    layout = torch.channels_last if last else torch.contiguous_format

    def carrier(x: Tensor, h: Tensor) -> Carrier:
        x, h = (each.contiguous(memory_format=layout) for each in (x, h))
        tap = Conv2dTap(x, h, at, ("weight",))
        return tap.left(_basis(9 * d, rank).T) if side == "left" else tap.right(_basis(p, rank))

    block = (p, rank) if side == "left" else (rank, 9 * d)
    return Form((d, size, size), (p, size, size), carrier, block)


def _masked(d: int, p: int, t: int) -> Form:
    kept = torch.arange(0, p * d, 2)
    return Form(
        (t, d),
        (t, p),
        lambda x, h: Masked(Outer(LinearWeight(), x, h), kept, (p, d)),
        (len(kept),),
    )


def _embedding(rows: int, d: int, t: int) -> Form:
    # Pairs of positions look up the same token.
    tokens = torch.arange(t) // 2 % rows
    return Form(
        (t, 1),
        (t, d),
        lambda x, h: Outer(EmbeddingWeight(rows), tokens.expand(len(h), -1), h * x.sign()),
        (rows, d),
    )


def _held(t: int, d: int) -> Form:
    return Form((t, 1), (t, d), lambda x, h: Explicit((x * h).sum(1)), (d,))


FORMS: Mapping[str, Form] = {
    "linear 768 to 3072, 2 positions": _linear(768, 3072, 2),
    "linear 3072 to 768, 2 positions": _linear(3072, 768, 2),
    "linear 4096 to 1024, 8 positions": _linear(4096, 1024, 8),
    "linear 384 to 1536, 4 positions": _linear(384, 1536, 4),
    "linear 768 to 768, 128 positions": _linear(768, 768, 128),
    "linear 200,000 to 4, 3 positions": _linear(200_000, 4, 3),
    "linear 64 to 32, 1 position": _linear(64, 32, 1),
    "linear 2 to 3, 1 position": _linear(2, 3, 1),
    "linear 6 to 4, 16 positions, formed": _linear(6, 4, 16),
    "left carrier, linear 768 to 768": _linear_carriers(768, 768, 8, 4, "left"),
    "right carrier, linear 768 to 768": _linear_carriers(768, 768, 8, 4, "right"),
    "convolution 256 to 256, 1 x 1": _images(256, 256, 4, 1),
    "convolution 128 to 128, 3 x 3": _images(128, 128, 6, 3),
    "convolution 64 to 64, channels last": _images(64, 64, 6, 3, last=True),
    "convolution 64 to 32, formed": _images(64, 32, 16, 3),
    "convolution 64 to 64, 4 groups": _images(64, 64, 4, 3, groups=4),
    "left carrier, convolution 64 to 64": _image_carriers(64, 64, 6, 4, "left"),
    "right carrier, convolution 640": _image_carriers(640, 640, 4, 4, "right"),
    "right carrier, channels last": _image_carriers(64, 64, 6, 16, "right", last=True),
    "masked, linear 512 to 256": _masked(512, 256, 4),
    "embedding 20 x 768": _embedding(20, 768, 16),
    "held, 300,000 numbers": _held(2, 300_000),
    "held, 5 numbers": _held(3, 5),
}
"""Every rule and form, at sizes where it is taken."""


class Moved(NamedTuple):
    """What an example did.

    Attributes:
        distance: how far it moved the clipped sum, in clip norms.
        is_calm: whether it was summed in the model's precision, beside the others.
    """

    distance: float
    is_calm: bool


def moved(form: Form, knobs: Knobs, seed: int) -> Moved:
    """Clip and sum an example beside its neighbours, and without it."""
    gen = torch.Generator().manual_seed(seed)
    x, h = _example(form, knobs, gen)
    xs, hs = _neighbours(form, knobs, x, h, gen)
    if knobs.coarse > 0.5:
        xs, hs = (each.bfloat16().float() for each in (xs, hs))
    whole = form.carrier(xs, hs)
    alone = whole.keep(torch.arange(len(xs)) == len(xs) - 1)
    size, _ = alone.measured()
    clip_norm = float(size.squares.sqrt()) * 10.0**knobs.log_clip
    if not 0 < clip_norm < math.inf:
        clip_norm = 10.0**knobs.log_clip
    with_it = _summed(form, form.carrier(xs, hs), clip_norm)
    without = 0.0
    if len(xs) > 1:
        without = _summed(form, form.carrier(xs[:-1], hs[:-1]), clip_norm)
    distance = float(torch.linalg.vector_norm(with_it - without)) / clip_norm
    is_calm = bool(size.is_exact_enough(clip_norm).all())
    return Moved(math.inf if math.isnan(distance) else distance, is_calm)


def _summed(form: Form, carrier: Carrier, clip_norm: float) -> Tensor:
    release = Release(KEY.release, math.prod(form.block), clip_norm)
    total = ClippedSum({KEY: form.block}, (release,), torch.empty(0))
    total.take({KEY: carrier})
    total.close_micro_batch(0)
    return total.sums[KEY]


def _example(form: Form, knobs: Knobs, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Make up x and h, of which some positions come in pairs that cancel."""
    x, h = (_positions(shape, knobs, gen) for shape in (form.x, form.h))
    num = len(x)
    paired = 2 * int(knobs.pairing * (num // 2) + 0.5)
    first, second = slice(0, paired, 2), slice(1, paired, 2)
    for each, sign in ((x, 1.0), (h, -1.0)):
        near = torch.randn(each[second].shape, generator=gen) * 10.0**knobs.log_gap
        each[second] = sign * each[first] * (1 + near)
    scaled = (x.double() * 10.0**knobs.log_x).float(), (h.double() * 10.0**knobs.log_h).float()
    return tuple(_shaped(each, shape) for each, shape in zip(scaled, (form.x, form.h), strict=True))


def _positions(shape: tuple[int, ...], knobs: Knobs, gen: torch.Generator) -> Tensor:
    """Give numbers at every position, [t, channels]."""
    channels, num = (shape[0], math.prod(shape[1:])) if len(shape) == 3 else (shape[1], shape[0])
    values = torch.randn(num, channels, generator=gen)
    values = knobs.constant + (1 - knobs.constant) * values
    values[:, max(1, round(channels * 10.0**knobs.log_active)) :] = 0
    return values


def _shaped(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return values.T.reshape(shape) if len(shape) == 3 else values.reshape(shape)


def _neighbours(
    form: Form, knobs: Knobs, x: Tensor, h: Tensor, gen: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Put others before the example: batches [n, ...] in which it is the last."""
    kind, many = OTHERS[round(knobs.others)], round(10.0**knobs.log_many)
    if kind == "none":
        return x[None], h[None]
    loud = 10.0**knobs.log_loud
    if kind == "random":
        xs = torch.randn(many, *form.x, generator=gen) * x.abs().max()
        hs = torch.randn(many, *form.h, generator=gen) * h.abs().max() * loud
    elif kind == "the same direction":  # and nothing that cancels: signs are taken off
        xs, hs = x.abs().expand(many, *form.x), h.abs().expand(many, *form.h) * loud
    else:
        sign = -1.0 if kind == "opposite" else 1.0
        jitter = 1 + 1e-3 * torch.randn(many, *[1] * h.dim(), generator=gen)
        xs, hs = x.expand(many, *form.x), sign * loud * jitter * h
    return torch.cat([xs, x[None]]), torch.cat([hs, h[None]])


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
        """Give the knobs by name, rounded for reading."""
        return {each.name: round(getattr(self.knobs, each.name), 3) for each in fields(self.knobs)}


PATIENCE = 40  # ours: steps of a climb that may go by without a gain


def climb(
    form: Form, seconds: float, seed: int, most: int | None = None, measure: Callable = moved
) -> Found:
    """Search one form, from new places again and again.

    Args:
        form: what to attack.
        seconds: how long.
        seed: of the search.
        most: examples to try at most; None: as many as time allows.
        measure: gives how far an example moves the sum; tests put another in its place.
    """
    gen = torch.Generator().manual_seed(seed)
    best, calm, tried, until = None, 0.0, 0, time.monotonic() + seconds
    while True:
        of_example = int(torch.randint(2**31, (), generator=gen))
        only_calm = float(torch.rand((), generator=gen)) < 0.7
        knobs, here, since = _start(gen), 0.0, 0
        while since < PATIENCE:
            if best is not None and (time.monotonic() > until or tried == most):
                return replace(best, calm=calm, tried=tried)
            new = _step(knobs, gen) if since else knobs
            distance, is_calm = measure(form, new, of_example)
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


def _start(gen: torch.Generator) -> Knobs:
    """Draw from all that is allowed, but sizes mostly from what networks have."""
    where = torch.rand(len(astuple(LIMITS)), generator=gen).tolist()
    limits = zip(where, astuple(LIMITS), strict=True)
    knobs = Knobs(*(low + at * (high - low) for at, (low, high) in limits))
    if float(torch.rand((), generator=gen)) < 0.2:
        return knobs
    log_x, log_h = (4 * torch.randn(2, generator=gen).clamp(-2, 2)).tolist()
    return replace(knobs, log_x=log_x / 2, log_h=log_h / 2)


def _step(knobs: Knobs, gen: torch.Generator) -> Knobs:
    """Move a few of the numbers, now far and now near."""
    reach = 10.0 ** (-3 * float(torch.rand((), generator=gen)))
    values = []
    for value, (low, high) in zip(astuple(knobs), astuple(LIMITS), strict=True):
        if float(torch.rand((), generator=gen)) < 0.3:
            value += reach * (high - low) * float(torch.randn((), generator=gen))
        values.append(min(max(value, low), high))
    return Knobs(*values)
