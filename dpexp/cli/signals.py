"""Restore the signals that a program handles."""

from __future__ import annotations

import signal
import threading
from typing import Any


def restore_signals() -> None:
    """Restore the signals that the program handles, however it was started.

    Background jobs of a shell and of many build systems ignore Ctrl-C. Other programs start with
    signals blocked, and children inherit that. Does nothing outside the main thread, which alone
    may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handlers: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGCHLD: signal.SIG_DFL,  # if ignored, children's exit codes are lost
    }
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
