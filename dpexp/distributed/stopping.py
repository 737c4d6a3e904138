"""Handle SIGTERM, SIGINT and SIGUSR2: finish the step, save, exit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

STOPPED = 128 + signal.SIGTERM
"""Exit code of what was stopped, once it has saved what it did."""


WAIT = b"Interrupted: saving after this step. Ctrl-C again stops at once.\n"
"""What a first Ctrl-C is answered with."""


class Stopping:
    """Handle SIGTERM, SIGINT and SIGUSR2: finish the step, save, exit.

    SIGTERM is always handled. SIGINT (Ctrl-C) is where that is wanted, and a second one stops at
    once. SIGUSR2 is where a handler awaits it, such as submitit's, which queues a job again whose
    time is nearly over and ends the process. That handler is called by `leave`.

    Attributes:
        is_asked: whether a signal came.
        is_at_once: whether a second Ctrl-C came: nothing is to be waited for.
    """

    def __init__(
        self, tell: Callable[[], None] = lambda: None, *, hears_interrupt: bool = False
    ) -> None:
        """Take what is called at once when a signal comes, and whether Ctrl-C is one."""
        self.is_asked = self.is_at_once = False
        self._hears_interrupt, self._is_interrupted = hears_interrupt, False
        self._tell, self._last = tell, signal.SIGTERM
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        """Install the handlers; only a process's main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._listen(signal.SIGTERM)
            if callable(signal.getsignal(signal.SIGUSR2)):
                self._listen(signal.SIGUSR2)
            is_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if self._hears_interrupt and is_python:  # else somebody ignores it, or has plans
                self._listen(signal.SIGINT)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers that were there before."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def leave(self) -> NoReturn:
        """End the process as who asked expects it.

        Raises:
            KeyboardInterrupt: asked by Ctrl-C.
            SystemExit: with `STOPPED`, or as the former handler of SIGUSR2 has it.
        """
        self.__exit__()
        if self._last != signal.SIGTERM:
            self._former[self._last](self._last, None)
        raise SystemExit(STOPPED)

    def _listen(self, number: signal.Signals) -> None:
        self._former[number] = signal.signal(number, self._hear)

    def _hear(self, number: int, _: object) -> None:
        is_interrupt = number == signal.SIGINT
        if is_interrupt and self._is_interrupted:
            self.is_at_once = True
            raise KeyboardInterrupt
        self.is_asked, self._is_interrupted = True, self._is_interrupted or is_interrupt
        if self._last == signal.SIGTERM:  # which follows at the limit, and takes nothing back
            self._last = signal.Signals(number)
        if is_interrupt:  # not by print, which may be at work just now; nobody may be listening
            with suppress(OSError, ValueError, AttributeError):
                os.write(sys.__stderr__.fileno(), WAIT)
        self._tell()
