"""Convolutions of standardised weights, and the rule for their per-example gradients.

Qiao et al. 2019 (arXiv 1903.10520), scaled as in Brock et al. 2021 (arXiv 2101.08692) and in the
code of De et al. 2022. Indices: n example, p output channel, m = d k k inputs of each.

    W'_p = g_p (W_p - mean(W_p)) / s_p,    s_p = sqrt(max(m var(W_p), 1e-4))

W is what trains. Where s_p is above its least value, U_p = (W_p - mean(W_p)) / s_p has norm 1, and
a gradient G_p of W'_p gives

    W_p:   (G_p - mean(G_p) - U_p <U_p, G_p>) g_p / s_p        g_p:   <U_p, G_p>

Below it s_p is a constant, and the third term is absent. What a low-rank method multiplies is the
gradient of W, so that its carriers are exact. The first is a projection P of G_p g_p / s_p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dpexp.grad_sample import rule
from dpexp.grad_sample.chunks import over_chunks
from dpexp.grad_sample.conv2d import (
    Conv2dGrads,
    Conv2dWeight,
    as_images,
    extent,
    pads_zeros,
)
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads, size_by_forming
from dpexp.grad_sample.rounding import Terms, raised
from dpexp.kernels import directly
from dpexp.models.notes import note, shown
from dpexp.types import ConfigError, Size

LEAST = 1e-4
"""Least value of m var(W_p), as in the code of De et al."""

FEWEST = 3
"""Least m: of fewer numbers a standardised kernel is constant, zero or its sign times 1/sqrt(2)."""


class StandardizedConv2d(nn.Conv2d):
    """A convolution by W', with a gain of 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        return self._conv_forward(x, standardized(self.weight)[0], self.bias)


class GainedConv2d(StandardizedConv2d):
    """A convolution by W', with a gain g that trains, first 1."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Take what nn.Conv2d takes."""
        super().__init__(*args, **settings)
        self.gain = nn.Parameter(torch.ones_like(self.weight[:, 0, 0, 0]))

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h', w']."""
        weight = self.gain[:, None, None, None] * standardized(self.weight)[0]
        return self._conv_forward(x, weight, self.bias)


def standardized(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [p, d, k, k], s [p], and where s is above its least value, [p]."""
    centred = weight - weight.mean((1, 2, 3), keepdim=True)
    squares = centred.square().sum((1, 2, 3))
    scale = squares.clamp(min=LEAST).sqrt()
    return centred / scale[:, None, None, None], scale, squares > LEAST


@dataclass(frozen=True)
class Projection:
    """P, which takes gradients of W' for gains and scales of 1 to gradients of W; |P G| <= |G|.

    Attributes:
        unit: U, [p, m] in float64.
        is_scaled: where s_p is above its least value, [p].
    """

    unit: Tensor
    is_scaled: Tensor

    def along(self, used: Conv2dGrads) -> Tensor:
        """Return <U_p, G_ip> where s_p is above its least value, else 0, [n, p]."""
        return weighed(used, self.unit) * self.is_scaled

    def means(self, used: Conv2dGrads) -> Tensor:
        """Return the means of G_ip, [n, p]."""
        unit = self.unit[: used.at.groups]
        return weighed(used, torch.full_like(unit, 1 / unit.shape[1]))

    def of(self, gradients: Tensor) -> Tensor:
        """Return P G for gradients [..., p, m]."""
        unit = self.unit.to(gradients.dtype)
        along = (gradients * unit).sum(-1) * self.is_scaled
        own = gradients - gradients.mean(-1, keepdim=True)
        return own.sub_(unit * along[..., None])


