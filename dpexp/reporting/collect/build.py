"""Execute missing runs; if one fails, log the reason and continue."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from dpexp import records
from dpexp.reporting.collect.cells import Job
from dpexp.reporting.collect.outcomes import (
    FAILED,
    NO_DATA,
    NOT_RUN,
    REFUSED,
    Outcome,
    log_path,
    outcome,
)
from dpexp.reporting.collect.readings import metric
from dpexp.reporting.collect.values import NOT_FINITE
from dpexp.types import ConfigError, MissingData, counted, one_line

Execute = Callable[[dict[str, Any]], Path]
"""Executes one run and returns its directory; raises ConfigError for user errors."""

WRONG = "wrong config: "
BUSY = "busy: "
PAUSE = 1.0
"""Seconds between checks of a run that another process is executing."""

Launch = Callable[[list[list[str]]], None]
"""Executes one run per list of overrides with `attempt`, on any machine."""


def save(path: Path, content: str | bytes) -> None:
    """Write a file atomically; create its folder.

    Raises:
        RecordError: the disk is full or the folder can't be written; the old file survives.
    """
    records.make_folder(path.parent)
    data = content.encode() if isinstance(content, str) else content

    def fill(file: IO[bytes]) -> None:
        file.write(data)

    records.replace_file(path, fill)


def attempt(config: dict[str, Any], run_id: str, execute: Execute, results: Path) -> str:
    """Execute one run; if it fails, write the reason to the log that `outcomes.outcome` reads.

    Returns:
        "" or the first line of the reason. If another process is executing the run, `BUSY` and the
        name of that process; no log is written then.
    """
    log = log_path(results, config, run_id)
    try:
        execute(config)
    except records.Busy as error:
        return f"{BUSY}{error}"
    except MissingData as error:
        reason = text = f"{NO_DATA}: {one_line(error)}"
    except ConfigError as error:
        reason = text = f"{WRONG}{one_line(error)}"
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        text = f"{reason}\n\n{traceback.format_exc()}"
    else:
        log.unlink(missing_ok=True)
        return ""
    save(log, text.rstrip("\n") + "\n")
    return reason


def mistake(item: Outcome) -> str:
    """Return the user error in a failed run's log; "" if the log holds a traceback."""
    if item.status != FAILED:
        return ""
    first = Path(item.detail).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix(WRONG) if first.startswith(WRONG) else ""


def missing(outcomes: Iterable[Outcome]) -> list[Job]:
    """Return the runs to execute, each config once; failed ones are retried."""
    retried = (NOT_RUN, NO_DATA, FAILED)
    return list({o.job.run_id: o.job for o in outcomes if o.status in retried}.values())


class Report:
    """Prints how each run ended, and keeps track of missing data."""

    def __init__(
        self,
        total: int,
        results: Path,
        say: Callable[[str], None] = print,
        stop_at_mistake: bool = False,
    ) -> None:
        """Start a report of `total` runs.

        Args:
            total: number of runs.
            results: the results folder.
            say: prints a line, one per run.
            stop_at_mistake: whether the first refused config ends the build; set it if the user's
                overrides apply to every cell.
        """
        self._total, self._results, self._say = total, results, say
        self._stop_at_mistake = stop_at_mistake
        self._number = 0
        self._absent: dict[str, str] = {}

    def is_hopeless(self, job: Job) -> bool:
        """Return whether a run lacks the same data as an earlier one; if so, log and report it."""
        config = job.config or {}
        reason = self._absent.get(sources(config))
        if reason is None:
            return False
        attempt(config, job.run_id, _refuse(reason), self._results)
        self._print(job, f"{NO_DATA}, as above", 0.0)
        return True

    def ended(self, job: Job, reason: str, seconds: float) -> None:
        """Report the result of `attempt`; raise ConfigError if a user error ends the build."""
        if self._stop_at_mistake and reason.startswith(WRONG):
            raise ConfigError(f"{job.name}: {reason.removeprefix(WRONG)}")
        if reason.startswith(NO_DATA):
            self._absent[sources(job.config or {})] = reason.removeprefix(f"{NO_DATA}: ")
        self._print(job, reason or _shown(job, self._results), seconds)

    def _print(self, job: Job, end: str, seconds: float) -> None:
        self._number += 1
        count = f"[{self._number:{len(str(self._total))}}/{self._total}]"
        self._say(f"{count} {job.name}, seed {job.seed}: {end} ({duration(seconds)})")


def run_missing(
    jobs: Sequence[Job],
    execute: Execute,
    results: Path,
    say: Callable[[str], None] = print,
    stop_at_mistake: bool = False,
) -> None:
    """Execute the runs that `missing` returned one after another, in this process.

    A run that another process is executing is left to it, and looked up once it has ended.

    Args:
        jobs: the runs.
        execute: see `Execute`.
        results: the results folder.
        say: see `Report`.
        stop_at_mistake: see `Report`.

    Raises:
        ConfigError: the first refused config, if `stop_at_mistake`.
    """
    report = Report(len(jobs), results, say, stop_at_mistake)
    while jobs:
        busy = []
        for job in jobs:
            if not report.is_hopeless(job):
                start = time.perf_counter()
                reason = attempt(job.config or {}, job.run_id, execute, results)
                if reason.startswith(BUSY):
                    busy.append(job)
                else:
                    report.ended(job, reason, time.perf_counter() - start)
        jobs = busy
        time.sleep(PAUSE if busy else 0.0)


def sources(config: dict[str, Any]) -> str:
    """Return a key of the data and model a config needs; equal keys lack the same data."""
    return repr((config["task"], config["model"]))


def _refuse(reason: str) -> Execute:
    def execute(config: dict[str, Any]) -> Path:
        raise MissingData(reason)

    return execute


def launch_missing(
    jobs: Sequence[Job], launch: Launch, results: Path, say: Callable[[str], None] = print
) -> None:
    """Submit all runs to a launcher at once; their outcomes are then read from disk.

    Wait for runs that another launcher is executing.
    """
    say(f"submitting {counted(len(jobs), 'run')} to the launcher")
    launch([list(job.overrides) for job in jobs])
    while any(records.is_held(results, job.config or {}) for job in jobs):
        time.sleep(PAUSE)


def _shown(job: Job, results: Path) -> str:
    ended = outcome(job, results)
    if ended.status != "done":
        return REFUSED if ended.status == REFUSED else "no record was written"
    number = metric(ended.result or {}, job.metric)
    return f"{number:.2f}" if math.isfinite(number) else NOT_FINITE


def duration(seconds: float) -> str:
    """Return seconds as text: 3.2 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
