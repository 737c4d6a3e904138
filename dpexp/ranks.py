"""Processes that share one run: each takes a part of every batch, and all take the same step."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpexp.mechanism import PrivacyError
from dpexp.records import RecordError
from dpexp.types import ConfigError


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
        """Say whether this process writes records."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """Take this rank's part of a global draw, known alike to all; it may be empty."""
        return indices[self.rank :: self.size]

    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all ranks, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def from_first(self, value: Any) -> Any:
        """Give every rank what the first one has."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def choose_device(wanted: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into a device.

    Raises:
        ConfigError: for a device this machine lacks.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(
            f"Expected device auto, cpu, cuda or cuda:N; got device={wanted}."
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Expected a GPU for device={wanted}; torch sees none. Set device=cpu.")
    return device


def launch(work: Callable[[Ranks, dict], None], config: dict) -> None:
    """Run `work(ranks, config)` on every rank and wait.

    Under torchrun this process is one rank already. Otherwise `ranks=auto` means one process a GPU
    (a single one without GPUs, or where the device is named), and a number that many.

    Args:
        work: importable by name, so that other processes can run it.
        config: the run's plain config.
    """
    device = choose_device(config["device"])
    if "WORLD_SIZE" in os.environ:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _work_as(rank, size, int(os.environ.get("LOCAL_RANK", rank)), device, work, config)
        return
    size = _wanted_ranks(config["ranks"], config["device"], device)
    if size == 1:
        work(Ranks(0, 1, device), config)
        return
    mistakes = torch.multiprocessing.get_context("spawn").SimpleQueue()
    arguments = (size, _free_port(), device, mistakes, work, config)
    try:
        torch.multiprocessing.spawn(_spawned, args=arguments, nprocs=size)
    except torch.multiprocessing.ProcessRaisedException:
        if mistakes.empty():
            raise
        raise mistakes.get() from None


def _wanted_ranks(ranks: int | str, wanted_device: str, device: torch.device) -> int:
    if ranks == "auto":
        return torch.cuda.device_count() if wanted_device == "auto" and device.type == "cuda" else 1
    if not isinstance(ranks, int) or ranks < 1:
        raise ConfigError(f"Expected ranks to be auto or a number from 1; got ranks={ranks}.")
    return ranks


def _spawned(
    rank: int,
    size: int,
    port: int,
    device: torch.device,
    mistakes: Any,
    work: Callable,
    config: dict,
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    if device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    try:
        _work_as(rank, size, rank, device, work, config)
    except (ConfigError, PrivacyError, RecordError) as error:  # must reach the user as they are
        mistakes.put(type(error)(str(error)))
        raise


def _work_as(
    rank: int, size: int, local_rank: int, device: torch.device, work: Callable, config: dict
) -> None:
    if device.type == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=size)
    try:
        work(Ranks(rank, size, device), config)
        dist.barrier()  # the first rank may still be writing the record
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