def weighed(used: Conv2dGrads, kernels: Tensor) -> Tensor:
    """Return <K_p, G_ip>, [n, p]: a convolution by K, times dh, summed over positions.

    It may be part of a norm, and so is the sum of products that the norm's bound is of.

    Args:
        used: gives G.
        kernels: K, [p, m]; or one for all outputs of a group, [groups, m].
    """
    at = used.at
    kernel = kernels.to(used.x.dtype).view(len(kernels), -1, *at.kernel)
    with directly():
        made = F.conv2d(used.x, kernel, None, at.stride, at.padding, at.dilation, at.groups)
    dh = used.dh.unflatten(1, (len(kernels), -1))
    return (dh * made[:, :, None]).sum((3, 4)).flatten(1)


class Shared:
    """What gradients of weight and gain have in common, for dh as it came: found once, when asked.

    Both need <U_p, G_ip>. Where G is formed it is a product with U; elsewhere it is a convolution
    as dear as the layer's forward pass.
    """

    def __init__(self, used: Conv2dGrads, unit: Tensor) -> None:
        """Set x and dh, which are let go of as soon as nothing more is to be found, and U."""
        self._used: Conv2dGrads | None = used
        self._unit = unit
        self._formed: Tensor | None = None
        self._along: Tensor | None = None

    def formed(self) -> Tensor | None:
        """Return G, [n, p, d, k, k]; None if x and dh take less memory."""
        if self._formed is None and self._used is not None:
            self._formed = Conv2dWeight(self._used.at).formed(self._used.x, self._used.dh)
        return self._formed

    def along(self) -> Tensor:
        """Return <U_p, G_ip>, [n, p]."""
        if self._along is None:
            formed = self.formed()
            if formed is not None:
                self._along = (formed.flatten(2) * self._unit.to(formed.dtype)).sum(2)
            elif self._used is not None:
                self._along = weighed(self._used, self._unit)
            self._used = None
        assert self._along is not None
        return self._along


@dataclass(frozen=True)
class Known:
    """What is known of the gradients of one x and dh.

    Attributes:
        x: that they are of.
        dh: likewise, times the factor.
        shared: of dh as it came.
        factor: g_p / s_p, [p].
    """

    x: Tensor
    dh: Tensor
    shared: Shared
    factor: Tensor

    def is_of(self, x: Tensor, dh: Tensor) -> bool:
        """Return whether these tensors are meant, and no part or copy of them."""
        return x is self.x and dh is self.dh


