"""Runs what is missing, goes on when a run fails, and keeps the reason."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

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
from dpexp.types import ConfigError, MissingData, one_line

Execute = Callable[[dict[str, Any]], Path]
"""Does one run and returns its directory; raises ConfigError for the user's mistakes."""

WRONG = "wrong config: "
BUSY = "busy: "
PAUSE = 1.0
"""Seconds until a run that another process is doing is looked up again."""

Launch = Callable[[list[list[str]]], None]
"""Does one run per list of overrides, on any machine, each by `attempt`."""


def save(path: Path, content: str | bytes) -> None:
    """Write a file atomically, and make its folder.

    Raises:
        RecordError: if the disk is full or the folder can't be written; the old file survives.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise records.RecordError(f"Cannot make {path.parent}: {error.strerror}.") from error
    data = content.encode() if isinstance(content, str) else content
    records.replace_file(path, lambda file: file.write(data))


def attempt(config: dict[str, Any], run_id: str, execute: Execute, results: Path) -> str:
    """Do one run; if it fails, write the reason to its log, where `outcomes.outcome` reads it.

    Returns:
        "" or the first line of the reason. For a run that another process is doing, `BUSY` and
        which process; no log is written.
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
    """Return the user's mistake in a failed run's log; "" if the log holds a traceback."""
    if item.status != FAILED:
        return ""
    first = Path(item.detail).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix(WRONG) if first.startswith(WRONG) else ""


def missing(outcomes: Iterable[Outcome]) -> list[Job]:
    """Return the runs to do, each config once; failed ones are tried again."""
    again = (NOT_RUN, NO_DATA, FAILED)
    return list({o.job.run_id: o.job for o in outcomes if o.status in again}.values())


class Report:
    """Prints how each run ended, and remembers which data are missing."""

    def __init__(
        self,
        total: int,
        results: Path,
        say: Callable[[str], None] = print,
        stop_at_mistake: bool = False,
    ) -> None:
        """Start with none of `total` runs done.

        Args:
            total: how many runs there are.
            results: the results folder.
            say: takes one line a run.
            stop_at_mistake: whether the first refused config ends the build; so it should where
                the user's overrides go to every cell.
        """
        self._total, self._results, self._say = total, results, say
        self._stop_at_mistake = stop_at_mistake
        self._number = 0
        self._absent: dict[str, str] = {}

    def is_hopeless(self, job: Job) -> bool:
        """Return whether a run lacks what another lacked; if so, log and report it."""
        config = job.config or {}
        known = self._absent.get(sources(config))
        if known is None:
            return False
        attempt(config, job.run_id, _refuse(known), self._results)
        self._tell(job, f"{NO_DATA}, as above", 0.0)
        return True

    def ended(self, job: Job, reason: str, seconds: float) -> None:
        """Report what `attempt` returned; raises ConfigError at a mistake that ends the build."""
        if self._stop_at_mistake and reason.startswith(WRONG):
            raise ConfigError(reason.removeprefix(WRONG))
        if reason.startswith(NO_DATA):
            self._absent[sources(job.config or {})] = reason.removeprefix(f"{NO_DATA}: ")
        self._tell(job, reason or _shown(job, self._results), seconds)

    def _tell(self, job: Job, end: str, seconds: float) -> None:
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
    """Do the runs that `missing` returned in this process, one after another.

    A run that another process is doing is left to it, and looked up once it has ended.

    Args:
        jobs: the runs.
        execute: see `Execute`.
        results: the results folder.
        say: see `Report`.
        stop_at_mistake: see `Report`.

    Raises:
        ConfigError: for the first refused config, if `stop_at_mistake`.
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
    """Return a key of the data and model a config needs; runs that share it lack the same."""
    return repr((config["task"], config["model"]))


def _refuse(sentence: str) -> Execute:
    def execute(config: dict[str, Any]) -> Path:
        raise MissingData(sentence)

    return execute


def launch_missing(
    jobs: Sequence[Job], launch: Launch, results: Path, say: Callable[[str], None] = print
) -> None:
    """Hand all runs to a launcher at once; their outcomes are then read from disk.

    Runs that another launcher is doing are waited for.
    """
    say(f"handing {len(jobs)} runs to the launcher")
    launch([list(job.overrides) for job in jobs])
    while any(records.is_held(results, job.config or {}) for job in jobs):
        time.sleep(PAUSE)


def _shown(job: Job, results: Path) -> str:
    found = outcome(job, results)
    if found.status != "done":
        return REFUSED if found.status == REFUSED else "no record was left"
    return f"{metric(found.result or {}, job.metric):.2f}"


def duration(seconds: float) -> str:
    """Return seconds as text: 3.2 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
