"""Tell who waits what is going on, once it takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0
"""Seconds that nobody needs an explanation for (ours)."""

log = logging.getLogger("dpexp")


@contextmanager
def told_if_long(words: str, seconds: float = PATIENCE) -> Iterator[None]:
    """Log words if what is within takes longer than so many seconds."""
    timer = threading.Timer(seconds, log.info, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
