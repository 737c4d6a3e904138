"""Correct predictions on each test set, from which a run's accuracy can be recounted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dpexp.records.safely import Damaged, arrays_of

PREDICTIONS = "predictions.npz"
"""Its name in a run's directory. It holds `run`, the run's id, and for every test set an array
named after its metric: one bit per example (`numpy.packbits`), 1 if the prediction is correct.
NAME:count is the number of examples."""

COUNT, RUN = ":count", "run"

HELD_OUT = "holdout_"
"""Prefix of metrics on training examples that were held out, which no mean over test sets has."""


def packed(run: str, right: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of predictions.npz; none if nothing was counted.

    Args:
        run: its id.
        right: metric to whether each prediction is correct, [n] bool.
    """
    if not right:
        return {}
    arrays = {RUN: np.array(run)}
    for name, correct in right.items():
        arrays |= {name: np.packbits(correct), f"{name}{COUNT}": np.array(len(correct))}
    return arrays


def unpacked(directory: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Return the run's id and, by metric, whether each prediction is correct, [n] bool.

    Raises:
        Damaged: they cannot be read.
    """
    arrays = arrays_of(directory / PREDICTIONS)
    run = str(arrays.pop(RUN, np.array("")))
    right = {}
    for name in [name for name in arrays if not name.endswith(COUNT)]:
        bits, count = arrays.pop(name), arrays.pop(f"{name}{COUNT}", np.array(-1))
        is_whole = count.shape == () and count.dtype.kind in "iu" and int(count) >= 1
        if bits.dtype != np.uint8 or bits.ndim != 1 or not is_whole:
            raise Damaged(f"has no bits and count of {name}")
        if len(bits) != -(-int(count) // 8) or np.unpackbits(bits)[int(count) :].any():
            raise Damaged(f"has bits of {name} that do not match their count")
        right[name] = np.unpackbits(bits)[: int(count)].astype(bool)
    if arrays:
        raise Damaged(f"has {', '.join(arrays)}, which no run writes")
    return run, right


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash named arrays by dtype, shape and values, independent of compression."""
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()
