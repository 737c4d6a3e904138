"""Check that a set of examples of anyone's own gives each example by itself, and always the same.

What subtracts a batch's mean as it is read, or sorts by the sizes of classes, lets one example move
its neighbours' gradients, too. A set that names an example twice lets it add two clip norms.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dpexp.imported import is_written_in
from dpexp.training.probing.check import CLEAR
from dpexp.training.probing.recorder import gap
from dpexp.training.probing.stage import chance_kept
from dpexp.types import Batch, ConfigError

ROWS, EVERY = 160, 16
"""Examples that are read together, and how far those lie apart that are read alone (ours)."""


def check_examples(examples: Any) -> None:
    """Compare examples that are read together with each by itself, and with other readings.

    The suite's own sets are known to keep examples apart. Of others, training examples are read.

    Args:
        examples: the training set.

    Raises:
        ConfigError: what is read as an example depends on what is read beside it, or before.
    """
    if is_written_in(type(examples), "dpexp") or not len(examples):
        return
    name, count = type(examples).__name__, len(examples)
    some = torch.linspace(0, count - 1, min(ROWS, count)).long()
    with chance_kept([]):
        whole, again = (_read(examples, some, name) for _ in range(2))
        if not all(map(_are_alike, whole, again)):
            raise ConfigError(
                f"Expected training examples that stay as they are; {name} gives others when the "
                "same are read again. Draw at random in an augmentation, whose draws are given to "
                "it, and let `batch` read alone."
            )
        every = torch.arange(len(some))
        for rows in (every.flip(0), every[::2], *every[::EVERY].split(1)):
            others = _read(examples, some[rows], name)
            if not all(_are_alike(a, b[rows]) for a, b in zip(others, whole, strict=True)):
                raise ConfigError(
                    f"Expected a training set that keeps examples apart; of {name} an example "
                    "changes with the others that `batch` reads beside it, so no one example's "
                    "influence is bounded. Make each of its own numbers and of constants."
                )
    in_parts(examples, some, max(1, len(some) // 3))


def _read(examples: Any, indices: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of examples, as a copy."""
    batch = examples.batch(indices)
    require_each(batch, len(indices), name)
    return batch.inputs.clone(), batch.targets.clone()


def require_each(batch: Batch, count: int, name: str) -> None:
    """Check that a batch has a row for each index that it was read by.

    Args:
        batch: of examples.
        count: of the indices.
        name: of the set's type.

    Raises:
        ConfigError: it has another number of inputs or targets.
    """
    if not len(batch.inputs) == len(batch.targets) == count:
        raise ConfigError(
            f"Expected a batch of the {count} training examples that are asked for; {name} gives "
            f"{len(batch.inputs)} inputs and {len(batch.targets)} targets. Correct its `batch`."
        )


def in_parts(examples: Any, indices: Tensor, size: int) -> Iterable[Tensor]:
    """Return a draw's micro-batches; those of a set of anyone's own have each index once.

    Args:
        examples: the training set.
        indices: of the draw, [m].
        size: examples at once, >= 1.

    Raises:
        ConfigError: an index is there twice, or not at all. (Parts without any are left out.)
    """
    parts = examples.micro_batches(indices, size)
    if is_written_in(type(examples), "dpexp"):
        return parts
    parts = [part for part in parts if len(part)]  # `split` makes one of nobody
    named = torch.cat([part.cpu() for part in parts]) if parts else indices.new_empty(0).cpu()
    if not torch.equal(named.sort().values, indices.cpu().sort().values):
        raise ConfigError(
            "Expected micro-batches that have each drawn example once; those of "
            f"{type(examples).__name__} have some twice, or leave some out. Correct its "
            "`micro_batches`, as in `return indices.split(size) if len(indices) else ()`."
        )
    return parts


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether examples are equal but for rounding, and for padding at their ends."""
    if one.dtype != other.dtype or one.ndim != other.ndim or len(one) != len(other):
        return False
    for axis in range(1, one.ndim):
        least = min(one.shape[axis], other.shape[axis])
        one, other = one.narrow(axis, 0, least), other.narrow(axis, 0, least)
    return not one.numel() or gap(one, other) <= (CLEAR if one.is_floating_point() else 0)
