"""The processes that share a run: started, passed signals on to, and ended together."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from dpexp.distributed.ranks import GO_ON, RankLost, Ranks, choose_device, together
from dpexp.distributed.stopping import STOPPED, Stopping
from dpexp.privacy import PrivacyError
from dpexp.records import RecordError
from dpexp.types import ConfigError, one_line

log = logging.getLogger("dpexp")

PATIENCE = timedelta(minutes=30)
"""How long ranks wait for a silent one (Gloo's own default): longer than what the first rank does
alone, such as an analysis. A death is noticed at once; only a node cut off costs that long."""

GRACE = 5.0
"""Seconds that ranks have to end by themselves once one has failed (ours)."""


REASON, TRACE = 400, 2000
"""Characters of a rank's reason and trace that are passed on: nobody reads before all have ended,
and the pipe between holds 64 KB."""


def is_torchrun() -> bool:
    """Return whether torchrun started this process, as one rank of several."""
    return "WORLD_SIZE" in os.environ


def launch(work: Callable[[Ranks, dict], None], config: dict) -> None:
    """Run `work(ranks, config)` on every rank and wait.

    Under torchrun this process is one rank already. Otherwise `ranks=auto` means one process a GPU
    (a single one without GPUs, or where the device is named), and a number that many.

    Args:
        work: importable by name, so that other processes can run it.
        config: the run's plain config.

    Raises:
        RankLost: a rank died, and the others were ended.
        SystemExit: the ranks were stopped by SIGTERM, which is passed on to them.
    """
    device = choose_device(config["device"])
    if is_torchrun():
        rank, size = _number_of("RANK"), _number_of("WORLD_SIZE")
        local_rank = _number_of("LOCAL_RANK", rank)
        try:
            _work_as(rank, size, local_rank, device, work, config)
        except RankLost:
            if rank:  # the first one says it for all, and torchrun names the dead
                raise SystemExit(1) from None
            raise
        return
    size = _wanted_ranks(config["ranks"], config["device"], device)
    if size == 1:
        work(Ranks(0, 1, device), config)
    else:
        _spawn(size, device, work, config)


def _number_of(variable: str, default: int | None = None) -> int:
    found = os.environ.get(variable, default)
    try:
        return int(found)
    except (TypeError, ValueError):
        raise ConfigError(
            f"Expected {variable} to be a number, as torchrun sets it beside WORLD_SIZE; got "
            f"{found}. Start torchrun, or unset WORLD_SIZE."
        ) from None


def leave(code: int) -> NoReturn:
    """End a process that was a rank, without taking Python apart.

    A thread of Gloo or NCCL may drop its last tensor after the main thread's work is done. If
    Python is ending by then, the lock that this takes is gone, and the C++ runtime aborts: a
    finished run would count as failed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_after(program: Callable[[], None]) -> NoReturn:
    """Run a program as one of torchrun's ranks, and end the process as it would have."""
    try:
        program()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    leave(code)


def _wanted_ranks(ranks: int | str, wanted_device: str, device: torch.device) -> int:
    if ranks == "auto":
        return torch.cuda.device_count() if wanted_device == "auto" and device.type == "cuda" else 1
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ConfigError(f"Expected ranks to be auto or a number from 1; got ranks={ranks}.")
    return ranks


def _work_as(
    rank: int,
    size: int,
    local_rank: int,
    device: torch.device,
    work: Callable,
    config: dict,
    store: dist.Store | None = None,
) -> None:
    if device.type == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    with together():
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )
    stopped = None
    try:
        work(Ranks(rank, size, device), config)
    except SystemExit as end:  # on all ranks, at the same step
        stopped = end
    with together():
        dist.barrier()  # the first rank may still be writing the record, or the checkpoint
    dist.destroy_process_group()
    if stopped is not None:
        raise stopped


