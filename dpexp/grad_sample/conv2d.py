"""The rule for nn.Conv2d: any stride, padding, dilation and groups.

The input is never unfolded into patches: a kernel's gradient is a sum over positions, computed one
k x k shift at a time. Groups are independent convolutions on slices of the channels; they are
folded into the example axis, and m counts examples times groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from dpexp import kernels
from dpexp.grad_sample.chunks import over_chunks
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from dpexp.grad_sample.rounding import (
    TERMS,
    Terms,
    add_,
    size_by_gram,
    size_of_formed,
    size_of_held,
    terms_of,
)
from dpexp.grad_sample.rules import rule
from dpexp.types import Size


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    height, width = sizes
    return height, width


def positions(images: Tensor) -> Tensor:
    """View images [m, c, h, w] as [m, c, h * w], in either memory format without a copy."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.permute(0, 2, 3, 1).flatten(1, 2).mT
    return images.flatten(2)


def kernel_gradients(x: Tensor, dh: Tensor, at: Geometry) -> Tensor:
    """Return every example's kernel gradient, [m, p, d, k, k].

    Args:
        x: [m, d, h, w].
        dh: [m, p, h', w'].
        at: the geometry; groups are already folded into m.
    """
    m, p, d = len(x), dh.shape[1], x.shape[1]
    if kernels.are_taken(x, dh, at.kernel):
        return kernels.kernel_gradients(x, dh, at.kernel, at.stride, at.padding, at.dilation)
    if not _is_grouped_faster(dh, d):
        shifts = torch.stack(list(_shift_by_shift(x, dh, at)), dim=-1)
        return shifts.view(m, p, d, *at.kernel)
    # m examples become m groups of one convolution, so its weight gradient is per example.
    gradients = conv2d_weight(
        x.reshape(1, m * d, *x.shape[2:]),
        (m * p, d, *at.kernel),
        dh.reshape(1, m * p, *dh.shape[2:]),
        at.stride,
        at.padding,
        at.dilation,
        groups=m,
    )
    return gradients.view(m, p, d, *at.kernel)


def _is_grouped_faster(dh: Tensor, d: int) -> bool:
    """Return whether oneDNN's grouped kernels beat one product per shift (ours, measured)."""
    p, positions = dh.shape[1], dh.shape[2] * dh.shape[3]
    is_vector = dh.device.type == "cpu" and dh.dtype == torch.float32 and p % 8 == 0
    return is_vector and positions >= 64 and p * d < 128 * 128


def _shift_by_shift(x: Tensor, dh: Tensor, at: Geometry) -> Iterator[Tensor]:
    """Yield dW_i[:, :, a, b] for every shift (a, b), each [m, p, d].

    dh is spread onto the padded input's grid, with zeros between strides and at row ends. Every
    shift is then one matrix product of two strided views, and no patch is copied.
    """
    (sr, sc), (pr, pc) = at.stride, at.padding
    rows, columns = dh.shape[2], dh.shape[3]
    width = x.shape[3] + 2 * pc
    # The last shifts read past the image's end; an extra row keeps those reads inside the tensor.
    padded = F.pad(x, (pc, pc, pr, pr + 1)).flatten(2)
    if (sr, sc) == (1, 1):
        spread = F.pad(dh, (0, width - columns)).flatten(2)
    else:
        spread = dh.new_zeros(*dh.shape[:2], (rows - 1) * sr + 1, width)
        spread[:, :, ::sr, : (columns - 1) * sc + 1 : sc] = dh
        spread = spread.flatten(2)
    length = spread.shape[2]
    for a, b in at.shifts():
        start = a * at.dilation[0] * width + b * at.dilation[1]
        yield torch.bmm(spread, padded[:, :, start : start + length].mT)


def patch_gram(flat: Tensor, at: Geometry, inputs: torch.Size, outputs: torch.Size) -> Tensor:
    """Return the inner products of the input patches of every two outputs, [m, v h' w', v h' w'].

    <patch_s, patch_t> is the images' Gram matrix summed over k x k diagonal shifts.

    Args:
        flat: the v images of every example, [m, c, v h w].
        at: the geometry.
        inputs: (v, h, w).
        outputs: (v, h', w').
    """
    image = torch.bmm(flat.mT, flat).view(-1, *inputs, *inputs)
    total = flat.new_zeros(len(flat), *outputs, *outputs)
    for a, b in at.shifts():
        out_r, in_r = at.touching(0, a, outputs[1], inputs[1])
        out_c, in_c = at.touching(1, b, outputs[2], inputs[2])
        total[:, :, out_r, out_c, :, out_r, out_c] += image[:, :, in_r, in_c, :, in_r, in_c]
    return total.view(len(flat), outputs.numel(), -1)


