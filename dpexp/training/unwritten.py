"""Whether passes over examples wrote to what leaves with a model's weights, without noise."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpexp.training.states import marks
from dpexp.types import ConfigError

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by their bytes."""

FACTOR = 0x9E3779B1
"""An odd number larger than the side of any square of words (ours)."""


class Seen(NamedTuple):
    """Parameters, and what else a model's state has, at one moment.

    Attributes:
        names: in the model's order.
        marks: whose tensors they were, and how often written to; of the rest its content counts.
        content: of each a hash and two sums, since a write through `.data` is not counted.
    """

    names: tuple[str, ...]
    marks: list[tuple[int, int]]
    content: list[tuple[int, ...]]


@torch.no_grad()
def look_at(model: nn.Module, without: Collection[str] = ()) -> Seen:
    """Return what parameters, and the rest of a model's state, are now.

    Args:
        model: any module.
        without: names of parameters that are written to as they should be.
    """
    held = {name: each for name, each in model.named_parameters() if name not in without}
    held = {name: each for name, each in held.items() if each.numel()}  # the others hold nothing
    kept = dict(_kept_beside(model))
    marked = marks([*held.values()]) + [(0, 0)] * len(kept)
    return Seen((*held, *kept), marked, _content([*held.values(), *kept.values()]))


def _kept_beside(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what a model's state has beside its parameters: buffers, an extra state, a hook's."""
    own = {each.data_ptr() for each in model.parameters()}
    for name, each in model.state_dict().items():
        if isinstance(each, Tensor) and each.numel() and each.data_ptr() not in own:
            yield name, torch.view_as_real(each) if each.is_complex() else each


@torch.no_grad()
def content_of(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return a hash and two sums of each tensor that holds anything."""
    return _content([each for each in tensors if each.numel()])


def _content(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    if not tensors:
        return []
    hashes = torch.stack([torch.hash_tensor(each) for each in tensors]).tolist()
    sums = torch.stack([torch.stack(_sums(each)) for each in tensors]).tolist()
    return [(one, *others) for one, others in zip(hashes, sums, strict=True)]


def _sums(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum of a tensor's bytes, eight at a time, and the bits of a sum of its numbers.

    The first sees what the second loses to rounding, and numbers that change places. The second
    sees signs that change in pairs, which may be lost in the first as they are in a hash by
    exclusive or. Where bytes cannot be taken so, every number is converted first, which takes 25 to
    40 times as long.
    """
    strides = tensor.stride()
    dense = tensor.permute(sorted(range(tensor.ndim), key=lambda axis: -strides[axis]))
    start = tensor.storage_offset() * tensor.element_size()
    if dense.is_contiguous() and tensor.nbytes % 8 == 0 == start % 8 and not tensor.is_neg():
        precise = torch.promote_types(tensor.dtype, torch.float32)
        of_numbers = dense.sum(dtype=precise).double().view(torch.int64)
        return _by_place(dense.view(-1).view(torch.int64)), of_numbers
    bits = tensor.resolve_neg().flatten().view(BITS[tensor.element_size()])
    return _by_place(bits.long()), tensor.sum(dtype=torch.float64).view(torch.int64)


def _by_place(words: Tensor) -> Tensor:
    """Return the sum, modulo 2^64, of words [n] times weights that differ from place to place.

    A word in row i and column j of a square has 1 + i + FACTOR j, which takes the sums of rows and
    columns alone, and so holds nothing as large as the words. The k-th of the rest, from 1, has
    FACTOR^2 k.
    """
    side = math.isqrt(len(words))
    square, rest = words[: side * side].view(side, side), words[side * side :]
    rows, columns = square.sum(1), square.sum(0)
    total = rows.sum() + _weighed(rows) + FACTOR * _weighed(columns)
    return total + FACTOR * FACTOR * (rest.sum() + _weighed(rest))


def _weighed(sums: Tensor) -> Tensor:
    return (sums * torch.arange(len(sums), device=sums.device)).sum()


def require_unwritten(before: Seen, model: nn.Module, without: Collection[str] = ()) -> None:
    """Refuse a model whose passes over examples have written to a parameter, or replaced it.

    Or changed what else is kept with the weights: be it a count of calls, it tells how many
    examples were drawn.

    Raises:
        ConfigError: naming the first one.
    """
    now = look_at(model, without)
    if now == before:
        return
    same = dict(zip(now.names, zip(now.marks, now.content, strict=True), strict=True))
    told = zip(before.names, zip(before.marks, before.content, strict=True), strict=True)
    name = next((name for name, was in told if same.get(name) != was), now.names[-1])
    raise ConfigError(
        f"Expected a model that leaves its parameters and buffers as they are; {name!r} is written "
        "to as examples pass, and what it takes up would leave without noise. Nothing of this step "
        "has left. Remove it, or hold it fixed."
    )
