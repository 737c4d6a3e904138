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
"""Exit code of a run that was stopped and has saved its state."""


WAIT = b"Interrupted: saving after this step. Ctrl-C again stops at once.\n"
"""Printed at the first Ctrl-C."""


class Stopping:
    """Handle SIGTERM, SIGINT and SIGUSR2: finish the step, save, exit.

    SIGTERM is always handled. SIGINT (Ctrl-C) is handled on request, and a second one stops at
    once. SIGUSR2 is handled if it already has a handler, such as submitit's, which requeues a job
    near its time limit and ends the process. `leave` calls that handler.

    Attributes:
        is_asked: whether a signal came.
        is_at_once: whether a second Ctrl-C came: stop without waiting.
    """

    def __init__(
        self, tell: Callable[[], None] = lambda: None, *, handles_interrupt: bool = False
    ) -> None:
        """Set up without handlers.

        Args:
            tell: called at once when a signal comes.
            handles_interrupt: whether to handle SIGINT.
        """
        self.is_asked = self.is_at_once = False
        self._handles_interrupt, self._is_interrupted = handles_interrupt, False
        self._tell, self._last = tell, signal.SIGTERM
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        """Install the handlers, which works only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._handle(signal.SIGTERM)
            if callable(signal.getsignal(signal.SIGUSR2)):
                self._handle(signal.SIGUSR2)
            is_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            if self._handles_interrupt and is_python:  # else it is ignored, or has a handler
                self._handle(signal.SIGINT)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the former handlers."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def leave(self) -> NoReturn:
        """End the process as the sender of the signal expects.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            SystemExit: with `STOPPED`, or as the former handler of SIGUSR2 raises it.
        """
        self.__exit__()
        if self._last != signal.SIGTERM:
            self._former[self._last](self._last, None)
        raise SystemExit(STOPPED)

    def _handle(self, number: signal.Signals) -> None:
        self._former[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        is_interrupt = number == signal.SIGINT
        if is_interrupt and self._is_interrupted:
            self.is_at_once = True
            raise KeyboardInterrupt
        self.is_asked, self._is_interrupted = True, self._is_interrupted or is_interrupt
        if self._last == signal.SIGTERM:  # a SIGTERM at the time limit does not replace it
            self._last = signal.Signals(number)
        if is_interrupt:  # print may be running right now; stderr may be closed
            with suppress(OSError, ValueError, AttributeError):
                if sys.__stderr__ is not None:
                    os.write(sys.__stderr__.fileno(), WAIT)
        self._tell()
