"""Start a run's processes, forward signals to them, and end them together."""

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

from dpexp.distributed.cores import cores
from dpexp.distributed.ranks import GO_ON, RankLost, Ranks, choose_device, together
from dpexp.distributed.stopping import STOPPED, Stopping
from dpexp.distributed.wanted import require_ranks_word
from dpexp.privacy.certificate import PrivacyError
from dpexp.records import RecordError
from dpexp.types import ConfigError, one_line

log = logging.getLogger("dpexp")

PATIENCE = timedelta(minutes=30)
"""How long ranks wait for one that does not answer (Gloo's own default): longer than what rank 0
does alone, such as an analysis. A dead process is noticed at once; only a node that is cut off
takes this long."""

GRACE = 5.0
"""Seconds that the other ranks have to exit once one has failed (ours)."""


REASON, TRACE = 400, 2000
"""Characters kept of a rank's reason and of its trace. They are read only after all ranks ended,
and the pipe holds 64 KB."""


def is_torchrun() -> bool:
    """Return whether torchrun started this process as one of several ranks."""
    return "WORLD_SIZE" in os.environ


def launch(work: Callable[[Ranks, dict], None], config: dict) -> None:
    """Run `work(ranks, config)` on every rank, and wait.

    Under torchrun this process is already one rank. Otherwise `ranks=auto` starts one process per
    GPU (a single one without GPUs or with a named device), and a number starts that many.

    Args:
        work: importable by name, so that other processes can run it.
        config: the run's plain config.

    Raises:
        RankLost: if a rank died; the others are ended.
        SystemExit: if the ranks were stopped by SIGTERM, which is forwarded to them.
    """
    device = choose_device(config["device"])
    if is_torchrun():
        rank, size = _number_of("RANK"), _number_of("WORLD_SIZE")
        local_rank = _number_of("LOCAL_RANK", rank)
        try:
            _work_as(rank, size, local_rank, device, work, config)
        except RankLost:
            if rank:  # rank 0 reports for all, and torchrun names the rank that died
                raise SystemExit(1) from None
            raise
        return
    size = _wanted_ranks(config["ranks"], config["device"], device)
    if size == 1:
        work(Ranks(0, 1, device), config)
    else:
        _spawn(size, device, work, config)


def _number_of(variable: str, default: int | None = None) -> int:
    found: Any = os.environ.get(variable, default)
    try:
        return int(found)
    except (TypeError, ValueError):
        raise ConfigError(
            f"Expected {variable} to be a number, as torchrun sets it beside WORLD_SIZE; got "
            f"{found}. Start torchrun, or unset WORLD_SIZE."
        ) from None


def leave(code: int) -> NoReturn:
    """End a rank's process without Python's shutdown.

    A thread of Gloo or NCCL may free its last tensor after the main thread is done. If Python is
    shutting down by then, the lock that this needs is gone and the C++ runtime aborts. A finished
    run would then count as failed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_after(program: Callable[[], None]) -> NoReturn:
    """Run a program as one of torchrun's ranks, then exit with its exit code."""
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
    require_ranks_word(ranks)
    return int(ranks)


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
    except SystemExit as end:  # all ranks stop at the same step
        stopped = end
    with together():
        dist.barrier()  # rank 0 may still be writing the record or the checkpoint
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
        # SIGKILL, not torch's SIGINT, which a shell's background jobs ignore.
        torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm sends it to the parent too
        if device.type == "cpu":
            torch.set_num_threads(max(1, cores() // size))
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        _work_as(rank, size, rank, device, work, config, store)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as end:
        # As Python leaves: words are an error, nothing is none.
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
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
    """A rank's report of its own failure.

    Attributes:
        rank: in [0, size).
        error: for the user.
        trace: the traceback, if the error is a bug of ours.
        is_echo: whether it only reports another rank's failure.
    """

    rank: int
    error: Exception
    trace: str = ""
    is_echo: bool = False


def _died(rank: int, size: int, why: str) -> RankLost:
    return RankLost(f"Rank {rank} of {size} died, and the run with it: {why}. {GO_ON}")


def _spawn(size: int, device: torch.device, work: Callable, config: dict) -> None:
    """Start the ranks, forward SIGTERM to them, and leave none running."""
    # The store is here, not on rank 0, so that no other process can take the port in between.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reports = torch.multiprocessing.get_context("spawn").SimpleQueue()
    level = log.getEffectiveLevel()
    arguments = (size, store.port, device, level, reports, work, config)
    processes: list[Any] = []
    stopping = Stopping(lambda: _send(processes, signal.SIGTERM))
    with stopping:
        try:
            # Ctrl-C reaches the ranks too; one that is still importing would print a traceback.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                context = torch.multiprocessing.spawn(_spawned, arguments, size, join=False)
                processes += context.processes
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if stopping.is_asked:
                _send(processes, signal.SIGTERM)
            codes = _wait(processes)
        except KeyboardInterrupt:  # the ranks got it too
            _wait(processes, GRACE)
            raise
        finally:
            _send(processes, signal.SIGKILL)
            for process in processes:
                process.join()
    received = []
    while not reports.empty():
        received.append(reports.get())
    _conclude(codes, received, stopping, size)


def _send(processes: Iterable[Any], number: int) -> None:
    for process in processes:
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _wait(processes: list[Any], seconds: float | None = None) -> dict[int, int]:
    """Wait until all have ended, or until `GRACE` seconds after one has failed.

    Returns:
        Exit codes by rank of those that ended, in the order in which they ended.
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


def _conclude(codes: dict[int, int], reports: list[_Report], stopping: Stopping, size: int) -> None:
    """Return if all ranks succeeded; otherwise raise the one error that explains the failure."""
    for report in reports:
        if not report.is_echo:
            if report.trace:
                log.error("%s", report.trace.rstrip())
            raise report.error
    if STOPPED in codes.values() or (stopping.is_asked and any(codes.values())):
        stopping.leave()
    reported = {report.rank for report in reports}
    for rank, code in codes.items():
        if code and rank not in reported:
            raise _died(rank, size, _cause_of(code))
    if reports:
        raise reports[0].error


def _cause_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, from outside or for want of memory" if code == -signal.SIGKILL else name
