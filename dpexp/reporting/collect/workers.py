"""Execute runs in parallel worker processes; if one dies, only its run is lost."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from dpexp.reporting.collect import build
from dpexp.reporting.collect.cells import Job
from dpexp.reporting.collect.outcomes import log_path

DIED = "the process died, code {code}: killed, or out of memory"

PR_SET_PDEATHSIG = 1  # of prctl(2)

Prepare = Callable[[Callable[[float | str], None]], None]
"""Has a process hand on how far its run is, in [0, 1], and its lines; importable by name."""


class Board(Protocol):
    """Shows how far runs are."""

    @property
    def prepare(self) -> Prepare:
        """What is called in each process with a function that hands things on."""

    def at(self, run: str, part: float) -> None:
        """Show that a part of a run is done.

        Args:
            run: its id.
            part: in [0, 1].
        """

    def say(self, line: str) -> None:
        """Show what a run says."""


class Ended(NamedTuple):
    """The end of a run.

    Attributes:
        reason: `build.attempt`'s result; None if the process died.
    """

    reason: str | None


class Worker:
    """A process with a fresh interpreter, since a GPU's state can't be forked."""

    def __init__(
        self, execute: build.Execute, results: Path, prepare: Prepare | None = None
    ) -> None:
        """Start the process.

        Args:
            execute: see `build.Execute`; importable by name.
            results: the results folder.
            prepare: see `Board`.
        """
        spawn = multiprocessing.get_context("spawn")
        self.pipe, child = spawn.Pipe()
        arguments = child, execute, results, prepare, os.getpid()
        self._process = spawn.Process(target=_serve, args=arguments, daemon=False)
        with _interrupts_wait():
            self._process.start()
        child.close()  # so that the pipe closes when the process ends

    def begin(self, job: Job) -> None:
        """Start a run."""
        with suppress(BrokenPipeError):
            self.pipe.send((job.config, job.run_id))

    def told(self) -> float | str | Ended:
        """Wait for what the process tells next: a part of the run, a line, or the run's end."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):  # the latter where it died within a message
            self._process.join()
            return Ended(None)

    @property
    def code(self) -> int | None:
        """The exit code of the process; None while it is running."""
        return self._process.exitcode

    def terminate(self) -> None:
        """Ask a busy process to end; it saves what it has.

        No record is lost: a run's files are always complete, and it can be resumed.
        """
        self._process.terminate()

    def stop(self) -> None:
        """Wait for the end of a process that is idle, and so exits, or that was terminated."""
        self.pipe.close()
        self._process.join()


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait; a process started meanwhile would print a trace, as it still imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    pipe: Connection,
    execute: build.Execute,
    results: Path,
    prepare: Prepare | None,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for processes that a run starts
    if sys.platform.startswith("linux"):  # a killed parent ends nothing: its run would go on
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    sending = threading.Lock()  # a warning may come from a thread of the run's

    def hand_on(told: float | str) -> None:
        with sending, suppress(OSError):  # the parent listens no more: the run is about to end
            pipe.send(told)

    if prepare is not None:
        prepare(hand_on)
    with suppress(EOFError, ConnectionError):  # the parent has ended
        while True:
            config, run_id = pipe.recv()
            ended = Ended(build.attempt(config, run_id, execute, results))
            with sending:
                pipe.send(ended)


def side_by_side(
    jobs: Sequence[Job],
    execute: build.Execute,
    results: Path,
    report: build.Report,
    board: Board,
    num_workers: int,
    num_threads: int,
) -> None:
    """Execute the runs that `build.missing` returned in worker processes, started in order.

    A run that another process is executing is left to it, and looked up once it has ended.

    Args:
        jobs: the runs.
        execute: see `build.Execute`; importable by name.
        results: the results folder.
        report: prints how each run ended.
        board: shows how far they are meanwhile.
        num_workers: >= 1.
        num_threads: torch's threads in each, >= 1; OMP_NUM_THREADS takes precedence.

    Raises:
        ConfigError: see `build.Report`.
    """
    queue, busy = list(reversed(jobs)), []
    running: dict[Connection, tuple[Worker, Job, float]] = {}
    with _threads(num_threads):
        idle = [Worker(execute, results, board.prepare) for _ in range(min(num_workers, len(jobs)))]
        try:
            while queue or running:
                while idle and queue:
                    job = queue.pop()
                    if report.is_hopeless(job):
                        board.at(job.run_id, 1.0)
                    else:
                        worker = idle.pop()
                        worker.begin(job)
                        running[worker.pipe] = worker, job, time.perf_counter()
                for pipe in cast(list[Connection], wait(list(running))) if running else ():
                    worker, job, start = running[pipe]
                    told = worker.told()
                    if not isinstance(told, Ended):
                        board.say(told) if isinstance(told, str) else board.at(job.run_id, told)
                        continue
                    del running[pipe]
                    reason = told.reason
                    if reason is None:
                        reason = DIED.format(code=worker.code)
                        build.save(log_path(results, job.config or {}, job.run_id), reason + "\n")
                        worker = Worker(execute, results, board.prepare)
                    idle.append(worker)
                    is_busy = reason.startswith(build.BUSY)
                    board.at(job.run_id, 0.0 if is_busy else 1.0)
                    if is_busy:
                        busy.append(job)
                    else:
                        report.ended(job, reason, time.perf_counter() - start)
                if busy and not queue:
                    time.sleep(build.PAUSE)
                    queue, busy = busy, []
        finally:
            stopped = [worker for worker, _, _ in running.values()]
            for worker in stopped:  # all before the first wait, which a second Ctrl-C may end
                worker.terminate()
            for worker in (*stopped, *idle):
                worker.stop()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Set OMP_NUM_THREADS for processes started within the block, unless it is set."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
