"""Do tasks side by side in worker processes; if one dies, only its task is lost."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol, Self, cast

DIED = "the process died, code {code}: killed, or out of memory"

PR_SET_PDEATHSIG = 1  # of prctl(2)

Prepare = Callable[[Callable[[float | str], None]], None]
"""Has a process hand on how far its task is, in [0, 1], and its lines; importable by name."""

Do = Callable[[Any], Any]
"""Does one task, and returns what it found; importable by name."""


class Board(Protocol):
    """Shows how far tasks are."""

    @property
    def prepare(self) -> Prepare:
        """What is called in each process with a function that hands things on."""

    def at(self, key: str, part: float) -> None:
        """Show that a part of a task is done.

        Args:
            key: of the task.
            part: in [0, 1].
        """

    def say(self, line: str) -> None:
        """Show what a task says."""


class Died(RuntimeError):
    """A process died within its task; the message has its exit code."""


class Ended(NamedTuple):
    """The end of a task.

    Attributes:
        value: what was found; None if nothing was.
        error: what was raised, with its trace as a note; `Died` if the process died; or None.
    """

    value: Any = None
    error: Exception | None = None


class Worker:
    """A process with a fresh interpreter, since a GPU's state can't be forked."""

    def __init__(self, do: Do, prepare: Prepare | None = None) -> None:
        """Start the process.

        Args:
            do: does a task.
            prepare: see `Board`.
        """
        spawn = multiprocessing.get_context("spawn")
        self.pipe, child = spawn.Pipe()
        arguments = child, do, prepare, os.getpid()
        self._process = spawn.Process(target=_serve, args=arguments, daemon=False)
        with _interrupts_wait():
            self._process.start()
        child.close()  # so that the pipe closes when the process ends

    def begin(self, task: Any) -> None:
        """Start a task."""
        with suppress(BrokenPipeError):
            self.pipe.send(task)

    def told(self) -> float | str | Ended:
        """Wait for what the process tells next: a part of the task, a line, or the task's end."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):  # the latter where it died within a message
            self._process.join()
            return Ended(error=Died(DIED.format(code=self._process.exitcode)))

    def terminate(self) -> None:
        """Ask a busy process to end; it saves what it has.

        No record is lost: a run's files are always complete, and it can be resumed.
        """
        self._process.terminate()

    def stop(self) -> None:
        """Wait for the end of a process that is idle, and so exits, or that was terminated."""
        self.pipe.close()
        self._process.join()


class Pool:
    """Processes that do tasks while the block lasts; those that are busy at its end are stopped.

    Args:
        do: does a task.
        board: shows how far tasks are.
        num_workers: >= 1.
        num_threads: torch's threads in each, >= 1; OMP_NUM_THREADS takes precedence.
    """

    def __init__(self, do: Do, board: Board, num_workers: int, num_threads: int) -> None:
        self._do, self._board, self._num_threads = do, board, num_threads
        self._num_workers = num_workers
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, str]] = {}

    def __enter__(self) -> Self:
        try:
            while len(self._idle) < self._num_workers:
                self._idle.append(self._start())
        except BaseException:  # Ctrl-C, or a process too many for the system
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stopped = [worker for worker, _ in self._busy.values()]
        for worker in stopped:  # all before the first wait, which a second Ctrl-C may end
            worker.terminate()
        for worker in (*stopped, *self._idle):
            worker.stop()

    @property
    def is_full(self) -> bool:
        """Whether no process is idle."""
        return not self._idle

    @property
    def is_busy(self) -> bool:
        """Whether a task is being done."""
        return bool(self._busy)

    def begin(self, key: str, task: Any) -> None:
        """Have an idle process begin a task; `task` can be pickled."""
        worker = self._idle[-1]
        self._busy[worker.pipe] = worker, key  # first, so that Ctrl-C finds it in one of both
        self._idle.pop()
        worker.begin(task)

    def ended(self) -> list[tuple[str, Ended]]:
        """Wait until one or more tasks end, and show meanwhile how far they are; return these."""
        found: list[tuple[str, Ended]] = []
        while not found:
            for pipe in cast(list[Connection], wait(list(self._busy))):
                worker, key = self._busy[pipe]
                told = worker.told()
                if isinstance(told, str):
                    self._board.say(told)
                elif isinstance(told, Ended):
                    del self._busy[pipe]
                    self._idle.append(self._start() if isinstance(told.error, Died) else worker)
                    found.append((key, told))
                else:
                    self._board.at(key, told)
        return found

    def _start(self) -> Worker:
        with _threads(self._num_threads):
            return Worker(self._do, self._board.prepare)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait; a process started meanwhile would print a trace, as it still imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, do: Do, prepare: Prepare | None, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for processes that a task starts
    if sys.platform.startswith("linux"):  # a killed parent ends nothing: its task would go on
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    sending = threading.Lock()  # a warning may come from a thread of the task's

    def hand_on(told: float | str) -> None:
        with sending, suppress(OSError):  # the parent listens no more: the task is about to end
            pipe.send(told)

    if prepare is not None:
        prepare(hand_on)
    with suppress(EOFError, ConnectionError):  # the parent has ended
        while True:
            task = pipe.recv()
            try:
                ended = Ended(do(task))
            except Exception as error:
                ended = Ended(error=_sendable(error))
            with sending:
                pipe.send(ended)


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can read, with its trace as a note."""
    try:
        error.add_note(traceback.format_exc().rstrip())
        pickle.loads(pickle.dumps(error))
    except Exception:  # one with arguments of its own, or with what cannot be sent
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(traceback.format_exc().rstrip())
        return plain
    return error


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
