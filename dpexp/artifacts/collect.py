"""From run records to a table's cells: mean, spread and count, or the reason there is none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.artifacts.cells import Job
from dpexp.artifacts.spec import Artifact, Key
from dpexp.mechanism.recheck import recheck

NOT_RUN, NOT_BUILT, NO_DATA, FAILED = "not run", "not built", "no data", "failed"
REFUSED = "refused"
"""Of a run whose certificate does not hold when it is recomputed."""
SKIPPED = "not run here"
"""Of a cell that the profile skips."""
_WORST_FIRST = (REFUSED, FAILED, NO_DATA, NOT_BUILT, NOT_RUN)


@dataclass(frozen=True)
class Outcome:
    """What there is of one run.

    Attributes:
        job: the run.
        status: "done", or one of the five reasons above.
        detail: for a run that isn't done, the sentence or the log to look at.
        result, privacy: the record's result.json and privacy.json, empty unless done.
    """

    job: Job
    status: str
    detail: str = ""
    result: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Value:
    """One cell of the table.

    Attributes:
        cell: row key and column key.
        status: "done" if at least one seed is, else why not.
        details: sentences on the runs that failed or have no data, each once.
        mean, std: over the seeds done; std (ddof 1) is None with fewer than two of them.
        num_seeds: how many are done.
        asked: how many there should be.
        published: the paper's value, or None.
        epsilon, noise_multiplier: the largest over the seeds; None where nothing private was
            released.
        deviations: what the certificates admit, each once.
        run_ids: of the runs done.
    """

    cell: Key
    status: str
    details: tuple[str, ...] = ()
    mean: float | None = None
    std: float | None = None
    num_seeds: int = 0
    asked: int = 0
    published: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    deviations: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Give measured minus published, None if either is missing."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published


def log_path(results: Path, config: Mapping[str, Any], run_id: str) -> Path:
    """Say where a run that failed leaves its words."""
    return results / config["profile"]["name"] / "logs" / f"{run_id}.log"


def outcome(job: Job, results: Path) -> Outcome:
    """Look up what there is of a run, and recompute its certificate; reads, never runs."""
    if job.config is None:
        return Outcome(job, NOT_BUILT, job.not_built)
    record = records.find(results, job.config)
    if record is not None:
        findings = recheck(record.config, record.result, record.privacy).findings
        if findings:
            return Outcome(job, REFUSED, f"{record.directory}: {'; '.join(findings)}")
        return Outcome(job, "done", "", record.result, record.privacy)
    log = log_path(results, job.config, job.run_id)
    if not log.is_file():
        return Outcome(job, NOT_RUN)
    first = log.read_text(encoding="utf-8").partition("\n")[0]
    if first.startswith(f"{NO_DATA}: "):
        return Outcome(job, NO_DATA, first.removeprefix(f"{NO_DATA}: "))
    return Outcome(job, FAILED, str(log))


def collect(artifact: Artifact, outcomes: Iterable[Outcome]) -> dict[Key, Value]:
    """Aggregate the outcomes of all runs by cell, every cell of the artifact included."""
    by_cell: dict[Key, list[Outcome]] = {}
    for item in outcomes:
        by_cell.setdefault(item.job.cell, []).append(item)
    values = {}
    for row in artifact.rows:
        for column in artifact.columns:
            cell, shown = (row.key, column.key), (row.key, artifact.run_column(row, column).key)
            published = artifact.published.get(cell) or artifact.published.get(shown)
            number = published.value if published else None
            values[cell] = _value(cell, by_cell.get(shown, []), number)
        if artifact.average is not None:
            cell = (row.key, artifact.average.key)
            cells = [by_cell.get((row.key, column.key), []) for column in artifact.columns]
            values[cell] = _average(artifact, cell, cells)
    return values


def _value(cell: Key, items: Sequence[Outcome], published: float | None) -> Value:
    if not items:
        return Value(cell, SKIPPED, published=published)
    done = [item for item in items if item.status == "done"]
    rest = [item for item in items if item.status != "done"]
    mean, std = mean_and_std([metric(item.result or {}, item.job.metric) for item in done])
    statuses = {item.status for item in rest}
    privacy = [item.privacy or {} for item in done]
    return Value(
        cell=cell,
        status="done" if done else next(s for s in _WORST_FIRST if s in statuses),
        details=_once(f"{i.status}: {_detail(i)}" for i in rest if i.detail),
        mean=mean,
        std=std,
        num_seeds=len(done),
        asked=len(items),
        published=published,
        epsilon=_largest(epsilon(p) for p in privacy),
        noise_multiplier=_largest(p.get("noise_multiplier") for p in privacy),
        deviations=_once(str(word) for p in privacy for word in p.get("deviations", [])),
        run_ids=tuple(item.job.run_id for item in done),
    )


def _average(artifact: Artifact, cell: Key, cells: Sequence[Sequence[Outcome]]) -> Value:
    """Average a row over the seeds that all of its cells have, every number of a record apart."""
    by_seed: dict[int, list[Outcome]] = {}
    for item in (item for items in cells for item in items):
        by_seed.setdefault(item.job.seed, []).append(item)
    means = [
        statistics.fmean(n for i in items for n in numbers(i.result or {}, i.job.metric))
        for items in by_seed.values()
        if len(items) == len(cells) and all(item.status == "done" for item in items)
    ]
    mean, std = mean_and_std(means)
    published = artifact.published.get(cell)
    return Value(
        cell=cell,
        status="done" if means else NOT_RUN,
        mean=mean,
        std=std,
        num_seeds=len(means),
        asked=len(by_seed),
        published=published.value if published else None,
    )


def _detail(item: Outcome) -> str:
    return f"see {item.detail}" if item.status == FAILED else item.detail


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Give the mean and the sample standard deviation (ddof 1), None where undefined."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def metric(result: Mapping[str, Any], names: Sequence[str]) -> float:
    """Read a cell's number from a result.json: the mean of `numbers`."""
    return statistics.fmean(numbers(result, names))


def numbers(result: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    """Read the named numbers that a result.json has; its main one if it has none of them.

    Of a paper's two test sets, a task that stands in for the paper's may have one.
    """
    return [float(result[name]) for name in names if name in result] or [float(result["value"])]


def epsilon(privacy: Mapping[str, Any]) -> float | None:
    """Read the certified epsilon: PRV's where there is one, else the largest given."""
    given = privacy.get("epsilon")
    if isinstance(given, dict):
        given = given.get("prv") or _largest(given.values())
    return _largest([given])


def _largest(values: Iterable[Any]) -> float | None:
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return max(numbers, default=None)


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
