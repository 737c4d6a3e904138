"""The budget ledger: steps that a run may have released, noted before each is taken."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpexp.records.files import RecordError, write_atomically
from dpexp.records.safely import parse_json

LEDGER = "released.jsonl"
"""Its name in a run's directory. The first line is a `Mark`; each step then adds a line with the
number of steps before it is taken, and if it may be repeated a second line before its release."""

COUNT = r"([0-9]{1,18})"
TOLD = COUNT + r', "([0-9a-f]{16})"'
LINE = re.compile(rf"{COUNT}|\[{TOLD}\]")
"""A whole line: a number of steps, alone or with a fingerprint of what the last of them released.
"""


@dataclass(frozen=True)
class Mark:
    """Upper bound on the steps a run released before it was killed.

    Attributes:
        data: fingerprint of the task's examples.
        steps: number of steps that may have been released.
        begun_from: step of the checkpoint from which the run last started.
        begun_at: step at which it last started; later than `begun_from` if steps were lost.
        surroundings: fingerprint of whatever affects rounding; None if no step can be repeated.
        run: id of the run; "" in a ledger written by an older version.
        own_code: hashes of the user's code that the run began with (`dpexp.records.own_code`).
        starts: every start at which nothing was repeated, as its `begun_from` and `begun_at`:
            "8-10,11-13". A checkpoint holds those that led to its weights.
        released: fingerprints of noisy releases, by the number of steps with that release's own.
    """

    data: str
    steps: int
    begun_from: int = 0
    begun_at: int = 0
    surroundings: Mapping[str, Any] | None = None
    run: str = ""
    own_code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    starts: str = ""
    released: Mapping[str, str] = field(default_factory=dict)

    def resumed(self, step: int, surroundings: Mapping[str, Any] | None, starts: str = "") -> Mark:
        """Return the mark of a killed run that resumes at `begun_at`, or its checkpoint if later.

        A step repeated bit for bit releases nothing new. A step that differs, even by rounding,
        does: both releases carry the same noise, so their difference carries none. Where steps
        cannot be repeated exactly, those that may have been released are counted as spent and
        skipped. So they are where the checkpoint is one of before the last start: an older file,
        put back, leads to other weights.

        Args:
            step: of the checkpoint; 0 without one.
            surroundings: the resumed run's; None if no step can be repeated in them.
            starts: of the checkpoint.
        """
        is_same = surroundings is not None and surroundings == self.surroundings
        is_behind = step >= self.begun_at and starts == self.starts
        before, _, _ = self.starts.rpartition(",")
        if is_same and (is_behind or (step == self.begun_from and starts == before)):
            return self
        spent = max(self.steps, step)
        starts = f"{starts},{step}-{spent}".lstrip(",")
        return Mark(self.data, spent, step, spent, surroundings, self.run, self.own_code, starts)


def read_mark(directory: Path) -> Mark | None:
    """Read a run's ledger; None if there is none, or any whole line of it is damaged.

    The damaged line may have held the largest count.
    """
    try:
        head, *counts = (directory / LEDGER).read_text(errors="replace").split("\n")
        mark = Mark(**parse_json(head))
    except (OSError, ValueError, TypeError):
        return None
    if not all(type(n) is int and n >= 0 for n in (mark.steps, mark.begun_from, mark.begun_at)):
        return None
    if not isinstance(mark.starts, str) or not isinstance(mark.released, dict):
        return None
    # Text after the last line break was torn by a kill: its step had not begun.
    whole = [LINE.fullmatch(count) for count in counts[:-1]]
    steps, released = [mark.steps], dict(mark.released)
    for line in whole:
        if line is None:
            return None
        alone, step, told = line.groups()
        steps.append(int(alone or step))
        if told:
            released[step] = told
    return replace(mark, steps=max(steps), released=released)


class DiffersError(RecordError):
    """What was released before now comes out otherwise, under the same noise."""


class Ledger:
    """Writes a run's ledger.

    Attributes:
        can_repeat: whether the releases since the checkpoint can be repeated bit for bit.
    """

    def __init__(self, directory: Path, mark: Mark, is_durable: bool) -> None:
        """Write the first line.

        Args:
            directory: the run's.
            mark: the run's mark so far.
            is_durable: whether the ledger must survive a crash of the machine, not only of the
                process.

        Raises:
            RecordError: if it cannot be written.
        """
        self._path, self._is_durable = directory / LEDGER, is_durable
        self._of = mark
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
                f"Cannot write {self._path}: {error.strerror}. A step must be noted before it is "
                "taken; make room and run the same command again."
            ) from error

    @property
    def starts(self) -> str:
        """Return the starts that led to the run's next checkpoints."""
        return self._of.starts

    def note(self, steps: int) -> None:
        """Note that this many steps may have been released from now on.

        Raises:
            RecordError: if it cannot be written.
        """
        self._write(str(steps))

    def note_release(self, steps: int, fingerprint: str) -> None:
        """Note what the last of some steps is about to release, where it can be repeated.

        Args:
            steps: taken, that one included.
            fingerprint: of its noisy releases: 16 hexadecimal digits.

        Raises:
            DiffersError: if that step was released before this process began, and differed. Then
                nothing can be repeated any more.
            RecordError: if it cannot be written.
        """
        if not self.can_repeat:
            return
        before = self._of.released.get(str(steps))
        if before is None:
            self._write(json.dumps([steps, fingerprint]))
        elif before != fingerprint:
            self.close()
            self._begin(replace(self._of, surroundings=None, released={}))
            raise DiffersError(
                f"Step {steps} was released before the run was killed, and now comes out "
                "otherwise: the model, the loss or other code keeps something from step to step "
                "that no checkpoint has, or the machine adds in another order. Nothing was "
                "released again. Run the same command again: such steps then count as spent."
            )

    def _write(self, line: str) -> None:
        with self._worded():
            self._file.write(f"{line}\n".encode())
            self._file.flush()
            if self._is_durable:
                os.fsync(self._file.fileno())

    def rule_out_repeating(self, steps: int) -> None:
        """Note that this many steps may have been released and none can be repeated exactly.

        Raises:
            RecordError: if it cannot be written, or if the last of these steps was noted before
                this process began: it may be repeated only as it was.
        """
        if steps <= self._of.steps:
            raise RecordError(
                f"Memory ran out in step {steps}, which may have been released before the run was "
                "killed. In smaller micro-batches it would be rounded otherwise, under the same "
                "noise. Free memory and run it again, or set a smaller micro_batch: such steps "
                "then count as spent."
            )
        self.close()
        self._begin(Mark(self._of.data, steps, run=self._of.run, own_code=self._of.own_code))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()
