"""Processes that share one run: each takes a part of every batch, and all take the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpexp.types import ConfigError, one_line

BUCKET = 2**26
"""Numbers in one call (ours): 256 MB in float32, which is what sending few large messages in place
of many small ones costs in memory."""

GO_ON = "Run it again to go on from its last checkpoint."


class RankLost(RuntimeError):
    """A rank is gone, and the run with it; one line says which and why."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share the run.

    Attributes:
        rank: in [0, size).
        size: how many processes.
        device: where this one computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes records, draws noise and prepares for all."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """Return this rank's part of a global draw, known alike to all; it may be empty."""
        return indices[self.rank :: self.size]

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all ranks, in place: one call a kind of number and `BUCKET`.

        Args:
            tensors: of the same shapes and kinds in the same order on every rank.

        Raises:
            RankLost: another rank is gone.
        """
        self._call(dist.all_reduce, tensors)

    def reduce(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all ranks on the first; elsewhere they hold no meaning afterwards.

        Args and Raises: as for `all_reduce`, which is `reduce` and then `broadcast`.
        """
        self._call(partial(dist.reduce, dst=0), tensors)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Return every rank the first one's numbers, bit for bit and in place.

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
                continue  # one tensor, sent as it lies
            parts = packed.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def from_first(self, value: Any) -> Any:
        """Return every rank what the first one has; raises RankLost."""
        if self.size == 1:
            return value
        box = [value]
        with together():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def largest(self, value: float) -> float:
        """Return the largest of what the ranks have; raises RankLost."""
        each = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        each[self.rank] = value
        self.all_reduce([each])
        return float(each.max())


def buckets(tensors: Iterable[Tensor], size: int = BUCKET) -> Iterator[list[Tensor]]:
    """Group tensors of one dtype, in their order, into lists of at most `size` numbers.

    A tensor of more is alone in its list. The lists depend on nothing but shapes and dtypes.
    """
    open_ones: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        held = open_ones.setdefault(tensor.dtype, [])
        if held and sum(one.numel() for one in held) + tensor.numel() > size:
            yield held
            held = open_ones[tensor.dtype] = []
        held.append(tensor)
    yield from open_ones.values()


@contextmanager
def together() -> Iterator[None]:
    """Word the failure of a collective: torch's is a RuntimeError, or a kind of it."""
    try:
        yield
    except RuntimeError as error:
        reason = one_line(error).partition(". ")[0]
        raise RankLost(f"Lost touch with another rank: {reason}. {GO_ON}") from error


def choose_device(wanted: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into a device.

    Raises:
        ConfigError: for a device this machine lacks.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
    except RuntimeError:
        raise ConfigError(
            f"Expected device auto, cpu, cuda or cuda:N; got device={wanted}."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Expected a GPU for device={wanted}; torch sees none. Set device=cpu.")
    return device
