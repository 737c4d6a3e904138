"""Load a cell's value (a number, a curve or a picture) from a run; aggregate over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpexp import records
from dpexp.reporting.schema.artifact import CURVES, MAPS, Artifact, Column, Row

Reading = float | tuple[np.ndarray, np.ndarray] | np.ndarray
"""A number, x and y of a curve (both [n]), or a picture [rows, columns]."""

SAME_X = "{:.9g}"
"""Format to which the x of two seeds must agree."""


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean of several seeds' curves, on their common x.

    Attributes:
        x: [n], ascending.
        mean: [n], over the seeds.
        std: [n], ddof 1; None with a single seed.
        low, high: [n], the smallest and the largest of the seeds.
        num_seeds: number of seeds.
        ends: [num_seeds], each seed's value at the last x; NaN if its own curve ends with NaN.

    All but `ends` are NaN where a seed's value is.
    """

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None
    low: np.ndarray
    high: np.ndarray
    num_seeds: int
    ends: np.ndarray


def read(
    directory: Path, result: Mapping[str, Any], artifact: Artifact, row: Row, column: Column
) -> Reading:
    """Return a finished run's value in a cell; with several metrics, their mean.

    Raises:
        records.NoSeries: the run did not record the metric.
    """
    names = artifact.metric_of(row, column)
    if artifact.figure is not None and artifact.kind == CURVES:
        x = artifact.figure.x
        joined = join([records.series(directory, name, x) for name in names])
        return joined.x, joined.mean
    if artifact.kind == MAPS:
        return pictures_mean([records.picture(directory, name) for name in names])
    return statistics.fmean(numbers(result, names))


def numbers(result: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    """Return those of the named numbers that a result.json has; NaN for one that is not finite.

    Some may be missing: a paper's task may have two test sets, and its replacement only one. JSON
    has no number that is not finite; a record has null there.

    Raises:
        records.NoSeries: it has none of them.
    """
    entries = [math.nan if result[name] is None else result[name] for name in names
               if name in result]  # fmt: skip
    present = [v for v in entries if isinstance(v, int | float) and not isinstance(v, bool)]
    if not present:
        raise records.NoSeries(f"no such number: {' or '.join(names)}")
    return [float(number) if math.isfinite(number) else math.nan for number in present]


def metric(result: Mapping[str, Any], names: Sequence[str]) -> float:
    """Return a finished run's number to report: the mean of the named ones, else its metric."""
    try:
        return statistics.fmean(numbers(result, names))
    except records.NoSeries:
        return numbers(result, [result["metric"]])[0]


def join(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve:
    """Return the mean of curves on their common x.

    Raises:
        records.NoSeries: they have no x in common.
    """
    by_x = [{SAME_X.format(x): y for x, y in zip(*curve, strict=True)} for curve in curves]
    common = [x for x in by_x[0] if all(x in other for other in by_x)]
    if not common:
        raise records.NoSeries("no such series: the seeds' curves have no x in common")
    ys = np.array([[of_one[x] for x in common] for of_one in by_x])
    std = ys.std(axis=0, ddof=1) if len(curves) > 1 else None
    ends = np.where([np.isfinite(y[-1]) for _, y in curves], ys[:, -1], np.nan)
    return Curve(
        np.array([float(x) for x in common]), ys.mean(axis=0), std, ys.min(axis=0), ys.max(axis=0),
        len(curves), ends,
    )  # fmt: skip


def pictures_mean(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of pictures of equal shape.

    Raises:
        records.NoSeries: their shapes differ.
    """
    shapes = dict.fromkeys(picture.shape for picture in pictures)
    if len(shapes) > 1:
        raise records.NoSeries(f"no such picture: the seeds' shapes differ, {list(shapes)}")
    return np.mean(pictures, axis=0)


def reduced(reading: Reading, how: str) -> float:
    """Return one number of a reading: its last, first, mean, min or max.

    NaN if a value that it is made of is not finite: the largest loss of a run that diverged is not
    that of its start.
    """
    if isinstance(reading, float):
        return reading
    values = np.asarray(reading[1] if isinstance(reading, tuple) else reading)
    ends = {"last": slice(-1, None), "first": slice(1)}
    values = values.flat[ends.get(how, slice(None))]
    if not values.size or not np.isfinite(values).all():
        return math.nan
    if how in ends:
        return float(values[0])
    reductions: dict[str, Callable[[np.ndarray], Any]]
    reductions = {"mean": np.mean, "min": np.min, "max": np.max}
    return float(reductions[how](values))


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation (ddof 1); None where undefined."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None
