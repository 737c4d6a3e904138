"""Show a run's progress: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tqdm import tqdm

from dpexp.records.rounded import at_most

REDRAW = 0.1
"""Seconds between two drawings of the bar (ours)."""

LINE_EVERY = 5.0
"""Seconds between two lines where there is no bar, and after four minutes a fiftieth of the time
that has passed (ours): a log of days stays readable."""

DRAWING = 0.02
"""Largest share of the time that drawing may take, an epsilon's computation included (ours)."""

QUIET = ("nonfinite", "nonfinite_outputs")
"""Counts that are shown only if they are not zero."""

NO_SCORE = ("step", "epoch", "epsilon", "train_loss", "clip_fraction", *QUIET)
"""Entries of an evaluation that are not a test set's metric."""

LEAST_BAR = 12
"""Columns below which the bar is left out in favour of words (ours)."""

LINE = 80
"""Columns of a line where there is no bar (ours)."""

LEAST_LABEL = 8
"""Columns below which a line has no label (ours)."""

ROWS = 20
"""Rows of a terminal, for tqdm: of those that say they have none it would hide the bar (ours)."""

NOTEBOOK = "ipykernel"
"""The package whose streams a notebook shows; a carriage return rewrites their last line."""

Tell = Callable[[float | str], None]
"""Takes the part of the run that is done, in [0, 1], or a line to show."""

TELL_EVERY = 0.5
"""Seconds between two parts that are told (ours)."""

_tell_part: Tell | None = None
_tell_line: Tell | None = None

tqdm.set_lock(threading.RLock())  # tqdm's own uses a semaphore, which a killed run leaks


def tell(other: Tell) -> None:
    """Have another process show what this one would: how far its run is, and its lines."""
    global _tell_part
    tell_lines(other)
    _tell_part = other


def tell_lines(other: Tell) -> None:
    """Have another process show this one's lines, but for how far its run is."""
    global _tell_line
    _tell_line = other


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that moves its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def above_bar(stream: TextIO) -> Iterator[None]:
    """Take the bar away while something else is written to its stream."""
    with tqdm.external_write_mode(file=stream):
        yield


