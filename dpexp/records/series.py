"""Read what a run recorded: series over steps, and arrays of its analyses."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpexp.records.files import RecordError
from dpexp.records.record import METRICS, lines_of
from dpexp.records.safely import Damaged, arrays_of

ANALYSIS = "analysis.npz"
"""Arrays of a run's analyses, by name; `step` and `epoch` have one entry per observation."""

NULL_IF_NONE = ("epsilon", "clip_fraction", "holdout_")
"""Beginnings of names whose null in metrics.jsonl says that there is no such number; of any other
name it says that the number was not finite."""


class NoSeries(RecordError):
    """A finished run has no series or array of this name."""


def series(directory: str | Path, name: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a series and its x values, both from metrics.jsonl or both from analysis.npz.

    Args:
        directory: a finished run's.
        name: of the series, such as "test_accuracy" or "stable_rank/head".
        x: name of the x values, such as "epoch".

    Returns:
        x and the values, both [n] float, n >= 1, ordered by x. A value that is not finite is NaN. A
        line without the value is left out. So is a NaN in an array that has finite entries, since
        there it may say that nothing was observed, except the last: a run that diverged ends so.

    Raises:
        NoSeries: neither source has both, their lengths differ, or all entries are left out.
    """
    directory = Path(directory)
    columns: Mapping[str, Any] = _columns(directory / METRICS)
    is_array = name not in columns or x not in columns
    if is_array:
        columns = _arrays(directory / ANALYSIS, (name, x)) or columns
    for wanted in (name, x):
        if wanted not in columns:
            raise _no_such(wanted, directory)
    xs, ys = (np.asarray(columns[key], dtype=float) for key in (x, name))
    if xs.ndim != 1 or xs.shape != ys.shape:
        raise NoSeries(f"no such series: {name} over {x} (shapes {ys.shape} and {xs.shape})")
    kept = ~np.isnan(ys)
    if is_array and ys.size:
        kept |= not np.isfinite(ys).any()
        kept[-1] = True
    kept &= np.isfinite(xs)
    if not kept.any():
        raise NoSeries(f"no such series: {name} (it has no entry)")
    order = np.argsort(xs[kept], kind="stable")
    return xs[kept][order], np.where(np.isfinite(ys[kept]), ys[kept], np.nan)[order]


def picture(directory: str | Path, name: str) -> np.ndarray:
    """Read a two-dimensional array [rows, columns] of a run's analysis.npz, as float.

    Raises:
        NoSeries: it has no array of this name, or one that is not two-dimensional.
    """
    directory = Path(directory)
    arrays = _arrays(directory / ANALYSIS, (name,))
    if name not in arrays:
        raise _no_such(name, directory)
    array = np.asarray(arrays[name], dtype=float)
    if array.ndim != 2 or not array.size:
        raise NoSeries(f"no such picture: {name} (its shape is {array.shape})")
    return array


def names(directory: str | Path) -> list[str]:
    """Return the names of all that `series` and `picture` could read."""
    directory = Path(directory)
    return sorted({*_columns(directory / METRICS), *_arrays(directory / ANALYSIS)})


def _no_such(name: str, directory: Path) -> NoSeries:
    plain = [other for other in names(directory) if re.fullmatch(r"[\w/.:+-]{1,80}", other)]
    near = difflib.get_close_matches(name, plain, n=1, cutoff=0.5)
    return NoSeries(f"no such series: {name}" + (f" (did you mean {near[0]}?)" if near else ""))


def _columns(path: Path) -> dict[str, list[float]]:
    """Read metrics.jsonl by column: infinity where a number was not finite, NaN without one."""
    lines = [line for line in lines_of(path) if line is not None]  # None: torn by a kill
    keys = dict.fromkeys(key for line in lines for key in line)
    return {key: [_number(key, line) for line in lines] for key in keys}


def _number(key: str, line: Mapping[str, Any]) -> float:
    value = line.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    was_not_finite = key in line and value is None and not key.startswith(NULL_IF_NONE)
    return math.inf if was_not_finite else math.nan


def _arrays(path: Path, wanted: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Read the wanted arrays that the file has; all of them by default."""
    if not path.is_file():
        return {}
    try:
        arrays = arrays_of(path, wanted)
    except Damaged as error:
        raise NoSeries(f"{path} {error}") from error
    wrong = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    if wrong and wanted is not None:
        raise NoSeries(f"{path} holds no numbers as {wrong[0]}")
    return {name: array for name, array in arrays.items() if name not in wrong}
