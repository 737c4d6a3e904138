"""A reader who leaves early, as `head` does, stops nothing: what is running goes on unheard."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Patient:
    """A stream that goes nowhere once nobody reads it; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Give what the stream has."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or pretend to; give the number of characters."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)

    def flush(self) -> None:
        """Send what was written, or forget it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # what is still in its buffer goes there too
        os.close(nowhere)


@contextmanager
def patience() -> Iterator[None]:
    """Let output and errors go nowhere once nobody reads them, also what is sent at the end."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(Patient, streams)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
