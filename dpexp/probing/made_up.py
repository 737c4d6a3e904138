"""Made-up examples of the data's shape: no private one is looked at."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpexp.models.vocabulary import token_table
from dpexp.seeds import generator
from dpexp.types import Batch

WIDEST = 11
"""Tokens of the longest made-up text (ours): enough for one text to have padding."""


class MadeUp(NamedTuple):
    """Two examples in three companies: what one of them outweighs shows in the other.

    Attributes:
        one: both; of texts, the second is shorter.
        other: the first beside a third.
        alone: the second by itself, without the padding that its longer neighbour asks for.
    """

    one: Batch
    other: Batch
    alone: Batch


def make_up(task: Any, model: nn.Module, device: torch.device, dtype: torch.dtype) -> MadeUp:
    """Draw three examples of a task's shape.

    Args:
        task: its training set is asked for an empty batch, which tells shape and kind.
        model: whose embedding says what token ids there are.
        device: the model's.
        dtype: of inputs and targets that are not whole numbers.
    """
    gen = generator(0, "made-up", 0)
    empty = task.train.batch(torch.arange(0))
    longest = getattr(task.train, "longest", None)
    if longest is None:
        inputs = _numbers(3, empty.inputs, gen)
        alone = inputs[:1]
    else:
        inputs, length = _texts(3, longest, model, gen)
        alone = inputs[:1, :, :length]
    if empty.targets.is_floating_point():
        targets = torch.randn(3, generator=gen)
    else:
        targets = torch.randint(task.num_classes, (3,), generator=gen)

    def batch(some: Tensor, places: list[int]) -> Batch:
        chosen = Batch(some, targets[places])
        tensors = [chosen.inputs.to(device), chosen.targets.to(device)]
        return Batch(*(t.to(dtype) if t.is_floating_point() else t for t in tensors))

    return MadeUp(batch(inputs[[1, 0]], [1, 0]), batch(inputs[[1, 2]], [1, 2]), batch(alone, [0]))


def _numbers(count: int, like: Tensor, gen: torch.Generator) -> Tensor:
    shape = (count, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, generator=gen)
    return torch.randint(2, shape, generator=gen).to(like.dtype)


def _texts(count: int, longest: int, model: nn.Module, gen: torch.Generator) -> tuple[Tensor, int]:
    """Draw texts [count, 3, t], the first shorter than the rest, and its length."""
    table = token_table(model)
    rows = 2 if table is None else table.num_embeddings
    pad = 0 if table is None or table.padding_idx is None else table.padding_idx
    width = min(longest, WIDEST)
    lengths = torch.tensor([max(1, width // 2 + 1)] + [width] * (count - 1))[:, None]
    ids = torch.randint(1, max(2, rows), (count, width), generator=gen)
    ids = (ids + (ids == pad)).clamp(max=rows - 1)
    at = torch.arange(width)
    is_token = at < lengths
    ids = torch.where(is_token, ids, pad)
    second = (at >= (lengths + 1) // 2) & is_token
    return torch.stack([ids, is_token.long(), second.long()], dim=1), int(lengths[0])
