"""Measure all that a GPU is wanted for, in one command of 25 minutes that goes on where it stopped.

python -m scripts.gpu_report [--device cuda] [--minutes 25] [--dry]

Its parts are the tests that need a GPU, and every case of `make bench` with batches that keep one
busy. Each writes results/bench/<gpu>-<part>.md; results/bench/<gpu>-report.csv says which are done,
how long each took, and at which commit. A part that is done at this commit is not done again. One
that would not end in time is not begun, and stopped where it takes longer than thought.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.cli import errors
from dpexp.records import git_commit, write_atomically
from dpexp.types import ConfigError
from scripts.bench.words import STEPS, Parser

if TYPE_CHECKING:
    import pandas as pd

BUSY = {"vision": (512, 9), "language": (64, 9), "recipes-vision": (512, 5)}
"""Batch and rounds of a case on a GPU (ours); others take 256 examples and five rounds."""

MINUTES = {"tests": 2.0, "vision": 4.0, "language": 4.0, "gep": 3.0, "recipes-tuned": 2.0}
"""What a part takes at most on an H200, a start and what it loads included; others take five. The
last is a guess: it was not run on one."""

UNKNOWN = "unknown"

COLUMNS = ["part", "commit", "seconds", "outcome"]


@dataclass(frozen=True)
class Part:
    """One command of the report.

    Attributes:
        name: in the table.
        command: its words.
        minutes: that it is thought to take at most.
    """

    name: str
    command: Sequence[str]
    minutes: float


def parts(device: str, results: Path) -> list[Part]:
    """Return all parts, the tests first: a number of what is wrong is worth nothing."""
    python = [sys.executable, "-m"]
    found = [("tests", [*python, "pytest", "-q", "tests/test_cuda.py"])]
    for name in (*STEPS, "gep"):
        batch, rounds = BUSY.get(name, (256, 5))
        words = ["--only", name, "--device", device, "--results", str(results)]
        sizes = [] if name == "gep" else ["--batch", str(batch), "--rounds", str(rounds)]
        found.append((name, [*python, "scripts.bench", *words, *sizes]))
    return [Part(name, words, MINUTES.get(name, 5.0)) for name, words in found]


def ledger(path: Path) -> pd.DataFrame:
    """Return what was done before: a row a part; of columns `COLUMNS`."""
    import pandas as pd  # slow, as is torch: a mistake in the words waits for neither

    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return pd.read_csv(StringIO(text)) if text else pd.DataFrame(columns=COLUMNS)


def is_done(before: pd.DataFrame, part: Part, commit: str) -> bool:
    """Return whether a part ended well at a commit; with changes since, no one knows."""
    rows = before[(before["part"] == part.name) & (before["commit"] == commit)]
    return commit != UNKNOWN and "+" not in commit and bool((rows["outcome"] == "done").any())


def take(part: Part, seconds: float) -> tuple[str, str]:
    """Run a part for so long at most; return how it ended, and what it said.

    A part starts processes of its own, which would go on beside the next part: all end with it.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(part.command, text=True, start_new_session=True, **pipes) as begun:
        try:
            said, _ = begun.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return "out of time", ""
        finally:
            with suppress(ProcessLookupError, PermissionError):  # none is left
                os.killpg(begun.pid, signal.SIGKILL)
    outcome = "done" if begun.returncode == 0 else f"exit code {begun.returncode}"
    return outcome, said.strip()


def report(todo: Sequence[Part], path: Path, minutes: float, commit: str) -> int:
    """Take the parts that are not done, as far as time goes; return how many are left.

    Args:
        todo: in their order.
        path: of the table of what is done, which is written after every part.
        minutes: in all.
        commit: of the code.
    """
    import pandas as pd

    ends, left = time.monotonic() + 60 * minutes, 0
    for part in todo:
        before, room = ledger(path), ends - time.monotonic()
        if is_done(before, part, commit):
            print(f"{part.name}: done before", flush=True)
            continue
        if 60 * part.minutes > room:
            print(f"{part.name}: not begun, as it may take {part.minutes:g} minutes", flush=True)
            left += 1
            continue
        began = time.monotonic()
        outcome, said = take(part, room)
        row = [part.name, commit, round(time.monotonic() - began, 1), outcome]
        rows = [*before[before["part"] != part.name].values.tolist(), row]
        write_atomically(path, pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False))
        print(f"{part.name}: {outcome}, {row[2]} s\n{said[-4000:]}", flush=True)
        left += outcome != "done"
    return left


def main() -> int:
    """Take the report, or say what it would do; the exit code is 1 where some parts are left."""
    parser = Parser(prog="python -m scripts.gpu_report", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu to try the report where no GPU is")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--dry", action="store_true", help="say what would be done, and do nothing")
    arguments = parser.parse_args()
    if not arguments.minutes > 0:
        raise ConfigError(f"Expected --minutes above 0; got {arguments.minutes:g}.")
    commit = git_commit() or UNKNOWN
    if arguments.dry:
        for part in parts(arguments.device, arguments.results):
            print(f"{part.name} (at most {part.minutes:g} min): {' '.join(part.command[1:])}")
        return 0
    from dpexp.distributed.ranks import choose_device
    from scripts.bench.measuring import stem_of

    stem = stem_of(choose_device(arguments.device), arguments.results)
    path = stem.with_name(f"{stem.name}-report.csv")
    left = report(parts(arguments.device, arguments.results), path, arguments.minutes, commit)
    if left:
        print(f"{left} parts are left: run it again to go on.")
    return int(left > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(errors.fail(str(error)))
