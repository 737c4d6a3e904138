"""How many of a run's steps may have been released, noted before each is taken."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.records.files import RecordError, write_atomically
from dpexp.records.safely import parse_json

LEDGER = "released.jsonl"
"""Its name in a run's directory: a line that says where the steps it counts began, then their
number, once a step."""

COUNT = r"[0-9]{1,18}"
"""A number of steps, as a whole line has it."""


@dataclass(frozen=True)
class Mark:
    """How far a run may have come before it was killed.

    Attributes:
        data: fingerprint of the task's examples.
        steps: that may have been released.
        begun_from: step of the checkpoint from which the last of them began.
        begun_at: step they began at; later than `begun_from` where steps were lost before.
        surroundings: what their rounding depends on; None where they cannot be repeated at all.
        run: id of the run; "" in a ledger of former code.
    """

    data: str
    steps: int
    begun_from: int = 0
    begun_at: int = 0
    surroundings: Mapping[str, Any] | None = None
    run: str = ""

    def taken_up(self, step: int, surroundings: Mapping[str, Any] | None) -> Mark:
        """Return the mark of a killed run that goes on: at `begun_at`, or its checkpoint if later.

        A step repeated to the last bit releases nothing new. One that differs, if only by rounding,
        does: both times the noise is the same, so that the difference of the two releases has none.
        Where steps cannot be repeated exactly, those that may have been released are therefore
        counted as spent and skipped.

        Args:
            step: of the checkpoint; 0 without one.
            surroundings: that the run goes on in; None if nothing can be repeated in them.
        """
        is_same = surroundings is not None and surroundings == self.surroundings
        if is_same and (step >= self.begun_at or step == self.begun_from):
            return self
        spent = max(self.steps, step)
        return Mark(self.data, spent, step, spent, surroundings, self.run)


def read_mark(directory: Path) -> Mark | None:
    """Read a run's ledger; None if there is none, or any whole line of it is damaged.

    A line that cannot be read may have been the one that counted furthest.
    """
    try:
        head, *counts = (directory / LEDGER).read_text(errors="replace").split("\n")
        mark = Mark(**parse_json(head))
    except (OSError, ValueError, TypeError):
        return None
    if not all(type(n) is int and n >= 0 for n in (mark.steps, mark.begun_from, mark.begun_at)):
        return None
    # What follows the last line's end was torn by a kill: its step had not begun.
    whole = counts[:-1]
    if not all(re.fullmatch(COUNT, count) for count in whole):
        return None
    return Mark(**vars(mark) | {"steps": max([mark.steps, *map(int, whole)])})


class Ledger:
    """Writes a run's ledger while it goes on.

    Attributes:
        can_repeat: whether what was released since the checkpoint can be released once more, to the
            last bit.
    """

    def __init__(self, directory: Path, mark: Mark, is_durable: bool) -> None:
        """Write the first line.

        Args:
            directory: the run's.
            mark: what is known so far.
            is_durable: whether it must outlast the machine, not only the process.

        Raises:
            RecordError: if it cannot be written.
        """
        self._path, self._is_durable = directory / LEDGER, is_durable
        self._data, self._run = mark.data, mark.run
        self._begin(mark)

    def _begin(self, mark: Mark) -> None:
        self.can_repeat = mark.surroundings is not None
        write_atomically(self._path, json.dumps(vars(mark)) + "\n")
        with self._worded():
            if self._is_durable:
                folder = os.open(self._path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
            self._file = self._path.open("ab")

    @contextmanager
    def _worded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(
                f"Cannot write {self._path}: {error.strerror}. No step is taken that is not noted; "
                "make room and run the same command again."
            ) from error

    def note(self, steps: int) -> None:
        """Note that so many steps may have been released from now on.

        Raises:
            RecordError: if it cannot be written.
        """
        with self._worded():
            self._file.write(b"%d\n" % steps)
            self._file.flush()
            if self._is_durable:
                os.fsync(self._file.fileno())

    def rule_out_repeating(self, steps: int) -> None:
        """Note that so many steps may have been released, and none can be repeated exactly.

        Raises:
            RecordError: if it cannot be written.
        """
        self.close()
        self._begin(Mark(self._data, steps, run=self._run))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()
