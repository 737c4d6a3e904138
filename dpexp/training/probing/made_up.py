"""Synthetic examples of the data's shape; no private one is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpexp.imported import is_written_in
from dpexp.models.vocabulary import ended, token_table
from dpexp.privacy.seeds import generator
from dpexp.training.probing.largest import is_finite_of, largest, takes
from dpexp.types import Batch

WIDEST = 64
"""Tokens of the longest synthetic text (ours): more than the windows of small attention."""


FAR, NEAR = 32.0, 1 / 64
"""Factor of an extreme example, and distance of a neighbour (ours)."""

SERIES = 2
"""Axes of an example that may be a series of numbers; what has more is a picture (ours)."""

FIRST, SECOND = 4, 2
"""Positions of the first two examples in the crowd."""

SAME = 5
"""Position of the first one's copy with another target."""


NEARBY, FARTHER = [1, 3, FIRST, SAME, 6, 8], [0, SECOND, 7]
"""Positions of those close to the first or of few tokens, and of those that are neither."""

COUNT = len(NEARBY) + len(FARTHER)


class MadeUp(NamedTuple):
    """Examples in several batches, so that a dependence hidden in one batch shows in another.

    Attributes:
        one: the second and the first; of texts, the first is shorter.
        other: the second and a third.
        alone: the first alone, without the padding that its longer neighbour needs.
        crowd: the first (at `FIRST`), the second (at `SECOND`) and seven more: some close to the
            first on either side, its copy, some opposite, some extreme. Where a zero may be padding
            there are some that end in zeros, too; in tables and series some of small whole numbers,
            as words are counted, and some with missing values if the model takes them.
        turned: the crowd from its last to its first: what sorts examples, and puts back what it
            sorted, may leave each at its place in one of the two.
        singles: single examples of the crowd by position, except that of `alone`.
        parts: the crowd's positions and their examples: short ones (of texts), ones that end in
            zeros, and others apart.
    """

    one: Batch
    other: Batch
    alone: Batch
    crowd: Batch
    turned: Batch
    singles: dict[int, Batch]
    parts: list[tuple[list[int], Batch]]

    def to(self, dtype: torch.dtype) -> MadeUp:
        """Return them with floating-point inputs and targets of another dtype."""
        return MadeUp(
            _of_dtype(self.one, dtype),
            _of_dtype(self.other, dtype),
            _of_dtype(self.alone, dtype),
            _of_dtype(self.crowd, dtype),
            _of_dtype(self.turned, dtype),
            {at: _of_dtype(batch, dtype) for at, batch in self.singles.items()},
            [(rows, _of_dtype(batch, dtype)) for rows, batch in self.parts],
        )

    def of_sizes(self, sizes: Sequence[int]) -> Iterator[Batch]:
        """Return the last so many examples of the crowd, which end in zeros where any do."""
        for size in sizes:
            yield Batch(self.turned.inputs[:size], self.turned.targets[:size])


def make_up(task: Any, model: nn.Module, device: torch.device, dtype: torch.dtype) -> MadeUp:
    """Return random examples of a task's shape.

    Args:
        task: an empty batch of its training set gives shape and dtype.
        model: its embedding gives the range of token ids; other integers are tried on it.
        device: the model's.
        dtype: of floating-point inputs and targets.
    """
    gen = generator(0, "made-up", 0)
    empty = _empty(task.train)
    longest = getattr(task.train, "longest", None)
    if longest is None:
        inputs, third = _numbers(empty.inputs, model, gen)
        if inputs.is_floating_point() and inputs[FIRST].ndim <= SERIES:
            more = (
                _counted(inputs[FIRST], gen),
                _missing(inputs[SECOND], inputs[FIRST], model, dtype),
            )
            inputs = torch.cat([inputs, *more])
        if _may_be_padded(task.train):
            padded = _padded(inputs[SECOND], model, dtype)
            inputs = torch.cat([inputs, ended(model, padded)])
        lengths = None
    else:
        inputs, third, lengths = _texts(longest, model, gen)
    count = len(inputs) + 1
    shape = (count, *empty.targets.shape[1:])  # several numbers an example, of a task of one's own
    if empty.targets.is_floating_point():
        targets = torch.randn(shape, generator=gen)
        targets[SAME] = targets[FIRST] + 1
    else:
        targets = torch.randint(task.num_classes, shape, generator=gen)
        targets[SAME] = (targets[FIRST] + 1) % task.num_classes

    def batch(some: Tensor, places: list[int]) -> Batch:
        chosen = Batch(some, targets[places])
        return _of_dtype(Batch(chosen.inputs.to(device), chosen.targets.to(device)), dtype)

    def part(rows: list[int]) -> Batch:
        own = inputs[rows]
        if lengths is not None:
            own = own[:, :, : max(lengths[row] for row in rows)]
        return batch(own, rows)

    crowd = list(range(len(inputs)))
    return MadeUp(
        batch(inputs[[SECOND, FIRST]], [SECOND, FIRST]),
        batch(torch.stack([inputs[SECOND], third]), [SECOND, count - 1]),
        part([FIRST]),
        batch(inputs, crowd),
        batch(inputs.flip(0), crowd[::-1]),
        {at: part([at]) for at in crowd if at not in (FIRST, SAME)},
        [(rows, part(rows)) for rows in (NEARBY, FARTHER, crowd[COUNT:]) if rows],
    )


