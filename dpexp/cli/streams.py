"""Ignore BrokenPipeError, e.g. under `| head`; report other write errors at the end."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

PLAIN = {
    "ε": "eps",
    "δ": "delta",
    "σ": "sigma",
    "±": "+-",
    "≥": ">=",
    "≤": "<=",
    "–": "-",
    "…": "...",
}
"""Words for characters that a terminal's encoding may lack."""


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by words or escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    words = (PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking)
    return "".join(words), error.end


codecs.register_error("dpexp.plain", _in_plain)


class _SafeStream:
    """A stream whose output is discarded after a write has failed.

    Attributes:
        fault: why the write failed; "" if none did, or if the pipe was closed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.fault = stream, ""

    def __getattr__(self, name: str) -> Any:
        """Return the wrapped stream's attribute."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or discard after a failure; return the number of characters."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """Flush the buffer, or discard it after a failure."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            self.fault = error.strerror or str(error)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())  # discards what is still buffered
        os.close(null)


@contextmanager
def safe_output() -> Iterator[None]:
    """Keep the program running when stdout or stderr cannot be written.

    Characters that their encoding lacks are written in words, such as eps.

    Raises:
        SystemExit: with 2, once the program has finished, if output was lost, e.g. on a full disk.
    """
    _open_closed_streams()
    streams = sys.stdout, sys.stderr
    before = [_encode_by(stream, "dpexp.plain") for stream in streams]
    safe = sys.stdout, sys.stderr = _SafeStream(streams[0]), _SafeStream(streams[1])
    try:
        yield
    except SystemExit as end:
        sys.stdout.flush()
        if end.code or not safe[0].fault:
            raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
        for stream, errors in zip(streams, before, strict=True):
            _encode_by(stream, errors)
    if fault := safe[0].fault:
        print(f"error: Cannot write the output: {fault}.", file=sys.stderr)
        raise SystemExit(2)


def _encode_by(stream: TextIO, errors: str | None) -> str | None:
    """Set what a stream does with characters that its encoding lacks; return what it did before."""
    before = stream.errors
    if isinstance(stream, io.TextIOWrapper) and errors is not None:
        # Python asks a stream for its position, which one that was a file and is a pipe now lacks.
        with suppress(OSError, ValueError):
            stream.reconfigure(errors=errors)
    return before


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null; a file opened next would take their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))
