"""A reader who leaves early, as `head` does, stops nothing: what is running goes on unheard."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Patient:
    """A stream that goes nowhere once it cannot be written; all else is the stream's own.

    Attributes:
        fault: why that was; "" while it can, and where nobody reads any more.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.fault = stream, ""

    def __getattr__(self, name: str) -> Any:
        """Return what the stream has."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or pretend to; give the number of characters."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._leave(error)
            return len(text)

    def flush(self) -> None:
        """Send what was written, or forget it."""
        try:
            self._stream.flush()
        except OSError as error:
            self._leave(error)

    def _leave(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            self.fault = error.strerror or str(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # what is still in its buffer goes there too
        os.close(nowhere)


@contextmanager
def patience() -> Iterator[None]:
    """Let output and errors go nowhere once they cannot be written, also what is sent at the end.

    Raises:
        SystemExit: with 2, after what was to be done is done: output was lost, on a full disk.
    """
    _open_what_is_closed()
    streams = sys.stdout, sys.stderr
    heard = sys.stdout, sys.stderr = Patient(streams[0]), Patient(streams[1])
    try:
        yield
    except SystemExit as end:
        sys.stdout.flush()
        if end.code or not heard[0].fault:
            raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
    if fault := heard[0].fault:
        print(f"error: Cannot write what was to be printed: {fault}.", file=sys.stderr)
        raise SystemExit(2)


def _open_what_is_closed() -> None:
    """Send nowhere what a program was started without; a file opened next would take its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))