def _empty(examples: Any) -> Batch:
    """Return an empty batch; of an example where a set of anyone's own fails on none.

    A step that draws nobody asks `micro_batches` alone, so that such a set may train.
    """
    try:
        return examples.batch(torch.arange(0))
    except Exception:  # whatever a user's code raises
        if is_written_in(type(examples), "dpexp"):
            raise
        batch = examples.batch(torch.arange(1))
        return Batch(batch.inputs[:0], batch.targets[:0])


def _of_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    seen, wanted = (
        each.to(dtype) if each.is_floating_point() else each
        for each in (batch.inputs, batch.targets)
    )
    return Batch(seen, wanted)


def _numbers(like: Tensor, model: nn.Module, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a crowd, and a third example that is not in it.

    Integers are as large as the model takes them: what is clamped to 1 differs from 2 on.
    """
    shape = like.shape[1:]
    if not like.is_floating_point():
        most = largest(model, shape, like.dtype)
        least = (most > 1).long()  # an id of 0 often stands for padding
        drawn = torch.randint(2**31, (7, *shape), generator=gen)
        first, second, third, *more = least + drawn % (most - least + 1)
        crowd = [most, more[0], second, more[1], first, first, more[2], least, more[3]]
        drawn = ended(model, torch.stack([*crowd, third]).to(like.dtype))
        return drawn[:-1], drawn[-1]
    first, second, third, aside = torch.randn((4, *shape), generator=gen)
    aside = NEAR * aside
    crowd = [
        FAR * third, first + aside, second, -first, first, first, first - aside, third / FAR,
        -FAR * second,
    ]  # fmt: skip
    return torch.stack(crowd), third


def _may_be_padded(train: Any) -> bool:
    """Return whether a zero of the data is a zero in batches."""
    return getattr(train, "inputs", None) is not None and getattr(train, "mean", None) is None


def _counted(example: Tensor, gen: torch.Generator) -> Tensor:
    """Return examples [5, ...] of whole numbers, as kinds and counts are: -1 to 3 at each place."""
    first = torch.randint(0, 5, example.shape, generator=gen)
    return torch.stack([(first + turn) % 5 - 1 for turn in range(5)]).to(example.dtype)


def _missing(example: Tensor, beside: Tensor, model: nn.Module, dtype: torch.dtype) -> Tensor:
    """Return copies [k, ...] of an example [...] that lack every other number, or every third.

    Those of which the model makes no finite outputs, beside an example that lacks none, are left
    out.
    """
    copies = []
    for every in (2, 3):
        copy = example.clone()
        copy.view(-1)[::every] = math.nan
        if is_finite_of(model, torch.stack([beside, copy]).to(dtype)):
            copies.append(copy)
    return torch.stack(copies) if copies else example.new_empty((0, *example.shape))


def _padded(example: Tensor, model: nn.Module, dtype: torch.dtype) -> Tensor:
    """Return copies [k, ...] of an example [...] that end in zeros along its first or last axis.

    Those that the model does not take are left out: an example of zeros may not be one.
    """
    copies = []
    for axis in sorted({0, example.ndim - 1} if example.ndim else ()):
        length = example.shape[axis]
        for kept in sorted({(length + 1) // 2, 1} if length > 1 else ()):
            copy = example.clone()
            copy.narrow(axis, kept, length - kept).zero_()
            copy = ended(model, copy[None])[0]
            seen = copy.to(dtype) if copy.is_floating_point() else copy
            if takes(model, seen[None]):
                copies.append(copy)
    return torch.stack(copies) if copies else example.new_empty((0, *example.shape))


def _texts(
    longest: int, model: nn.Module, gen: torch.Generator
) -> tuple[Tensor, Tensor, list[int]]:
    """Return a crowd of texts [9, 3, t], a third text, and the length of each text of the crowd."""
    table = token_table(model)
    rows = 2 if table is None else table.num_embeddings
    pad = 0 if table is None or table.padding_idx is None else table.padding_idx
    width = min(longest, WIDEST)
    half = max(1, width // 2 + 1)
    own = [width, 1, width, half + 1, half, half, half - 1, width, 2, width]
    lengths = torch.tensor([min(max(1, length), width) for length in own])[:, None]
    ids = torch.randint(1, max(2, rows), (len(own), width), generator=gen)
    ids[SAME], ids[0], ids[7] = ids[FIRST].clone(), rows - 1, 1
    ids = (ids + (ids == pad)).clamp(max=rows - 1)
    at = torch.arange(width)
    is_token = at < lengths
    ids = torch.where(is_token, ids, pad)
    second = (at >= (lengths + 1) // 2) & is_token
    texts = torch.stack([ids, is_token.long(), second.long()], dim=1)
    return texts[:-1], texts[-1], lengths[:-1, 0].tolist()
