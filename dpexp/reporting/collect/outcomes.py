"""Outcomes of runs: the record, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.privacy.verification.record import verify_record
from dpexp.reporting.collect.cells import Job

DONE = "done"
NOT_RUN, NOT_BUILT, NO_DATA, FAILED = "not run", "not built", "no data", "failed"
REFUSED = "refused"
"""A run whose certificate failed verification."""
WORST_FIRST = (REFUSED, FAILED, NO_DATA, NOT_BUILT, NOT_RUN)
TRUSTED = "taken on trust: "


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run.

    Attributes:
        job: the run.
        status: "done", or one of the five reasons above.
        detail: for a run that isn't done, a sentence or the path of its log.
        result, privacy: the record's result.json and privacy.json; None unless done.
        directory: the record's; None unless done.
        trusted: descriptions of what verification could not check.
    """

    job: Job
    status: str
    detail: str = ""
    result: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    directory: Path | None = None
    trusted: tuple[str, ...] = ()


def log_path(results: Path, config: Mapping[str, Any], run_id: str) -> Path:
    """Return the path of a failed run's log."""
    return results / config["profile"]["name"] / "logs" / f"{run_id}.log"


def outcome(job: Job, results: Path) -> Outcome:
    """Look up a run and verify its certificate; nothing is executed."""
    if job.config is None:
        return Outcome(job, NOT_BUILT, job.not_built)
    if job.contradicts:  # the overrides make it another run than the cell's
        return Outcome(job, NOT_RUN)
    record = records.find(results, job.config)
    if record is not None:
        verified = verify_record(record)
        if verified.findings:
            return Outcome(job, REFUSED, f"{record.directory}: {'; '.join(verified.findings)}")
        trusted = tuple(f"{TRUSTED}{word}" for word in verified.trusted)
        return Outcome(job, DONE, "", record.result, record.privacy, record.directory, trusted)
    if why := records.damage(records.locate(results, job.config)):
        return Outcome(job, NOT_RUN, f"the record {job.run_id} is damaged: {why}")
    log = log_path(results, job.config, job.run_id)
    if not log.is_file():
        return Outcome(job, NOT_RUN)
    first = log.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    if first.startswith(f"{NO_DATA}: "):
        return Outcome(job, NO_DATA, first.removeprefix(f"{NO_DATA}: "))
    return Outcome(job, FAILED, str(log))
