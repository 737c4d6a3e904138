"""3 x 3 convolutions of channels-last images in 16 products where the direct form takes 36.

On a CPU torch takes oneDNN's direct form of all but the smallest. It runs at the processor's peak,
and fewer multiplications are all that is left (docs/decisions/speed.md, "Convolutions by Winograd's
algorithm"). Within `by_winograd` torch's convolutions on a CPU, and their input gradients, take it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor

from dpexp.kernels.compiled import (
    address,
    compiled,
    functions,
    is_channels_last,
    side_by_side,
    struct,
)
from dpexp.kernels.replaced import Kernels, Replaced

NAMES = ("convolution", "convolution_backward")
SAME = ([1, 1], [1, 1], [1, 1])
"""Stride, padding and dilation of the convolutions that are taken."""

LEAST_CHANNELS = 18
"""Least harmonic mean of channels and outputs for which it takes less time (ours, measured).
Entries are computed for each of both, and products are saved for each pair."""

MOST_PRODUCTS = 6
"""Most products of a channel and an output that are worth it, of the direct form's 9 (ours). An
even side has 4, and 3 x 3 images, whose tiles are cut off, have 7.1."""

_own = local()
"""`room`, which a thread keeps between calls, and `is_direct`, whether it is within `directly`."""


@contextmanager
def by_winograd() -> Iterator[None]:
    """Take Winograd's algorithm within the context for what `is_taken`.

    Contexts may lie within each other, and in several threads. Kernels are compiled when the first
    such convolution comes.
    """
    if not hasattr(torch.library, "get_kernel"):
        yield
        return
    _replaced.enter()
    try:
        yield
    finally:
        _replaced.leave()


@contextmanager
def directly() -> Iterator[None]:
    """Leave convolutions of this thread to torch within the context, `by_winograd` or not.

    It is for those whose bound on rounding is of sums of products (docs/privacy/rounding.md).
    """
    before, _own.is_direct = getattr(_own, "is_direct", False), True
    try:
        yield
    finally:
        _own.is_direct = before


def is_taken(
    images: Tensor,
    weight: Tensor,
    outputs: int,
    settings: tuple[Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
) -> bool:
    """Return whether `convolved` supports a convolution, or its input gradient, and is faster.

    It does not depend on the number of images, and so no image's result on the others.

    Args:
        images: [n, c, h, w], the input; or the output gradient.
        weight: [p, d, k, k].
        outputs: channels of the result.
        settings: stride, padding and dilation.
        groups: of the convolution.
    """
    return (
        groups == 1
        and weight.shape[2:] == (3, 3)
        and all(list(one) == wanted for one, wanted in zip(settings, SAME, strict=True))
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and bool(torch.backends.mkldnn.enabled)
        and is_channels_last(images)
        and _is_worth_it(images, outputs)
    )


def _is_on() -> bool:
    """Return whether any are taken. A traced graph (torch.jit.trace) is to hold torch's."""
    is_direct = getattr(_own, "is_direct", False)
    return _replaced.uses > 0 and not is_direct and not torch.jit.is_tracing()


def _is_worth_it(images: Tensor, outputs: int) -> bool:
    """Return whether there are enough channels, which fill vectors, and few tiles are cut off."""
    channels, height, width = images.shape[1:]
    if 2 * channels * outputs < LEAST_CHANNELS * (channels + outputs):
        return False
    if 16 * -(-height // 2) * -(-width // 2) > MOST_PRODUCTS * height * width:
        return False
    library = compiled()
    return library is not None and channels % library.lanes == outputs % library.lanes == 0


def convolved(images: Tensor, weight: Tensor, *, is_backwards: bool = False) -> Tensor:
    """Return a convolution, or its input gradient, of channels-last images.

    Channels and outputs are multiples of `compiled().lanes`; one zero is around the images.

    Args:
        images: [n, c, h, w], the input; or the output gradient, [n, p, h, w].
        weight: [p, c, 3, 3], in any layout.
        is_backwards: whether to return the input gradient. It is the convolution whose kernel is
            turned around, and has inputs and outputs exchanged.

    Returns:
        [n, p, h, w], or [n, c, h, w], channels last.
    """
    library, threads = functions(), torch.get_num_threads()
    images, weight = side_by_side(images), weight.resolve_neg()
    start, (of_output, of_channel, down, along) = address(weight), weight.stride()
    outputs = len(weight)
    if is_backwards:
        start = ctypes.c_void_p(weight.data_ptr() + 4 * 2 * (down + along))  # the last, in bytes
        outputs, of_output, of_channel = weight.shape[1], of_channel, of_output
        down, along = -down, -along
    n, channels, *sides = images.shape
    shape, strides = (
        struct(n, *sides, channels, outputs),
        struct(down, along, of_channel, of_output),
    )
    result = images.new_empty(n, *sides, outputs).permute(0, 3, 1, 2)
    numbers = 16 * channels * outputs
    room = _room(numbers + threads * library.winograd_scratch(shape))
    entries, scratch = room[:numbers], room[numbers:]
    library.winograd_kernel(shape, strides, start, address(entries), threads)
    tensors = map(address, (images, entries, result, scratch))
    library.winograd(shape, *tensors, threads)
    return result


def _room(numbers: int) -> Tensor:
    """Return numbers to write to, the thread's own, which are kept between calls."""
    room = getattr(_own, "room", None)
    if room is None or len(room) < numbers:
        room = _own.room = torch.empty(numbers, dtype=torch.float32, device="cpu")
    return room


def _replacements(kernels: Kernels) -> Kernels:
    """Return what takes each kernel's place; torch's own does what is not taken."""

    def convolution(
        keys: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Tensor:
        settings = stride, padding, dilation
        is_one = _is_on() and not transposed and images.ndim == weight.ndim == 4
        is_one = is_one and images.shape[1] == weight.shape[1]
        is_one = is_one and (bias is None or bias.shape == weight.shape[:1])
        if is_one and is_taken(images, weight, len(weight), settings, groups):
            made = convolved(images, weight)
            return made if bias is None else made.add_(bias[:, None, None])
        rest = (transposed, output_padding, groups)
        return kernels["convolution"].call_boxed(keys, images, weight, bias, *settings, *rest)

    def convolution_backward(
        keys: Any,
        dh: Tensor,
        images: Tensor,
        weight: Tensor,
        bias_sizes: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:
        settings = stride, padding, dilation
        rest = (bias_sizes, *settings, transposed, output_padding, groups)
        of_images, *of_parameters = wanted
        is_one = _is_on() and of_images and not transposed and dh.ndim == weight.ndim == 4
        is_one = is_one and dh.shape[1] == len(weight) and not any(output_padding)
        is_one = is_one and images.shape == (len(dh), weight.shape[1], *dh.shape[2:])
        is_one = is_one and is_channels_last(images)
        if not (is_one and is_taken(dh, weight, weight.shape[1], settings, groups)):
            backward = kernels["convolution_backward"]
            return backward.call_boxed(keys, dh, images, weight, *rest, list(wanted))
        found: tuple[Tensor | None, ...] = (None, None, None)
        if any(of_parameters):
            backward = kernels["convolution_backward"]
            others = [False, *of_parameters]
            found = backward.call_boxed(keys, dh, images, weight, *rest, others)
        return convolved(dh, weight, is_backwards=True), *found[1:]

    return {"convolution": convolution, "convolution_backward": convolution_backward}


_replaced = Replaced(NAMES, _replacements)
