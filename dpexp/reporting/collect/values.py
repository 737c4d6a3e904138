"""The value of every cell: mean, standard deviation and count, or why there is none."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpexp import records
from dpexp.privacy.papers import papers_multiplier
from dpexp.reporting.collect.outcomes import DONE, FAILED, NOT_RUN, WORST_FIRST, Outcome
from dpexp.reporting.collect.readings import (
    Curve,
    Reading,
    join,
    mean_and_std,
    numbers,
    pictures_mean,
    read,
)
from dpexp.reporting.schema.artifact import CURVES, MAPS, Artifact, Column, Key, Published, Row
from dpexp.reporting.text import clean

SKIPPED = "not run here"
"""A cell that the profile skips."""
NONE = "none"
"""No cell: the row says why it has none in this column, in any profile."""
WORDS = "words"
"""A cell of a column of words."""
NOT_FINITE = "diverged"
"""A cell whose number is not finite in any finished run."""
DIVERGED = "training diverged: outputs that are not finite count as wrong"
"""Printed for a run whose model gave such outputs on its test set."""


@dataclass(frozen=True, eq=False)
class Value:
    """One cell of the table or figure.

    Attributes:
        cell: row key and column key.
        status: "done" if at least one seed has a value, else why not; "words" in a column of words.
        details: sentences on the runs that failed or have no data, each once.
        mean, std: over the seeds that have a value; for a curve, at its end. std (ddof 1) is None
            with fewer than two seeds, and both are None for a picture.
        num_seeds: number of seeds that have a value.
        diverged: number of finished seeds whose value is not finite.
        asked: number of seeds requested.
        published: the paper's value, or None.
        published_std: the paper's standard deviation, or None.
        epsilon, noise_multiplier: the largest over the seeds; None if the runs are not private.
        papers_multiplier: the noise multiplier by the paper's accountant for these settings.
        deviations: the certificates' deviations, and what verification could not check, each once.
        run_ids: of the finished runs.
        curve: in a figure of curves, over the finished seeds.
        picture: in a figure of maps, [rows, columns], the mean over the seeds that have a value; if
            none has, over all, with NaN.
        text: in a column of words.
        readings, results: each finished seed's value, NaN if it is not finite, and its result.json;
            claims compare these.
        directories, configs: each finished seed's record directory and config.
        metric: names of the result.json numbers that are averaged.
        parts: for a mean of several cells, these cells over their common seeds.
    """

    cell: Key
    status: str
    details: tuple[str, ...] = ()
    mean: float | None = None
    std: float | None = None
    num_seeds: int = 0
    diverged: int = 0
    asked: int = 0
    published: float | None = None
    published_std: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    papers_multiplier: float | None = None
    deviations: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    curve: Curve | None = None
    picture: np.ndarray | None = None
    text: str = ""
    readings: tuple[Reading, ...] = ()
    results: tuple[Mapping[str, Any], ...] = ()
    directories: tuple[Path, ...] = ()
    configs: tuple[Mapping[str, Any], ...] = ()
    metric: tuple[str, ...] = ()
    parts: tuple[Value, ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether there is a value to show."""
        return self.status in (DONE, WORDS)

    @property
    def divergence(self) -> str:
        """How many finished seeds diverged, in words; "" if none did."""
        if not self.diverged or not self.num_seeds:
            return NOT_FINITE if self.diverged else ""
        return f"{NOT_FINITE} ({self.diverged} of {self.diverged + self.num_seeds})"

    @property
    def difference(self) -> float | None:
        """Measured minus published; None if either is missing, or if a seed diverged."""
        if self.mean is None or self.published is None or self.diverged:
            return None
        return self.mean - self.published


def collect(artifact: Artifact, outcomes: Iterable[Outcome]) -> dict[Key, Value]:
    """Return the value of every cell of an artifact from the outcomes of its runs."""
    by_cell: dict[Key, list[Outcome]] = {}
    for item in outcomes:
        by_cell.setdefault(item.job.cell, []).append(item)
    values = {}
    for row in artifact.rows:
        for column in artifact.columns:
            cell, source = (row.key, column.key), (row.key, artifact.run_column(row, column).key)
            if column.words:
                values[cell] = Value(cell, WORDS, text=column.words.get(row.key, ""))
                continue
            published = artifact.published.get(cell) or artifact.published.get(source)
            value = _value(artifact, row, column, by_cell.get(source, []))
            values[cell] = _beside(value, published)
        if artifact.average is not None:
            cell = (row.key, artifact.average.key)
            cells = [(c, by_cell.get((row.key, c.key), [])) for c in artifact.measured_columns]
            values[cell] = _average(artifact, row, cells)
    return values