def _spawned(
    rank: int,
    size: int,
    port: int,
    device: torch.device,
    level: int,
    reports: Any,
    work: Callable,
    config: dict,
) -> None:
    logging.basicConfig(format="%(message)s", level=level if rank == 0 else logging.WARNING)
    code = 0
    try:
        # Not SIGINT, which torch sets here: a shell's background jobs ignore it.
        torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's goes to the starting process too
        if device.type == "cpu":
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        _work_as(rank, size, rank, device, work, config, store)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as end:
        code = end.code
    except (ConfigError, PrivacyError, RecordError, RankLost) as error:
        echo = isinstance(error, RankLost)
        reports.put(_Report(rank, type(error)(str(error)[: REASON + TRACE]), is_echo=echo))
        code = 1
    except BaseException as error:
        why = f"{type(error).__name__}: {one_line(error)}"[:REASON]
        trace = "".join(traceback.format_tb(error.__traceback__))[-TRACE:]
        reports.put(_Report(rank, _died(rank, size, why), trace))
        code = 1
    leave(code)


@dataclass(frozen=True)
class _Report:
    """Why a rank failed, where it could still say so.

    Attributes:
        rank: in [0, size).
        error: for the user.
        trace: where it was, for an error that is ours.
        is_echo: whether another rank's failure is all that it saw.
    """

    rank: int
    error: Exception
    trace: str = ""
    is_echo: bool = False


def _died(rank: int, size: int, why: str) -> RankLost:
    return RankLost(f"Rank {rank} of {size} died, and the run with it: {why}. {GO_ON}")


def _spawn(size: int, device: torch.device, work: Callable, config: dict) -> None:
    """Start the ranks, pass SIGTERM on to them, and leave none behind."""
    # Here rather than on the first rank, so that nobody else takes the port meanwhile.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reports = torch.multiprocessing.get_context("spawn").SimpleQueue()
    level = log.getEffectiveLevel()
    arguments = (size, store.port, device, level, reports, work, config)
    processes: list[Any] = []
    stopping = Stopping(lambda: _send(processes, signal.SIGTERM))
    with stopping:
        try:
            # Ctrl-C reaches the ranks too; while they import, each would print where it was.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                context = torch.multiprocessing.spawn(_spawned, arguments, size, join=False)
                processes += context.processes
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if stopping.is_asked:
                _send(processes, signal.SIGTERM)
            codes = _wait(processes)
        except KeyboardInterrupt:  # the ranks have heard it too
            _wait(processes, GRACE)
            raise
        finally:
            _send(processes, signal.SIGKILL)
            for process in processes:
                process.join()
    said = []
    while not reports.empty():
        said.append(reports.get())
    _conclude(codes, said, stopping, size)


def _send(processes: Iterable[Any], number: int) -> None:
    for process in processes:
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _wait(processes: list[Any], seconds: float | None = None) -> dict[int, int]:
    """Wait until all have ended, or one has failed and the others had `GRACE`.

    Returns:
        Exit codes of those that ended, by rank, in the order in which they did.
    """
    left = {process.sentinel: rank for rank, process in enumerate(processes)}
    codes = {}
    while left and (ended := wait(list(left), seconds)):
        for sentinel in ended:
            rank = left.pop(sentinel)
            processes[rank].join()
            codes[rank] = processes[rank].exitcode
        if any(code not in (0, STOPPED) for code in codes.values()):
            seconds = GRACE
    return codes


def _conclude(codes: dict[int, int], said: list[_Report], stopping: Stopping, size: int) -> None:
    """Return if all ranks did their work; else raise the one thing that there is to say."""
    for report in said:
        if not report.is_echo:
            if report.trace:
                log.error("%s", report.trace.rstrip())
            raise report.error
    if STOPPED in codes.values() or (stopping.is_asked and any(codes.values())):
        stopping.leave()
    speaking = {report.rank for report in said}
    for rank, code in codes.items():
        if code and rank not in speaking:
            raise _died(rank, size, _worded(code))
    if said:
        raise said[0].error


def _worded(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, from outside or for want of memory" if code == -signal.SIGKILL else name
