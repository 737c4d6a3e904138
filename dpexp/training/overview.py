"""Show how far several runs are that processes do side by side: one bar for all of them."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import TextIO

from tqdm import tqdm

from dpexp.training.progress import (
    ROWS,
    above_bar,
    columns_of,
    ignoring_output_errors,
    is_terminal,
    say,
    tell,
    tell_lines,
)

FORMAT = "{percentage:3.0f}% |{bar}| {n:.1f} of {total} runs  {remaining} left"


class Overview:
    """A bar on a terminal; elsewhere none, since each run writes a line now and then there.

    What several runs say alike, as warnings, is said once.

    Args:
        total: number of runs.
        stream: where to draw; standard error by default.
        said: lines that were said before.
    """

    def __init__(self, total: int, stream: TextIO | None = None, said: Iterable[str] = ()) -> None:
        self._stream = stream or sys.stderr or io.StringIO()  # None if Python began without one
        shows = is_terminal(self._stream)
        self.prepare = tell if shows else tell_lines
        """What a process calls with a function that hands things on."""
        self._parts: dict[str, float] = {}
        self._said = {*said}
        # Over the whole time, since runs differ: a rate of the last ones would jump.
        self._bar = tqdm(
            total=total,
            file=self._stream,
            ncols=columns_of(self._stream),
            nrows=ROWS,
            leave=False,
            smoothing=0,
            bar_format=FORMAT,
            disable=not shows,
        )

    def at(self, run: str, part: float) -> None:
        """Show that a part of a run is done.

        Args:
            run: its id.
            part: in [0, 1].
        """
        self._parts[run] = part
        self._bar.n, self._bar.ncols = sum(self._parts.values()), columns_of(self._stream)
        with ignoring_output_errors():
            self._bar.refresh()

    def say(self, line: str) -> None:
        """Print what a run says to standard error, above the bar."""
        if line not in self._said:
            self._said.add(line)
            say(line)

    def report(self, line: str) -> None:
        """Print a line to standard output, above the bar."""
        with above_bar(sys.stdout):
            print(line, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        with ignoring_output_errors():
            self._bar.close()
