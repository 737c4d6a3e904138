"""Warn whoever called dpexp, at the line that did, and tell who waits what takes long."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0
"""Seconds that nobody needs an explanation for (ours)."""

log = logging.getLogger("dpexp")


def warn_caller(message: str) -> None:
    """Warn, and name the line of the user's that called dpexp, whatever was called between."""
    own, frame, level, called = os.path.dirname(__file__) + os.sep, sys._getframe(), 1, 1
    while frame.f_back is not None:
        frame, level = frame.f_back, level + 1
        if frame.f_code.co_filename.startswith(own):
            called = level
    warnings.warn(message, stacklevel=called + 1)


@contextmanager
def told_if_long(words: str, seconds: float | None = None) -> Iterator[None]:
    """Log words if what is within takes longer than so many seconds; None: `PATIENCE`."""
    timer = threading.Timer(PATIENCE if seconds is None else seconds, log.info, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