def _value(
    artifact: Artifact,
    row: Row,
    column: Column,
    items: Sequence[Outcome],
) -> Value:
    cell = (row.key, column.key)
    if not items:
        return Value(cell, _status_without_runs(row, column))
    done, readings, rest = [], [], [item for item in items if item.status != DONE]
    for item in items:
        if item.status == DONE:
            directory, result = item.directory or Path(), item.result or {}
            try:
                reading = read(directory, result, artifact, row, column)
            except records.NoSeries as error:
                rest.append(replace(item, status=str(error), detail=""))
            else:
                done.append(item)
                readings.append(reading)
    statuses = dict.fromkeys(item.status for item in rest)
    privacy = [item.privacy or {} for item in done]
    value = Value(
        cell=cell,
        status=DONE if done else _worst(statuses),
        details=_once(f"{i.status}: {_detail(i)}" for i in rest if i.detail),
        num_seeds=len(done),
        asked=len(items),
        epsilon=_largest(epsilon(p) for p in privacy),
        noise_multiplier=_largest(p.get("noise_multiplier") for p in privacy),
        papers_multiplier=_largest(papers_multiplier(artifact.paper, p) for p in privacy),
        deviations=_once(
            [
                *(
                    str(word)
                    for item in done
                    for word in (*(item.privacy or {}).get("deviations", []), *item.trusted)
                ),
                *(DIVERGED for item in done if (item.result or {}).get("nonfinite_outputs")),
            ]
        ),
        run_ids=tuple(item.job.run_id for item in done),
        readings=tuple(readings),
        results=tuple(item.result or {} for item in done),
        directories=tuple(item.directory or Path() for item in done),
        configs=tuple(item.job.config or {} for item in done),
        metric=artifact.metric_of(row, column),
    )
    return _summed_up(value, artifact.kind) if readings else value


def _status_without_runs(row: Row, column: Column) -> str:
    """Return the status of a cell that no run is for: none of it, or not in this profile."""
    return NONE if row.in_column(column).absent else SKIPPED


def _beside(value: Value, published: Published | None) -> Value:
    """Return a value with the paper's value added."""
    if published is None:
        return value
    return replace(value, published=published.value, published_std=published.std)


def _summed_up(value: Value, kind: str) -> Value:
    """Return a value with its readings aggregated over the seeds."""
    readings: Any = value.readings  # all of one kind, the figure's
    try:
        if kind == MAPS:
            picture = pictures_mean(readings)
            whole = [reading for reading in readings if np.isfinite(reading).all()]
            value = replace(value, picture=pictures_mean(whole) if whole else picture)
            return _counted(value, len(whole))
        if kind == CURVES:
            curve = join(readings)
            value, readings = replace(value, curve=curve), curve.ends.tolist()
    except records.NoSeries as error:
        return replace(value, status=str(error))
    return _averaged(value, readings)


def _averaged(value: Value, numbers: Sequence[float]) -> Value:
    """Return a value with mean, standard deviation and count of the seeds' finite numbers."""
    finite = [number for number in numbers if math.isfinite(number)]
    mean, std = mean_and_std(finite)
    return _counted(replace(value, mean=mean, std=std), len(finite))


def _counted(value: Value, number: int) -> Value:
    """Return a value that says how many of its finished seeds have one."""
    diverged = len(value.readings) - number
    status = DONE if number else NOT_FINITE
    return replace(value, status=status, num_seeds=number, diverged=diverged)


def _worst(statuses: Iterable[str]) -> str:
    """Return the most informative status; a missing number or series comes first."""
    statuses = list(statuses)
    missing = [status for status in statuses if status not in WORST_FIRST]
    return (missing or [status for status in WORST_FIRST if status in statuses])[0]


def _average(
    artifact: Artifact, row: Row, cells: Sequence[tuple[Column, Sequence[Outcome]]]
) -> Value:
    """Return a row's mean over its cells' common seeds; each number counts once.

    Where there is none of a cell there is no mean either. Where the profile skips one there is no
    mean to come, and else it lacks what its cells lack.
    """
    by_seed: dict[int, list[Outcome]] = {}
    for item in (item for _, items in cells for item in items):
        by_seed.setdefault(item.job.seed, []).append(item)
    means = {}
    for seed, items in by_seed.items():
        if len(items) == len(cells) and all(item.status == DONE for item in items):
            with suppress(records.NoSeries):
                by_item = [numbers(item.result or {}, item.job.metric) for item in items]
                means[seed] = statistics.fmean(number for part in by_item for number in part)
    cell = (row.key, artifact.average.key if artifact.average else "")
    without = [_status_without_runs(row, column) for column, items in cells if not items]
    lacking = {item.status for _, items in cells for item in items} - {DONE}
    value = Value(
        cell=cell,
        status=min(without, key=(NONE, SKIPPED).index) if without else _worst(lacking or [NOT_RUN]),
        asked=len(by_seed),
        readings=tuple(means.values()),
        parts=tuple(
            _value(artifact, row, column, [item for item in items if item.job.seed in means])
            for column, items in cells
        ),
    )
    if means:
        value = _averaged(value, list(means.values()))
    return _beside(value, artifact.published.get(cell))


def _detail(item: Outcome) -> str:
    """Return an outcome's detail with paths relative to the working directory."""
    detail = f"see {item.detail}" if item.status == FAILED else item.detail
    return clean(detail.replace(f"{Path.cwd()}{os.sep}", ""))


def epsilon(privacy: Mapping[str, Any]) -> float | None:
    """Return the certified epsilon: PRV's if there is one, else the largest stated."""
    stated = privacy.get("epsilon")
    if isinstance(stated, dict):
        stated = stated.get("prv") or _largest(stated.values())
    return _largest([stated])


def _largest(values: Iterable[Any]) -> float | None:
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return max(numbers, default=None)


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
