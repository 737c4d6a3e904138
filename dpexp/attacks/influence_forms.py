"""Targets of the search for an example's influence: every layer rule in each of its forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dpexp.attacks.influence import OTHERS, Knobs, Moved, drawing
from dpexp.grad_sample.conv2d import Conv2dGrads, Conv2dWeight
from dpexp.grad_sample.embedding import EmbeddingWeight
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.linear import LinearGrads, LinearWeight
from dpexp.grad_sample.per_example import FactoredGrads, MaskedGrads, MaterializedGrads
from dpexp.grad_sample.repeated import repeated
from dpexp.kernels import fast_kernels
from dpexp.models.standardized import Projection, StandardizedWeight
from dpexp.privacy.bound import is_exact_enough
from dpexp.privacy.privatize import ClippedSum
from dpexp.types import Key, PerExampleGrads, Release

KEY = Key("gradient", "weight")

LARGEST = 1e30
"""Largest clip norm tried: sums of many such norms overflow float32."""


@dataclass(frozen=True)
class Form:
    """A layer's arithmetic and size.

    Attributes:
        x: shape of an example's input; positions first, but channels first for images.
        h: shape of its output gradient, likewise.
        grads: returns the batch's per-example gradients from both.
        block: shape of their sum.
    """

    x: tuple[int, ...]
    h: tuple[int, ...]
    grads: Callable[[Tensor, Tensor], PerExampleGrads]
    block: tuple[int, ...]

    @fast_kernels()
    def moved(self, knobs: Knobs, seed: int) -> Moved:
        """Return how far an example changes the clipped sum of its micro-batch."""
        gen = drawing(seed, 1)
        x, h = _example(self, knobs, gen)
        xs, hs = _neighbours(self, knobs, x, h, gen)
        if knobs.coarse > 0.5:
            xs, hs = (tensor.bfloat16().float() for tensor in (xs, hs))
        whole = self.grads(xs, hs)
        alone = whole.select(torch.arange(len(xs)) == len(xs) - 1)
        size, _ = alone.measured()
        clip_norm = float(size.squares.sqrt()) * 10.0**knobs.log_clip
        if not 0 < clip_norm < LARGEST:
            clip_norm = 10.0**knobs.log_clip
        with_it = _summed(self, self.grads(xs, hs), clip_norm)
        without = torch.zeros(())
        if len(xs) > 1:
            without = _summed(self, self.grads(xs[:-1], hs[:-1]), clip_norm)
        distance = float(torch.linalg.vector_norm(with_it - without)) / clip_norm
        is_calm = bool(is_exact_enough(size, clip_norm).all())
        return Moved(math.inf if math.isnan(distance) else distance, is_calm)


def _linear(d: int, p: int, t: int, *, is_plain: bool = False) -> Form:
    return Form((t, d), (t, p), lambda x, h: FactoredGrads(LinearWeight(is_plain), x, h), (p, d))


def _basis(size: int, rank: int) -> Tensor:
    gen = drawing(0, 2)
    return torch.linalg.qr(torch.randn(size, rank, generator=gen)).Q


def _linear_carriers(d: int, p: int, t: int, rank: int, side: str) -> Form:
    def grads(x: Tensor, h: Tensor) -> PerExampleGrads:
        layer_grads = LinearGrads(x, h, ("weight",))
        return (
            layer_grads.left(_basis(d, rank).T)
            if side == "left"
            else layer_grads.right(_basis(p, rank))
        )

    return Form((t, d), (t, p), grads, (p, rank) if side == "left" else (rank, d))


def _images(
    d: int, p: int, size: int, kernel: int, groups: int = 1, last: bool = False, stride: int = 1
) -> Form:
    at = Geometry((kernel, kernel), (stride, stride), (kernel // 2, kernel // 2), (1, 1), groups)
    layout = torch.channels_last if last else torch.contiguous_format

    def grads(x: Tensor, h: Tensor) -> PerExampleGrads:
        both = (tensor.contiguous(memory_format=layout) for tensor in (x, h))
        return FactoredGrads(Conv2dWeight(at), *both)

    block, outputs = (p, d // groups, kernel, kernel), -(-size // stride)
    return Form((d, size, size), (p, outputs, outputs), grads, block)


def _views(d: int, p: int, size: int, views: int) -> Form:
    """Return a form of 3 x 3 kernels whose example is so many images, one above the other."""
    of_image = _images(d, p, size, 3)

    def grads(x: Tensor, h: Tensor) -> PerExampleGrads:
        rows = (each.unflatten(2, (views, size)).transpose(1, 2).flatten(0, 1) for each in (x, h))
        return repeated(cast(FactoredGrads, of_image.grads(*rows)), views)

    return Form((d, views * size, size), (p, views * size, size), grads, of_image.block)


def _standardized(d: int, p: int, size: int, last: bool = False) -> Form:
    """Return a form of 3 x 3 kernels of which P is released, not they themselves."""
    of_image = _images(d, p, size, 3, last=last)
    unit = F.normalize(torch.randn(p, 9 * d, generator=drawing(0, 3), dtype=torch.float64))
    unit = F.normalize(unit - unit.mean(1, keepdim=True))
    projection = Projection(unit, torch.arange(p) % 4 > 0)

    def grads(x: Tensor, h: Tensor) -> PerExampleGrads:
        whole = cast(FactoredGrads, of_image.grads(x, h))
        used = cast(Conv2dWeight, whole.rule)
        return replace(whole, rule=StandardizedWeight(used, projection))

    return Form(of_image.x, of_image.h, grads, of_image.block)


def _image_carriers(d: int, p: int, size: int, rank: int, side: str, last: bool = False) -> Form:
    at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    layout = torch.channels_last if last else torch.contiguous_format

    def grads(x: Tensor, h: Tensor) -> PerExampleGrads:
        x, h = (tensor.contiguous(memory_format=layout) for tensor in (x, h))
        layer_grads = Conv2dGrads(x, h, at, ("weight",))
        return (
            layer_grads.left(_basis(9 * d, rank).T)
            if side == "left"
            else layer_grads.right(_basis(p, rank))
        )

    block = (p, rank) if side == "left" else (rank, 9 * d)
    return Form((d, size, size), (p, size, size), grads, block)


def _masked(whole: Form, every: int = 2) -> Form:
    is_kept = torch.arange(math.prod(whole.block)) % every == 0

    def grads(x: Tensor, h: Tensor) -> PerExampleGrads:
        return MaskedGrads(cast(FactoredGrads, whole.grads(x, h)), is_kept, whole.block)

    return Form(whole.x, whole.h, grads, (int(is_kept.sum()),))


def _embedding(rows: int, d: int, t: int) -> Form:
    # Pairs of positions look up the same token.
    tokens = torch.arange(t) // 2 % rows
    return Form(
        (t, 1),
        (t, d),
        lambda x, h: FactoredGrads(EmbeddingWeight(rows), tokens.expand(len(h), -1), h * x.sign()),
        (rows, d),
    )


def _held(t: int, d: int) -> Form:
    return Form((t, 1), (t, d), lambda x, h: MaterializedGrads((x * h).sum(1)), (d,))


FORMS: Mapping[str, Form] = {
    "linear 768 to 3072, 2 positions": _linear(768, 3072, 2),
    "linear 3072 to 768, 2 positions": _linear(3072, 768, 2),
    "linear 4096 to 1024, 8 positions": _linear(4096, 1024, 8),
    "linear 384 to 1536, 4 positions": _linear(384, 1536, 4),
    "linear 768 to 768, 128 positions": _linear(768, 768, 128),
    "linear 200,000 to 4, 3 positions": _linear(200_000, 4, 3),
    "linear 64 to 32, 1 position": _linear(64, 32, 1),
    "linear 64 to 32, vectors": _linear(64, 32, 1, is_plain=True),
    "linear 2 to 3, vectors": _linear(2, 3, 1, is_plain=True),
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
    "left carrier, channels last": _image_carriers(64, 64, 6, 16, "left", last=True),
    "right carrier, channels last": _image_carriers(64, 64, 6, 16, "right", last=True),
    "convolution 16 to 24, stride 2": _images(16, 24, 9, 3, stride=2),
    "convolution 2 to 3, 96 x 96": _images(2, 3, 96, 3),
    "masked, linear 512 to 256": _masked(_linear(512, 256, 4)),
    "masked, convolution 16 to 16": _masked(_images(16, 16, 6, 3), 50),
    "views, convolution 64 to 64": _views(64, 64, 6, 3),
    "views, convolution 24 to 16, formed": _views(24, 16, 12, 2),
    "standardised, convolution 64 to 64": _standardized(64, 64, 6),
    "standardised, channels last": _standardized(64, 64, 6, last=True),
    "standardised, convolution 24 to 16, formed": _standardized(24, 16, 16),
    "embedding 20 x 768": _embedding(20, 768, 16),
    "held, 300,000 numbers": _held(2, 300_000),
    "held, 5 numbers": _held(3, 5),
}
"""Every rule and form, at sizes where it is used."""


def _summed(form: Form, grads: PerExampleGrads, clip_norm: float) -> Tensor:
    release = Release(KEY.release, math.prod(form.block), clip_norm)
    total = ClippedSum({KEY: form.block}, (release,), torch.empty(0))
    total.take({KEY: grads})
    total.close_micro_batch(0)
    return total.sums[KEY].double()


def _example(form: Form, knobs: Knobs, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return x and h, in which some positions come in pairs that cancel."""
    x, h = (positions(shape, knobs, gen) for shape in (form.x, form.h))
    for values, sign in ((x, 1.0), (h, -1.0)):
        paired = 2 * int(knobs.pairing * (len(values) // 2) + 0.5)
        first, second = slice(0, paired, 2), slice(1, paired, 2)
        near = torch.randn(values[second].shape, generator=gen) * 10.0**knobs.log_gap
        values[second] = sign * values[first] * (1 + near)
    scaled = (x.double() * 10.0**knobs.log_x).float(), (h.double() * 10.0**knobs.log_h).float()
    return _shaped(scaled[0], form.x), _shaped(scaled[1], form.h)


def positions(shape: tuple[int, ...], knobs: Knobs, gen: torch.Generator) -> Tensor:
    """Return random numbers at every position, [t, channels]."""
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
    """Return batches [n, ...] of other examples, followed by the example."""
    kind, many = OTHERS[round(knobs.others)], round(10.0**knobs.log_num_others)
    if kind == "none":
        return x[None], h[None]
    other_size = 10.0**knobs.log_other_size
    if kind == "random":
        xs = torch.randn(many, *form.x, generator=gen) * x.abs().max()
        hs = torch.randn(many, *form.h, generator=gen) * h.abs().max() * other_size
    elif kind == "the same direction":  # without signs, so that nothing cancels
        xs, hs = x.abs().expand(many, *form.x), h.abs().expand(many, *form.h) * other_size
    else:
        sign = -1.0 if kind == "opposite" else 1.0
        jitter = 1 + 1e-3 * torch.randn(many, *[1] * h.dim(), generator=gen)
        xs, hs = x.expand(many, *form.x), sign * other_size * jitter * h
    return torch.cat([xs, x[None]]), torch.cat([hs, h[None]])