@dataclass(frozen=True)
class StandardizedWeight:
    """dW_i = P G_i for x and dh, whose channels are times g_p / s_p, as `Conv2dWeight` has them.

    P is linear: the clipped sum of P G_i is P of that of G_i, which is one batch gradient.

    Attributes:
        used: gives G_i.
        projection: P.
        known: what a gain's gradient has found of some x and dh; None: nothing.
    """

    used: Conv2dWeight
    projection: Projection
    known: Known | None = None
    is_padded: ClassVar[bool] = False

    def numbers(self, x: Tensor, dh: Tensor) -> int:
        """Return how many numbers one example's gradient has."""
        return self.used.numbers(x, dh)

    def formed(self, x: Tensor, dh: Tensor) -> Tensor | None:
        """Return the gradients; None if x and dh take less memory."""
        if self.known is not None and self.known.is_of(x, dh):
            formed = self.known.shared.formed()
            if formed is not None:
                formed = formed * self.known.factor[:, None, None, None]
        else:
            formed = self.used.formed(x, dh)
        return None if formed is None else self._own(formed)

    def materialize(self, x: Tensor, dh: Tensor) -> Tensor:
        """Return the gradients, [n, p, d, k, k]."""
        return self._own(self.used.materialize(x, dh))

    def size(self, x: Tensor, dh: Tensor) -> Size:
        """Return the gradients' sizes, by the Gram form or the direct one, whichever is faster."""
        if self.prefers_gram(x, dh):
            along: tuple[Tensor, ...] = ()
            if self.known is not None and self.known.is_of(x, dh):
                along = (self.known.shared.along() * self.known.factor,)
            return over_chunks(self.size_by_gram, (x, dh, *along), self.numbers_of_gram(x, dh))
        return over_chunks(partial(size_by_forming, self), (x, dh), 2 * self.numbers(x, dh))

    def prefers_gram(self, x: Tensor, dh: Tensor) -> bool:
        """Return whether the Gram form is faster; x and dh may have an axis of views, the second.

        Of several groups it is not taken.
        """
        return self.used.at.groups == 1 and self.used.prefers_gram(x, dh)

    def numbers_of_gram(self, x: Tensor, dh: Tensor) -> int:
        """Return how many numbers the Gram form has at once for an example."""
        return self.used.numbers_of_gram(x, dh)

    def size_by_gram(self, x: Tensor, dh: Tensor, along: Tensor | None = None) -> Size:
        """Return the gradients' sizes by the Gram form, of one view or more.

        |P G|^2 = |G|^2 - sum_p m mean(G_p)^2 - sum_p <U_p, G_p>^2, the last where s_p is scaled.
        What is subtracted is off by at most gamma times the energy each.

        Args:
            x: of examples of one view, or more: [n, d, h, w] or [n, v, d, h, w].
            dh: likewise.
            along: <U_p, G_ip>, [n, p], where it is known, of one view.
        """
        size, m = self.used.size_by_gram(x, dh), self.projection.unit.shape[1]
        means, along = (
            each if x.ndim == 4 else each.unflatten(0, x.shape[:2]).sum(1)
            for each in self._removed(*as_images(x, dh), along)
        )
        removed = m * means.double().square().sum(1) + along.double().square().sum(1)
        roundings = 2 * m + extent(dh).numel() + 32
        squares = (size.squares - removed).clamp(min=0)
        squares = squares + 2 * raised(roundings, dh.dtype) * size.energy
        return size._replace(squares=squares + 2 * size.floor.square())

    def _removed(self, x: Tensor, dh: Tensor, along: Tensor | None) -> tuple[Tensor, Tensor]:
        grads = Conv2dGrads(x, dh, self.used.at, ())
        if along is None:
            return self.projection.means(grads), self.projection.along(grads)
        return self.projection.means(grads), along * self.projection.is_scaled

    def size_of_formed(self, formed: Tensor, x: Tensor, dh: Tensor) -> Size:
        """Return the sizes of the formed gradients; these are added, not their terms."""
        return self.used.size_of_formed(formed, x, dh)

    def terms(self, x: Tensor, dh: Tensor) -> Terms:
        """Return the size of the terms, and the roundings of P: two inner products of m."""
        m = self.projection.unit.shape[1]
        return self.used.terms(x, dh)._replace(roundings=2 * m + 32)

    def num_positions(self, dh: Tensor) -> int:
        """Return the number of output positions."""
        return self.used.num_positions(dh)

    def add_to(self, total: Tensor, x: Tensor, dh: Tensor) -> None:
        """Add the batch gradient to total, [p, d, k, k].

        P of the sum is taken in float64, so that its roundings are none of what examples may lose.
        """
        part = torch.zeros_like(total, dtype=torch.float64)
        self.used.add_to(part, x, dh)
        total += self._own(part)

    def _own(self, used: Tensor) -> Tensor:
        return self.projection.of(used.flatten(-3)).view(used.shape)


