"""One side of a comparison: a cell's numbers by seed, and their test examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dpexp import records
from dpexp.records.predictions import HELD_OUT, PREDICTIONS, unpacked
from dpexp.records.safely import Damaged
from dpexp.records.sizes import judged_examples
from dpexp.reporting.collect.readings import numbers, reduced
from dpexp.reporting.collect.values import Value
from dpexp.reporting.judge.errors import EXTRA, Side
from dpexp.reporting.schema.artifact import Claim

SCORED_ON = "attack_scored_on"
"""The number of examples that an attack was scored on."""
ACCURACY, OF_HELD_OUT = "test_accuracy", f"{HELD_OUT}accuracy"
"""The prefixes of the names of accuracies in percent."""

CLOSE = 1e-6
"""Tolerance between an accuracy counted from predictions and the recorded one."""


@dataclass(frozen=True)
class Diverged:
    """A cell with seeds whose number is not finite, so that there is nothing to compare.

    Attributes:
        count: number of these seeds.
        num_seeds: number of finished seeds.
    """

    count: int
    num_seeds: int


def side(claim: Claim, value: Value, metric: Sequence[str]) -> Side | Diverged | None:
    """Return a cell's side of a claim; None if no seed has the number.

    Args:
        claim: names the metric, or the number of a curve or picture, to compare.
        value: the cell.
        metric: names of the result.json numbers that the cell shows.
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
    if not values.size:
        return None
    if count := int((~np.isfinite(values)).sum()):
        return Diverged(count, len(values))
    if value.parts:
        return _together(claim, value, values) or Side(values)
    return (
        _kept(value, values, names)
        or _sized(value, values, names)
        or _attacked(value, values, names)
    )


def _attacked(value: Value, values: np.ndarray, names: Sequence[str]) -> Side:
    """Return the side of an attack's success, with the error of the examples that it was scored on.

    Seeds share their data, so that more of them make this error no smaller.
    """
    known = [result[f"{name}_se"] for result in value.results for name in names
             if isinstance(result.get(f"{name}_se"), int | float)]  # fmt: skip
    counts = {int(result.get(SCORED_ON) or 0) for result in value.results}
    if len(names) != 1 or len(known) < len(values) or len(counts) != 1 or 0 in counts:
        return Side(values)
    (count,) = counts
    variance = float(np.mean(np.square(known))) + EXTRA * 100.0**2 / count**2
    return Side(values, sizes=(count,), of_examples=variance)


def _together(claim: Claim, value: Value, values: np.ndarray) -> Side | None:
    """Return the side of a mean of several cells, with the test sets of all of them.

    Every number counts once, so a cell that is itself a mean of two counts as two.
    """
    parts = [side(claim, part, part.metric) for part in value.parts]
    known = [part for part in parts if isinstance(part, Side) and part.sizes]
    if len(known) < len(parts):
        return None
    sets = [_sets(part) for part in known]
    if sum(map(len, sets)) > len(set().union(*sets)):  # some examples would be counted twice
        return None
    sizes = tuple(size for part in known for size in part.sizes)
    if not all(part.right and part.tests for part in known):
        return Side(values, sizes=sizes)
    right = tuple(correct for part in known for correct in part.right)
    combinations = product(*(sorted(part.tests) for part in known))
    return Side(values, right, sizes, frozenset(map(" and ".join, combinations)))


def _sets(part: Side) -> set[tuple[str, str]]:
    """Return the names of a cell's test sets, each by its data and metric."""
    names = [name.split() for name in part.tests]
    return {
        (data, word)
        for data, *words in names
        for word in words
        if word.startswith((ACCURACY, OF_HELD_OUT))
    }


def _kept(value: Value, values: np.ndarray, names: Sequence[str]) -> Side | None:
    """Return the side with predictions, if all seeds kept them for the same examples."""
    metrics = _metrics(value, names)
    if not metrics or not value.directories:
        return None
    try:
        seeds = [_right(directory, metrics) for directory in value.directories]
    except (Damaged, KeyError, OSError):
        return None
    shapes = {tuple(len(right) for right in of_seed) for of_seed in seeds}
    prints = [
        {str(result.get(name, "")) for result in value.results} for name in _fingerprints(metrics)
    ]
    shared = [data for of_seeds in prints if len(of_seeds) == 1 for data in of_seeds if data]
    has_prints = any(any(of_seeds) for of_seeds in prints)
    if len(shapes) > 1 or (has_prints and not shared):  # seeds were tested on different examples
        return None
    right = tuple(100.0 * np.stack(of_set) for of_set in zip(*seeds, strict=True))
    expected = _sizes(value, metrics)
    if expected and expected != next(iter(shapes)):  # e.g. an example occurs several times
        return None
    counted = np.mean([correct.mean(axis=1) for correct in right], axis=0)
    if not np.allclose(counted, values, rtol=0, atol=CLOSE):  # e.g. the best of a curve
        return None
    sizes = next(iter(shapes))  # PATE is tested on a part of the test set
    tests = frozenset(" ".join([data, *metrics, *map(str, sizes)]) for data in shared)
    return Side(values, right, sizes, tests)


def _fingerprints(metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the entries of result.json that say which examples these accuracies are of.

    Data that are equal as a whole hold equal examples; so do equal ones of the sets in question.
    """
    held_out = [name.startswith(OF_HELD_OUT) for name in metrics]
    if all(held_out):
        return "data_fingerprint", "holdout_fingerprint"
    return ("data_fingerprint",) if any(held_out) else ("data_fingerprint", "test_fingerprint")


def _right(directory: Any, metrics: Sequence[str]) -> list[np.ndarray]:
    if not (directory / PREDICTIONS).is_file():
        raise KeyError(PREDICTIONS)
    right = unpacked(directory)[1]
    return [right[name] for name in metrics]


def _sized(value: Value, values: np.ndarray, names: Sequence[str]) -> Side | None:
    """Return the side of an accuracy without predictions, if its test sets' sizes are known."""
    metrics = _metrics(value, names)
    ends = [float(np.mean([result[name] for name in metrics])) for result in value.results
            if metrics]  # fmt: skip
    if len(ends) != len(values) or not np.allclose(ends, values, rtol=0, atol=CLOSE):
        return None
    known = _sizes(value, metrics)
    return Side(values, sizes=known) if known else None


def _metrics(value: Value, names: Sequence[str]) -> list[str]:
    """Return those of the names that the results have; [] if some are no accuracies."""
    if not value.results or not all(name.startswith((ACCURACY, OF_HELD_OUT)) for name in names):
        return []
    present = [[name for name in names if result.get(name) is not None] for result in value.results]
    return present[0] if all(names == present[0] for names in present) else []


def _sizes(value: Value, metrics: Sequence[str]) -> tuple[int, ...]:
    """Return the number of examples of each test set; () if the configs do not determine it."""
    sizes = {tuple(judged_examples(config, name) for name in metrics) for config in value.configs}
    known = next(iter(sizes)) if len(sizes) == 1 else ()
    return tuple(size for size in known if size) if all(known) else ()