def folded(text: str, stream: TextIO) -> str:
    """Return text whose lines break between words where a terminal would break them in one.

    Where the stream is no terminal the text stays as it is, for logs and programs. A word that is
    longer than the terminal is wide, such as a path, stays whole.
    """
    try:
        if not stream.isatty():
            return text
    except ValueError:  # it is closed
        return text
    columns = columns_of(stream)
    fold = textwrap.TextWrapper(
        columns,
        subsequent_indent="  ",
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = (line if len(line) <= columns else fold.fill(line) for line in text.split("\n"))
    return "\n".join(lines)


def say(line: str) -> None:
    """Print a line to standard error, above a bar and as wide as the terminal."""
    if _tell_line is not None:
        _tell_line(line)
        return
    stream = sys.stderr or io.StringIO()
    with above_bar(stream):
        print(folded(line, stream), file=stream, flush=True)


class LogHandler(logging.StreamHandler):
    """Logs above the bar, as wide as the terminal (conf/hydra/job_logging)."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a message as it is written."""
        return folded(super().format(record), self.stream)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        if _tell_line is not None:
            _tell_line(super().format(record))
            return
        with above_bar(self.stream):
            super().emit(record)


@contextmanager
def ignoring_output_errors() -> Iterator[None]:
    """Ignore failed output, e.g. if the terminal is gone or the log's disk is full.

    A closed file raises ValueError.
    """
    with suppress(OSError, ValueError):
        yield


class _Bar(tqdm):
    """tqdm's bar between words of ours."""

    before = after = ""

    @property
    def format_dict(self) -> dict[str, Any]:
        """Return what `bar_format` may name."""
        return {**super().format_dict, "before": self.before, "after": self.after}


class Progress:
    """Steps, epsilon, score and time left: a bar on a terminal, a line now and then elsewhere.

    The bar moves with the micro-batches and is as wide as the terminal; where that is narrow, words
    get shorter and the bar makes room. A notebook gets the bar of a terminal of 80 columns. A
    terminal that moves no cursor (TERM=dumb) gets lines, of 80 columns at most where the numbers of
    a step and its score fit in those.
    Output that cannot be written is dropped, and the run continues.

    Args:
        total_steps: of the whole run.
        label: of the run.
        stream: where to write; standard error by default, so that standard output stays clean.
        spent: returns the epsilon after a number of steps; None: that of the last evaluation is
            shown.
        target: the epsilon that the run may spend; None without one.
    """

    def __init__(
        self,
        total_steps: int,
        label: str = "",
        stream: TextIO | None = None,
        spent: Callable[[int], float | None] | None = None,
        target: float | None = None,
    ) -> None:
        # Python has no standard error if it was started with that closed.
        self._stream = stream or sys.stderr or io.StringIO()
        self._label, self._total, self._target = label, total_steps, target
        self._spent = spent
        self._epsilon: tuple[int, float | None] = (-1, None)
        self._words: dict[str, str] = {}
        self._score: tuple[str, str] | None = None
        self._bar: _Bar | None = None
        is_notebook = type(self._stream).__module__.startswith(NOTEBOOK)
        self._has_bar = is_terminal(self._stream) or is_notebook
        self._drawn, self._cost = time.perf_counter(), 0.0
        self.start_from(0)

    def start_from(self, step: int) -> None:
        """Set the step after resuming; earlier steps do not count in the speed."""
        self._first = self._step = step
        self._part = 0.0
        self._examples = 0
        self._began = time.perf_counter()
        if self._bar is not None:
            self._show()

    @property
    def examples_per_s(self) -> float:
        """Examples per second since this process began."""
        return self._examples / max(time.perf_counter() - self._began, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the rest will take at the current speed; None before the first example."""
        done = self._step + self._part - self._first
        rest = self._total - self._step - self._part
        return (time.perf_counter() - self._began) / done * rest if done > 0 else None

    def advance(self, examples: int) -> None:
        """Count a step and its examples."""
        self._step += 1
        self._part = 0.0
        self._examples += examples
        self._show_if_due()

    def move(self, part: float) -> None:
        """Show that a part of the current step is done.

        Args:
            part: in [0, 1].
        """
        self._part = part
        self._show_if_due()

    def report(self, line: Mapping[str, Any]) -> None:
        """Show an evaluation's metrics."""
        numbers = {
            key: f"{value:.4g}"
            for key, value in line.items()
            if isinstance(value, int | float) and not (key in QUIET and value == 0)
        }
        self._words = {key: numbers[key] for key in numbers if key not in ("step", "epoch")}
        self._score = next((item for item in numbers.items() if item[0] not in NO_SCORE), None)
        if "epsilon" in line:
            self._epsilon = (self._step, line["epsilon"])
        self._show()

    def _show_if_due(self) -> None:
        now = time.perf_counter()
        every = REDRAW if self._has_bar else max(LINE_EVERY, (now - self._began) / 50)
        every = every if _tell_part is None else TELL_EVERY
        if now - self._drawn >= max(every, self._cost / DRAWING):
            self._show()

    def _show(self) -> None:
        began = time.perf_counter()
        with ignoring_output_errors():
            if _tell_part is not None:
                _tell_part(min((self._step + self._part) / max(self._total, 1), 1.0))
            elif self._has_bar:
                self._draw()
            else:
                with above_bar(self._stream):
                    print(self._line(), file=self._stream, flush=True)
        self._drawn = time.perf_counter()
        self._cost = self._drawn - began

    def _epsilon_now(self) -> float | None:
        step, epsilon = self._epsilon
        if self._spent is not None and step != self._step:
            epsilon = self._spent(self._step)
            self._epsilon = (self._step, epsilon)
        return epsilon

    def _line(self) -> str:
        words = {"examples/s": f"{self.examples_per_s:.0f}", **self._words}
        if (epsilon := self._epsilon_now()) is not None:
            words["epsilon"] = at_most(epsilon)
        words["left"] = self._left()
        needed = {*QUIET, "epsilon", "left", *(self._score or ())[:1]}
        spare = [key for key in words if key not in needed]
        spare.sort(key=lambda key: (key != "examples/s", key == "train_loss"))
        while spare and len(self._labelled(words, len(self._label))) > LINE:
            del words[spare.pop(0)]
        over = len(self._labelled(words, len(self._label))) - LINE
        return self._labelled(words, len(self._label) - max(over, 0))

    def _labelled(self, words: Mapping[str, str], columns: int) -> str:
        """Return a line whose label takes some columns; none where they are too few."""
        said = " ".join(f"{key}={value}" for key, value in words.items())
        label = self._label
        if columns < len(label):
            label = f"{label[: columns - 3]}..." if columns >= LEAST_LABEL else ""
        return f"{label} step {self._step}/{self._total} {said}".strip()

    def _left(self) -> str:
        left = self.seconds_left
        return "?" if left is None else tqdm.format_interval(left)

    def _draw(self) -> None:
        if self._bar is None:
            # Made only now, so that what is logged before the first step finds no bar in its way.
            self._bar = _Bar(
                total=self._total, file=self._stream, nrows=ROWS, leave=False, delay=1e-9
            )
        columns = columns_of(self._stream)
        self._bar.ncols = columns
        self._bar.n = min(self._step + self._part, self._total)
        self._bar.before, self._bar.after = self._fitted(columns)
        self._bar.bar_format = "{before}{bar}{after}" if self._bar.before else "{after}"
        self._bar.refresh()

    def _fitted(self, columns: int) -> tuple[str, str]:
        """Return the words before and after the bar that fit; where none fits, "" and words."""
        epsilon, left = self._epsilon_now(), self._left()
        done = f"{self._step}/{self._total}"
        long, short = [f"step {done}"], [done]
        if epsilon is not None:
            target = "" if self._target is None else f" of {self._target:g}"
            long.append(f"eps {at_most(epsilon, 3)}{target}")
            short.append(f"eps {at_most(epsilon, 2)}")
        if self._score is not None:
            name, value = self._score
            long.append(f"{name.removeprefix('test_').replace('_', ' ')} {value}")
            short.append(value)
        long.append(f"{left} left")
        short.append(left)
        loss = [f"loss {self._words['train_loss']}"] if "train_loss" in self._words else []
        longest = [*long, *loss, f"{self.examples_per_s:,.0f} examples/s"]
        percent = f"{(self._step + self._part) / self._total:4.0%} |"
        for before, words in (
            (f"{self._label} {percent}", longest),
            (percent, longest),
            (percent, long),
            (percent, short),
        ):
            after = "| " + "  ".join(words)
            if len(before) + LEAST_BAR + len(after) <= columns:
                return before, after
        return "", " ".join(long if len(" ".join(long)) <= columns else short)

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            with ignoring_output_errors():
                self._bar.close()

    def __enter__(self) -> Progress:
        """Nothing more to start."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def columns_of(stream: TextIO) -> int:
    """Return a terminal's width less one: some begin a new line after the last column."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return max(columns or shutil.get_terminal_size((80, 24)).columns, 2) - 1
