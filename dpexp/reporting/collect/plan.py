"""What an artifact will cost on this machine, estimated before anything is run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.reporting.collect.build import duration, sources
from dpexp.reporting.collect.outcomes import NO_DATA, NOT_BUILT, Outcome
from dpexp.reporting.schema.artifact import Key
from dpexp.types import ConfigError, MissingData

Estimate = Callable[[dict[str, Any]], tuple[float, float]]
"""Returns what a config takes on this machine: seconds for the whole run, peak memory in MB."""


@dataclass(frozen=True)
class Cost:
    """What one run takes.

    Attributes:
        seconds: wall time; None if unknown.
        megabytes: peak memory; None if unknown.
        source: "its records", "records alike", "timed", "no data", "can't run" or "unknown".
        why: the sentence behind "no data" and "can't run".
    """

    seconds: float | None
    megabytes: float | None
    source: str
    why: str = ""


@dataclass(frozen=True)
class Sample:
    """A cost measured once, to be scaled to configs of its kind."""

    kind: tuple[str, ...]
    seconds_per_example: float
    megabytes: float
    source: str


class Estimator:
    """Estimates what runs cost from finished records of their kind, else by timing a few steps.

    Two runs are of one kind if method, model and task agree. Time is proportional to epochs times
    examples; memory is constant.
    """

    def __init__(
        self, results: Path, profile: str, device: str | None, estimate: Estimate | None = None
    ) -> None:
        """Read a profile's finished records on a device.

        Args:
            results: the results folder.
            profile: the profile's name.
            device: as records describe it; None takes all, where only the order matters.
            estimate: times a config; None leaves the cost of a kind without records unknown.
        """
        self._estimate = estimate
        self._absent: dict[str, Cost] = {}
        directories = sorted((results / profile / "runs").glob("*"))
        finished = filter(None, map(records.read, directories))
        samples = (_sample(record) for record in finished if _is_alike(record, device))
        self._samples = [sample for sample in samples if sample is not None]

    def cost(self, config: dict[str, Any]) -> Cost:
        """Estimate one run; if it can't be done, the cost says why and nothing is raised."""
        alike = [s for s in self._samples if s.kind == kind(config)]
        if not alike and self._estimate is None:
            return Cost(None, None, "unknown")
        if not alike and sources(config) in self._absent:
            return self._absent[sources(config)]
        if not alike:
            try:
                alike = [self._timed(config)]
            except MissingData as error:
                return self._absent.setdefault(
                    sources(config), Cost(None, None, NO_DATA, str(error))
                )
            except ConfigError as error:
                return Cost(None, None, "can't run", str(error))
        return Cost(
            statistics.median(s.seconds_per_example for s in alike) * examples(config),
            max(s.megabytes for s in alike),
            alike[0].source,
        )

    def _timed(self, config: dict[str, Any]) -> Sample:
        assert self._estimate is not None
        seconds, megabytes = self._estimate(config)
        sample = Sample(kind(config), seconds / examples(config), megabytes, "timed")
        self._samples.append(sample)
        return sample


def _is_alike(record: records.Record, device: str | None) -> bool:
    if record.config.get("analysis"):  # its time would be counted as the steps'
        return False
    return device is None or record.result.get("device") == device


def _sample(record: records.Record) -> Sample | None:
    """Return what a finished run cost; None if its record does not say."""
    try:
        seconds = float(record.result["wall_s"]) / examples(record.config)
        megabytes = float(record.result["peak_memory_mb"])
        return Sample(kind(record.config), seconds, megabytes, "records alike")
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None


def kind(config: dict[str, Any]) -> tuple[str, ...]:
    """Return what has to agree for two runs to cost the same per example."""
    return tuple(str(config[group]["name"]) for group in ("method", "model", "task"))


def examples(config: dict[str, Any]) -> float:
    """Return how many examples a run goes through: epochs times the declared training set size."""
    return float(config["epochs"]) * float(config["task"]["dataset_size"])


def plan(outcomes: Sequence[Outcome], estimator: Estimator) -> list[str]:
    """Return the plan's lines: for each cell what is done and what the rest takes, then totals."""
    table = [("cell", "runs done", "a run takes", "memory", "as known from")]
    to_do: list[Cost] = []
    seen: set[str] = set()
    for items in _by_cell(outcomes):
        cell = items[0].job.name
        done = sum(item.status == "done" for item in items)
        job = items[0].job
        if items[0].status == NOT_BUILT:
            table.append((cell, f"0 of {len(items)}", "", "", f"not built: {items[0].detail}"))
            continue
        cost = _taken(items) if done == len(items) else estimator.cost(job.config or {})
        fresh = {i.job.run_id for i in items if i.status != "done"} - seen
        seen |= fresh
        to_do += [cost] * len(fresh)
        table.append((cell, f"{done} of {len(items)}", _time(cost), _memory(cost), cost.source))
    return [*_columns(table), "", *_totals(outcomes, to_do)]


def _taken(outcomes: Sequence[Outcome]) -> Cost:
    """Return what finished runs took on the machines where they ran."""
    results = [outcome.result for outcome in outcomes if outcome.result]
    return Cost(
        statistics.median(result["wall_s"] for result in results),
        max(result["peak_memory_mb"] for result in results),
        "its records",
    )


def _by_cell(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    cells: dict[Key, list[Outcome]] = {}
    for item in outcomes:
        cells.setdefault(item.job.cell, []).append(item)
    return list(cells.values())


def _time(cost: Cost) -> str:
    return "" if cost.seconds is None else duration(cost.seconds)


def _memory(cost: Cost) -> str:
    return "" if cost.megabytes is None else f"{cost.megabytes:,.0f} MB"


def _totals(outcomes: Sequence[Outcome], to_do: Sequence[Cost]) -> list[str]:
    done = sum(item.status == "done" for item in outcomes)
    known = [cost for cost in to_do if cost.seconds is not None]
    rest = len(outcomes) - done - len(to_do)
    other = f", {rest} not built or shared with another cell" if rest else ""
    lines = [f"{len(outcomes)} runs: {done} done, {len(to_do)} to do{other}."]
    if known:
        total = duration(sum(cost.seconds or 0.0 for cost in known))
        most = max(cost.megabytes or 0.0 for cost in known)
        lines.append(f"To do, one after another: about {total}, at most {most:,.0f} MB.")
    if len(known) < len(to_do):
        lines.append(f"No estimate for {len(to_do) - len(known)} of them.")
    return lines + list(dict.fromkeys(cost.why for cost in to_do if cost.why))


def _columns(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
