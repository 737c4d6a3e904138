"""Whether passes over examples wrote to a model's parameters, which leave without noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpexp.training.states import marks
from dpexp.types import ConfigError


class Seen(NamedTuple):
    """Parameters at one moment.

    Attributes:
        names: in the model's order.
        marks: whose tensors they were, and how often written to.
        content: of each a hash and two sums, since a write through `.data` is not counted.
    """

    names: tuple[str, ...]
    marks: list[tuple[int, int]]
    content: list[tuple[int, ...]]


@torch.no_grad()
def look_at(model: nn.Module, without: Collection[str] = ()) -> Seen:
    """Return what parameters are now.

    Args:
        model: any module.
        without: names of parameters that are written to as they should be.
    """
    held = {name: each for name, each in model.named_parameters() if name not in without}
    tensors = [*held.values()]
    return Seen(tuple(held), marks(tensors), _content(tensors))


def _content(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    if not tensors:
        return []
    hashes = torch.stack([torch.hash_tensor(each) for each in tensors]).tolist()
    sums = torch.stack([torch.stack(_sums(each)) for each in tensors]).tolist()
    return [(one, *others) for one, others in zip(hashes, sums, strict=True)]


def _sums(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum of a tensor's bytes, eight at a time, and the bits of a sum of its numbers.

    The first sees what the second loses to rounding. The second sees signs that change in pairs,
    which are lost in the first as they are in a hash by exclusive or. Where bytes cannot be taken
    so, the numbers are added in float64, which takes 25 to 40 times as long.
    """
    strides = tensor.stride()
    dense = tensor.permute(sorted(range(tensor.ndim), key=lambda axis: -strides[axis]))
    start = tensor.storage_offset() * tensor.element_size()
    if dense.is_contiguous() and tensor.nbytes % 8 == 0 == start % 8 and not tensor.is_neg():
        of_bytes = dense.view(-1).view(torch.int64).sum()
        precise = torch.promote_types(tensor.dtype, torch.float32)
        return of_bytes, dense.sum(dtype=precise).double().view(torch.int64)
    of_numbers = tensor.sum(dtype=torch.float64).view(torch.int64)
    return of_numbers, of_numbers


def require_unwritten(before: Seen, model: nn.Module, without: Collection[str] = ()) -> None:
    """Refuse a model whose passes over examples have written to a parameter, or replaced it.

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
        f"Expected a model that leaves its parameters as they are; {name!r} is written to as "
        "examples pass, and what it takes up would leave without noise. Nothing of this step has "
        "left. Remove it, or hold it fixed."
    )
