"""From a cell to one side of a comparison: its seeds' numbers and the test examples behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from dpexp import records
from dpexp.artifacts.collect import Value
from dpexp.artifacts.errors import Side
from dpexp.artifacts.readings import numbers, reduced
from dpexp.artifacts.words import Claim
from dpexp.records.predictions import PREDICTIONS, unpacked
from dpexp.records.safely import Damaged

ACCURACY = "test_accuracy"
"""What the names of accuracies in percent begin with."""

TEST_SIZES: Mapping[str, Mapping[str, int]] = {
    "mnist": {ACCURACY: 10_000},
    "cifar10": {ACCURACY: 10_000},
    "cifar100": {ACCURACY: 10_000},
    "svhn": {ACCURACY: 26_032},
    "svhn_extended": {ACCURACY: 26_032},
    "sst2": {ACCURACY: 872},
    "qqp": {ACCURACY: 40_430},
    "qnli": {ACCURACY: 5_463},
    "mnli": {ACCURACY: 9_815, f"{ACCURACY}_mm": 9_832},
}
"""Examples of the official test sets, GLUE's validation sets, by task and metric: records of runs
that kept no predictions do not say them."""

CLOSE = 1e-6
"""How far predictions may lie from the accuracy that they are recounted to."""


def side(claim: Claim, value: Value, metric: Sequence[str]) -> Side | None:
    """Give what a claim compares of a cell; None where no seed has it.

    Args:
        claim: says which number of a curve or picture it is, or which metric.
        value: the cell.
        metric: what the cell shows, names of numbers of result.json.
    """
    names = [claim.metric] if claim.metric else list(metric)
    try:
        if claim.metric:
            of_seeds = [numbers(result, names)[0] for result in value.results]
        else:
            of_seeds = [reduced(reading, claim.reduce) for reading in value.readings]
    except records.NoSeries:
        return None
    values = np.array(of_seeds, dtype=float)
    if not values.size or not np.isfinite(values).all():
        return None
    if value.parts:
        return _together(claim, value, values) or Side(values)
    return _kept(value, values, names) or _sized(value, values, names) or Side(values)


def _together(claim: Claim, value: Value, values: np.ndarray) -> Side | None:
    """Give the side of a mean of several cells, whose test sets it has side by side.

    Every number counts once, so that a cell that is itself a mean of two counts as two.
    """
    parts = [side(claim, part, part.metric) for part in value.parts]
    if not all(part is not None and part.sizes for part in parts):
        return None
    found = [part for part in parts if part is not None]
    sets = [_sets(part) for part in found]
    if sum(map(len, sets)) > len(set().union(*sets)):  # examples twice, which would count as more
        return None
    sizes = tuple(size for part in found for size in part.sizes)
    if not all(part.right and part.tests for part in found):
        return Side(values, sizes=sizes)
    right = tuple(each for part in found for each in part.right)
    together = product(*(sorted(part.tests) for part in found))
    return Side(values, right, sizes, frozenset(map(" and ".join, together)))


def _sets(part: Side) -> set[tuple[str, str]]:
    """Name the test sets of a cell, each by its data and metric."""
    names = [name.split() for name in part.tests]
    return {(data, word) for data, *words in names for word in words if word.startswith(ACCURACY)}


def _kept(value: Value, values: np.ndarray, names: Sequence[str]) -> Side | None:
    """Give the side with the predictions that all of its seeds kept of the same examples."""
    metrics = _metrics(value, names)
    if not metrics or not value.directories:
        return None
    try:
        seeds = [_right(directory, metrics) for directory in value.directories]
    except (Damaged, KeyError, OSError):
        return None
    shapes = {tuple(len(right) for right in of_seed) for of_seed in seeds}
    prints = [
        {str(result.get(name, "")) for result in value.results}
        for name in ("data_fingerprint", "test_fingerprint")
    ]
    named = [each for of_seeds in prints if len(of_seeds) == 1 for each in of_seeds if each]
    is_told = any(any(of_seeds) for of_seeds in prints)
    if len(shapes) > 1 or (is_told and not named):  # seeds judged on other examples
        return None
    right = tuple(100.0 * np.stack(of_set) for of_set in zip(*seeds, strict=True))
    due = _sizes(value, metrics)
    if due and due != next(iter(shapes)):  # such as examples that stand there several times
        return None
    counted = np.mean([each.mean(axis=1) for each in right], axis=0)
    if not np.allclose(counted, values, rtol=0, atol=CLOSE):  # such as a curve's best
        return None
    sizes = next(iter(shapes))  # PATE is judged on a part of the test set
    tests = frozenset(" ".join([data, *metrics, *map(str, sizes)]) for data in named)
    return Side(values, right, sizes, tests)


def _right(directory: Any, metrics: Sequence[str]) -> list[np.ndarray]:
    if not (directory / PREDICTIONS).is_file():
        raise KeyError(PREDICTIONS)
    right = unpacked(directory)[1]
    return [right[name] for name in metrics]


def _sized(value: Value, values: np.ndarray, names: Sequence[str]) -> Side | None:
    """Give the side of an accuracy without predictions, if the size of its test sets is known."""
    metrics = _metrics(value, names)
    ends = [float(np.mean([result[name] for name in metrics])) for result in value.results
            if metrics]  # fmt: skip
    if len(ends) != len(values) or not np.allclose(ends, values, rtol=0, atol=CLOSE):
        return None
    known = _sizes(value, metrics)
    return Side(values, sizes=known) if known else None


def _metrics(value: Value, names: Sequence[str]) -> list[str]:
    """Give the accuracies of these names that the results have; none if the number is another."""
    if not value.results or not all(name.startswith(ACCURACY) for name in names):
        return []
    has = [[name for name in names if name in result] for result in value.results]
    return has[0] if all(some == has[0] for some in has) else []


def _sizes(value: Value, metrics: Sequence[str]) -> tuple[int, ...]:
    """Give how many examples each test set has; empty where the configs do not tell."""
    sizes = {tuple(_size(config, name) for name in metrics) for config in value.configs}
    known = next(iter(sizes)) if len(sizes) == 1 else ()
    return known if all(known) else ()


def _size(config: Mapping[str, Any], metric: str) -> int:
    """Give how many examples a run is judged on; 0 where its config does not tell.

    PATE's student may have had half of a test set, and public images may be taken out of it.
    """
    task, public = config.get("task", {}), config.get("public", {})
    name = task.get("name")
    size = task.get("test_size") or TEST_SIZES.get(str(name), {}).get(metric, 0)
    if not size:
        return 0
    if config.get("method", {}).get("public") == "test-half":
        size -= size // 2
    if public.get("of_task") and public.get("of_task") == name:
        size -= public["size"]
    return int(size)