def extent(images: Tensor) -> torch.Size:
    """Return (v, h, w) of images [n, v, c, h, w], or of one view's, [n, c, h, w]."""
    views = images.shape[1] if images.ndim == 5 else 1
    return torch.Size((views, *images.shape[-2:]))


def as_images(x: Tensor, dh: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and gradients as images [n v, c, h, w]."""
    return (x, dh) if x.ndim == 4 else (x.flatten(0, 1), dh.flatten(0, 1))


def _flat(images: Tensor) -> Tensor:
    """Return images as [n, c, v h w]."""
    return positions(images) if images.ndim == 4 else images.transpose(1, 2).flatten(2)


def _mixed(images: Tensor, weights: Tensor) -> Tensor:
    """Return weights @ image at every position, [m, r, h, w], for weights [r, c]."""
    if images.is_contiguous():
        mixed = torch.matmul(weights, images.flatten(2))
        return mixed.view(-1, len(weights), *images.shape[2:])
    return F.conv2d(images, weights[:, :, None, None])  # in the images' memory format


def _channels(images: Tensor, some: Tensor | None) -> Tensor:
    """Pick channels [c'] of images [m, c, h, w], in their memory format; None: all."""
    if some is None or images.is_contiguous():
        return images if some is None else images[:, some]
    last = images.permute(0, 2, 3, 1)  # indexing would lose channels_last
    return last.gather(3, some.expand(*last.shape[:3], -1)).permute(0, 3, 1, 2)


def _products(dh: Tensor, thin: Tensor) -> Tensor:
    """Sum dh_i thin_i^T over positions, [m, p, r], for dh [m, p, h, w] and thin [m, r, h, w]."""
    one = (1, 1)
    if kernels.are_taken(dh, thin, one):  # from p channels to r, transposed
        return kernels.kernel_gradients(dh, thin, one).flatten(2).mT
    return torch.bmm(positions(dh), positions(thin).mT)


@dataclass(frozen=True)
class Conv2dWeight:
    """dW_i for x [n, groups * d, h, w] and dh [n, groups * p, h', w']."""

    at: Geometry
    is_padded: ClassVar[bool] = False

    def numbers(self, x: Tensor, dh: Tensor) -> int:
        """Return how many numbers one example's gradient has."""
        return dh.shape[1] * (x.shape[1] // self.at.groups) * len(self.at.shifts())

    def formed(self, x: Tensor, dh: Tensor) -> Tensor | None:
        """Return the gradients [n, groups * p, d, k, k]; None if x and dh take less memory.

        Those of a depthwise convolution are always formed: k k numbers a channel.
        """
        held = x.shape[1:].numel() + dh.shape[1:].numel()
        is_small = self.numbers(x, dh) <= held and not self.prefers_gram(x, dh)
        return self.materialize(x, dh) if is_small or self._is_depthwise(x, dh) else None

    def _is_depthwise(self, x: Tensor, dh: Tensor) -> bool:
        return x.ndim == 4 and 1 < self.at.groups == x.shape[1] == dh.shape[1]

    def materialize(self, x: Tensor, dh: Tensor) -> Tensor:
        """Return the gradients, [n, groups * p, d, k, k]."""
        at = self.at
        if self._is_depthwise(x, dh):
            geometry = at.kernel, at.stride, at.padding, at.dilation
            formed = kernels.depthwise_gradients(x, dh, *geometry)
            if formed is not None:
                return formed
        formed = kernel_gradients(at.fold(x), at.fold(dh), at)
        return formed.view(len(x), dh.shape[1], -1, *at.kernel)

    def kept_squares(self, x: Tensor, dh: Tensor, is_kept: Tensor) -> Tensor | None:
        """Return the squared norms of entries that are kept, [n]; None where they must be formed.

        Args:
            x: [n, d, h, w].
            dh: [n, p, h', w'].
            is_kept: [p d k k], booleans.
        """
        at = self.at
        if at.groups > 1 or x.ndim != 4 or not kernels.are_taken(x, dh, at.kernel):
            return None
        geometry = at.kernel, at.stride, at.padding, at.dilation
        return kernels.kept_squares(x, dh, is_kept, *geometry)

    def size(self, x: Tensor, dh: Tensor) -> Size:
        """Return the gradients' sizes, by the Gram form or the direct one, whichever is faster."""
        folded = self.at.fold(x), self.at.fold(dh)
        if self.prefers_gram(x, dh):
            bounds = over_chunks(self.size_by_gram, folded, self.numbers_of_gram(*folded))
        else:
            d, p = (images.shape[1] for images in folded)
            held = sum(images[0].numel() for images in folded)
            numbers = p * d * len(self.at.shifts()) + held
            bounds = over_chunks(self._by_forming, folded, numbers)
        return Size(*(self.at.unfold(bound).sum(1) for bound in bounds))

    def size_of_formed(self, formed: Tensor, x: Tensor, dh: Tensor) -> Size:
        """Return the sizes of the formed gradients; images have one size, so none is padded."""
        return over_chunks(size_of_held, (formed,), formed[0].numel())

    def terms(self, x: Tensor, dh: Tensor) -> Terms:
        """Return the size of the terms: an input patch times the gradient at its output."""
        *bounds, roundings = self._terms(self.at.fold(x), self.at.fold(dh))
        energy, floor, unseen = (self.at.unfold(bound).sum(1) for bound in bounds)
        return Terms(energy, floor, unseen, roundings)

    def num_positions(self, dh: Tensor) -> int:
        """Return the number of output positions."""
        return dh.shape[2] * dh.shape[3]

    def prefers_gram(self, x: Tensor, dh: Tensor) -> bool:
        """Return whether the Gram form is faster; x and dh may have an axis of views, the second.

        Of several views and several groups it is not taken.
        """
        if x.ndim == 5 and self.at.groups > 1:
            return False
        d, p = x.shape[-3] // self.at.groups, dh.shape[-3] // self.at.groups
        inputs, outputs = (extent(images).numel() for images in (x, dh))
        taps = len(self.at.shifts())
        gram = d * inputs**2 + (p + taps) * outputs**2
        is_taken = kernels.are_taken(*as_images(x, dh), self.at.kernel)
        if self.at.groups == 1 and is_taken:
            gram *= kernels.SLOWNESS
        return gram <= taps * p * d * outputs

    def numbers_of_gram(self, x: Tensor, dh: Tensor) -> int:
        """Return how many numbers the Gram form has at once for an example."""
        return extent(x).numel() ** 2 + 3 * extent(dh).numel() ** 2

    def size_by_gram(self, x: Tensor, dh: Tensor) -> Size:
        """Return the gradients' sizes by the Gram form, of one view [n, ...] or more [n, v, ...].

        Inputs are not of several groups.
        """
        flat, of_dh = (_flat(images) for images in (x, dh))
        patches = patch_gram(flat, self.at, extent(x), extent(dh))
        of_dh = torch.bmm(of_dh.mT, of_dh)
        inputs, outputs = (gram.diagonal(dim1=1, dim2=2) for gram in (patches, of_dh))
        some = as_images(x, dh)
        terms = self._terms_of(inputs, outputs, *some)
        return size_by_gram(patches * of_dh, terms, self._roundings(*some))

    def _by_forming(self, x: Tensor, dh: Tensor) -> Size:
        formed = size_of_held(kernel_gradients(x, dh, self.at))
        return size_of_formed(formed, self._terms(x, dh), self.num_positions(dh), dh.dtype)

    def _terms(self, x: Tensor, dh: Tensor) -> Terms:
        at = self.at
        of_x, of_dh = (
            torch.linalg.vector_norm(images, dim=1, keepdim=True).double().square()
            for images in (x, dh)
        )
        ones = of_x.new_ones(1, 1, *at.kernel)
        patches = F.conv2d(of_x, ones, None, at.stride, at.padding, at.dilation)
        return self._terms_of(patches.flatten(1), of_dh.flatten(1), x, dh)

    def _roundings(self, x: Tensor, dh: Tensor) -> int:
        """Return the number of roundings in both inner products.

        A patch's inner product adds one inner product over channels per shift.
        """
        return x.shape[1] + len(self.at.shifts()) + dh.shape[1]

    def _terms_of(self, of_x: Tensor, of_dh: Tensor, x: Tensor, dh: Tensor) -> Terms:
        """Return the size of the terms from squared norms at every position.

        The energy of a large image is raised: the library adds up all its positions in a row.
        """
        dims = (x.shape[1] * len(self.at.shifts()), dh.shape[1])
        terms = terms_of(of_x, of_dh, dims, dh.dtype, self._roundings(x, dh))
        share = max(1.0, of_dh.shape[1] / (4 * TERMS))
        return terms._replace(energy=terms.energy * share**2)

    def add_to(self, total: Tensor, x: Tensor, dh: Tensor) -> None:
        """Add the batch gradient to total, [groups * p, d, k, k] or flattened kernels."""
        at = self.at
        size = (dh.shape[1], x.shape[1] // at.groups, *at.kernel)
        added = conv2d_weight(x, size, dh, at.stride, at.padding, at.dilation, at.groups)
        add_(total, added.reshape(total.shape))  # may be channels_last, like x


@dataclass(frozen=True)
class Conv2dMatrix(Conv2dWeight):
    """As Conv2dWeight, with flattened kernels: dW_i is [p, d k k]."""

    def materialize(self, x: Tensor, dh: Tensor) -> Tensor:
        """Return the gradients, [n, p, d k k]."""
        return super().materialize(x, dh).flatten(2)


def pads_zeros(layer: nn.modules.conv._ConvNd) -> bool:
    """Return whether a convolution pads with zeros, as its rule assumes."""
    return layer.padding_mode == "zeros"


@dataclass(frozen=True)
class Conv2dGrads:
    """Layer gradients of a Conv2d: x [n, channels, h, w] and dh [n, outputs, h', w']."""

    x: Tensor
    dh: Tensor
    at: Geometry
    parameters: tuple[str, ...]

    @classmethod
    def read(cls, layer: nn.Conv2d, x: Tensor, dh: Tensor) -> Conv2dGrads:
        """Return the layer's gradients; a string padding is applied to the input here."""
        padding = layer.padding
        if isinstance(padding, str):  # "same" may pad asymmetrically
            x, padding = F.pad(x, layer._reversed_padding_repeated_twice), (0, 0)
        names = ("weight",) if layer.bias is None else ("weight", "bias")
        kernel, stride, dilation = map(_pair, (layer.kernel_size, layer.stride, layer.dilation))
        at = Geometry(kernel, stride, _pair(padding), dilation, layer.groups)
        return cls(x, dh, at, names)

    def gradient(self, name: str) -> FactoredGrads | MaterializedGrads:
        """Return the kernel's gradient, or the bias's dh_i summed over positions."""
        if name == "bias":
            return MaterializedGrads(self.dh.sum((2, 3)))
        return FactoredGrads(Conv2dWeight(self.at), self.x, self.dh)

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dL_i = dh_i (R x_i)^T, [n, p, r], or its rows [p'] alone.

        A thin k x k convolution, then one product.
        """
        at, n = self.at, len(self.x)
        if rows is not None and at.groups > 1:  # whose rows have inputs of their own
            return MaterializedGrads(self.left(right_basis).values.index_select(1, rows))
        if self._is_small_beside(len(right_basis)):
            return MaterializedGrads(self._formed @ right_basis.T)
        x, dh = at.fold(self.x), _channels(self.dh, rows)
        kernel = right_basis.reshape(len(right_basis), x.shape[1], *at.kernel)
        thin = F.conv2d(x, kernel, None, at.stride, at.padding, at.dilation)
        each = _products(at.fold(dh), thin)
        return MaterializedGrads(each.view(n, -1, len(right_basis)))

    def right(
        self, left_basis: Tensor, columns: Tensor | None = None
    ) -> FactoredGrads | MaterializedGrads:
        """Return dR_i = (L^T dh_i) x_i^T, [n, r, d k k], or the columns of some channels [d'].

        It is the kernel gradient of a convolution with r outputs, whose dh_i is L^T dh_i.
        """
        at, (p, r) = self.at, left_basis.shape
        if columns is not None and at.groups > 1:
            each = self.right(left_basis).materialize().unflatten(2, (-1, len(at.shifts())))
            return MaterializedGrads(each.index_select(2, columns).flatten(2))
        x = _channels(self.x, columns)
        if at.groups == 1:
            return FactoredGrads(Conv2dMatrix(at), x, _mixed(self.dh, left_basis.T))
        if self._is_small_beside(r):
            return MaterializedGrads(left_basis.T @ self._formed)
        dh = self.dh.reshape(len(self.dh), at.groups, p // at.groups, -1)
        bases = left_basis.reshape(at.groups, p // at.groups, r).mT
        thin = torch.matmul(bases, dh).view(-1, r, *self.dh.shape[2:])
        return MaterializedGrads(
            at.unfold(kernel_gradients(at.fold(x), thin, at).flatten(2)).sum(1)
        )

    def _is_small_beside(self, rank: int) -> bool:
        """Return whether a group has no more outputs than both carriers of it have.

        A carrier's convolution then takes no less than the gradient's own, which serves both.
        """
        return self.at.groups > 1 and self.dh.shape[1] // self.at.groups <= 2 * rank

    @cached_property
    def _formed(self) -> Tensor:
        """The kernels' gradients, [n, p, d k k]."""
        return Conv2dMatrix(self.at).materialize(self.x, self.dh)

    def scaled(self, factor: float) -> Conv2dGrads:
        """Return the gradients times a constant."""
        return replace(self, dh=factor * self.dh)


rule(nn.Conv2d, fits=pads_zeros)(Conv2dGrads.read)
