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
        content: of each a hash and a sum, since a write through `.data` is not counted.
    """

    names: tuple[str, ...]
    marks: list[tuple[int, int]]
    content: list[tuple[int, int]]


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


def _content(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    if not tensors:
        return []
    hashes = torch.stack([torch.hash_tensor(each) for each in tensors]).tolist()
    sums = torch.stack([_sum(each) for each in tensors]).tolist()
    return list(zip(hashes, sums, strict=True))


def _sum(tensor: Tensor) -> Tensor:
    """Return a sum in int64 of a tensor's bytes, eight at a time; or the bits of its float64 sum.

    The second converts all numbers first, and takes 25 to 40 times as long.
    """
    start = tensor.storage_offset() * tensor.element_size()
    if tensor.is_contiguous() and tensor.nbytes % 8 == 0 == start % 8:
        return tensor.view(-1).view(torch.int64).sum()
    return tensor.sum(dtype=torch.float64).view(torch.int64)


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
