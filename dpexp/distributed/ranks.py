"""Ranks of one run: each processes a part of every batch, and all take the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpexp.distributed.wanted import require_device_word
from dpexp.types import ConfigError, counted, one_line

BUCKET = 2**26
"""Numbers in one collective call (ours): 256 MB in float32, the memory that it costs to send few
large messages in place of many small ones."""

GO_ON = "Run it again to go on from its last checkpoint."


class RankLost(RuntimeError):
    """A rank died and ended the run; one line says which and why."""


@dataclass(frozen=True)
class Ranks:
    """This process's rank among those that share the run.

    Attributes:
        rank: in [0, size).
        size: number of processes.
        device: this process's device.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes records, draws noise and prepares steps."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """Return this rank's part of a batch that all ranks drew alike; it may be empty."""
        return indices[self.rank :: self.size]

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all ranks, in place, with one call per bucket of a dtype.

        Args:
            tensors: of the same shapes and dtypes in the same order on every rank.

        Raises:
            RankLost: if another rank died.
        """
        self._call(dist.all_reduce, tensors)

    def reduce(self, tensors: Iterable[Tensor]) -> None:
        """Reduce each tensor to rank 0, in place; undefined on other ranks.

        Args and Raises: as for `all_reduce`, which is `reduce` and then `broadcast`.
        """
        self._call(partial(dist.reduce, dst=0), tensors)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite each tensor with rank 0's values, bit for bit and in place.

        Args and Raises: as for `all_reduce`.
        """
        self._call(lambda flat: dist.broadcast(flat.view(torch.uint8), src=0), tensors)

    def _call(self, collective: Callable[[Tensor], Any], tensors: Iterable[Tensor]) -> None:
        if self.size == 1:
            return
        for bucket in buckets(tensors):
            flat = [tensor.reshape(-1).contiguous().to(self.device) for tensor in bucket]
            packed = torch.cat(flat) if len(flat) > 1 else flat[0]
            with together():
                collective(packed)
            if packed.data_ptr() == bucket[0].data_ptr():
                continue  # one tensor, sent without a copy
            parts = packed.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value on every rank; raises RankLost."""
        if self.size == 1:
            return value
        box = [value]
        with together():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def largest(self, value: float) -> float:
        """Return the largest value over the ranks; raises RankLost."""
        values = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        values[self.rank] = value
        self.all_reduce([values])
        return float(values.max())


def buckets(tensors: Iterable[Tensor], size: int = BUCKET) -> Iterator[list[Tensor]]:
    """Group tensors of one dtype, in order, into lists of at most `size` numbers.

    A larger tensor has a list of its own. The lists depend on shapes and dtypes alone.
    """
    pending: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        bucket = pending.setdefault(tensor.dtype, [])
        if bucket and sum(member.numel() for member in bucket) + tensor.numel() > size:
            yield bucket
            bucket = pending[tensor.dtype] = []
        bucket.append(tensor)
    yield from pending.values()


@contextmanager
def together() -> Iterator[None]:
    """Tell the failure of a collective, a RuntimeError in torch, as what it means.

    Raises:
        RankLost: in place of it.
    """
    try:
        yield
    except RuntimeError as error:
        reason = one_line(error).partition(". ")[0]
        raise RankLost(f"Lost touch with another rank: {reason}. {GO_ON}") from error


def choose_device(wanted: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:1`.

    Raises:
        ConfigError: for a device that this machine lacks.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    require_device_word(wanted)
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Expected a GPU for device={wanted}; torch sees none. Set device=cpu.")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"Expected one of this machine's {counted(count, 'GPU')}, numbered from 0; got "
            f"device={wanted}. Set device."
        )
    return device