@dataclass(frozen=True)
class StandardizedGrads:
    """Layer gradients of a standardised convolution: of W, and of g and the bias if it has them.

    Attributes:
        used: of a convolution by W'.
        projection: P.
        factor: g_p / s_p, [p].
        parameters: the layer's.
    """

    used: Conv2dGrads
    projection: Projection
    factor: Tensor
    parameters: tuple[str, ...]

    def gradient(self, name: str) -> FactoredGrads | MaterializedGrads:
        """Return one parameter's gradients."""
        if name == "bias":
            return self.used.gradient("bias")
        if name == "gain":
            return MaterializedGrads(self._shared.along())
        used = self._times_factor()
        known = None
        if "gain" in self.parameters:
            known = Known(used.x, used.dh, self._shared, self.factor)
        rule = StandardizedWeight(Conv2dWeight(used.at), self.projection, known)
        return FactoredGrads(rule, used.x, used.dh)

    @cached_property
    def _removed(self) -> tuple[Tensor, Tensor]:
        """Return P's along and means of G times the factor, [n, p]: both carriers need them."""
        used = self._times_factor()
        return self.projection.along(used), self.projection.means(used)

    @cached_property
    def _shared(self) -> Shared:
        return Shared(self.used, self.projection.unit)

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dW_i R^T, [n, p, r], or its rows [p'] alone; nothing is formed for it."""
        used, unit = self._times_factor(), self.projection.unit.to(right_basis.dtype)
        along, means = self._removed
        thin, ones = unit @ right_basis.T, right_basis.sum(1)
        if rows is not None:
            along, means, thin = along[:, rows], means[:, rows], thin[rows]
        each = used.left(right_basis, rows).materialize()
        return MaterializedGrads(each - means[:, :, None] * ones - along[:, :, None] * thin)

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return L^T dW_i, [n, r, m], or the columns of some channels [d'] alone."""
        used, unit = self._times_factor(), self.projection.unit.to(left_basis.dtype)
        along, means = self._removed
        if columns is not None:
            unit = unit.unflatten(1, (-1, len(used.at.shifts())))[:, columns].flatten(1)
        each = used.right(left_basis, columns).materialize()
        mixed = means @ left_basis
        return MaterializedGrads(
            each - mixed[:, :, None] - (along[:, None, :] * left_basis.T) @ unit
        )

    def scaled(self, factor: float) -> StandardizedGrads:
        """Return the gradients times a constant."""
        return replace(self, used=self.used.scaled(factor))

    def _times_factor(self) -> Conv2dGrads:
        return replace(self.used, dh=self.used.dh * self.factor[:, None, None])


@rule(
    StandardizedConv2d,
    GainedConv2d,
    parameters=("weight", "gain", "bias"),
    fits=pads_zeros,
)
def of_standardized(layer: StandardizedConv2d, x: Tensor, dh: Tensor) -> StandardizedGrads:
    """Return every example's gradients of W, and of g and the bias where the layer has them."""
    unit, scale, is_scaled = standardized(layer.weight.detach().double())
    gain = layer.gain.detach() if isinstance(layer, GainedConv2d) else torch.ones_like(scale)
    return StandardizedGrads(
        Conv2dGrads.read(layer, x, dh),
        Projection(unit.flatten(1), is_scaled),
        (gain / scale).to(dh.dtype),
        tuple(name for name, _ in layer.named_parameters(recurse=False)),
    )


def standardize(model: nn.Module) -> None:
    """Let a model's convolutions standardise their weights, in place, and print which do not.

    Raises:
        ConfigError: if none can.
    """
    layers, left = [], []
    for name, module in model.named_modules():
        if type(module) is nn.Conv2d and module.weight[0].numel() >= FEWEST:
            layers.append(module)
        elif isinstance(module, _ConvNd) and not isinstance(module, StandardizedConv2d):
            is_small = type(module) is nn.Conv2d
            small = f" of kernels {list(module.weight[0].shape)}" if is_small else ""
            left.append(f"{name}: {type(module).__name__}{small}")
    if not layers:
        why = f"those of this one cannot ({shown(left)})" if left else "this one has none"
        raise ConfigError(
            "Expected a model with convolutions for model.weight_standardization=true, nn.Conv2d "
            f"itself and kernels of at least {FEWEST} numbers; {why}. Leave it out."
        )
    for layer in layers:
        layer.__class__ = StandardizedConv2d
    if left:
        note(model, "not_standardized", left, "convolutions whose weights are not standardised")
