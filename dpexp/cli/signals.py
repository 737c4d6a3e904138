"""The signals that programs answer, whoever started them."""

from __future__ import annotations

import signal
import threading


def restore_signals() -> None:
    """Restore the signals that the program handles, however it was started.

    A shell's background jobs, and what many build systems start, ignore Ctrl-C; others begin with
    signals blocked, which their children would be too. Only a process's main thread can.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    answers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    answers[signal.SIGCHLD] = signal.SIG_DFL  # ignored, it takes the children's exit codes away
    for number, answer in answers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, answer)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, answers)
