"""Which test examples a finished run's model got right, so that its accuracy can be recounted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dpexp.records.safely import Damaged, arrays_of

PREDICTIONS = "predictions.npz"
"""Its name in a run's directory: `run`, the run's id, and of every test set, by the name of its
metric, one bit an example (`numpy.packbits`), 1 where it was got right, and NAME:count, how many
there are."""

COUNT, RUN = ":count", "run"


def packed(run: str, right: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of predictions.npz; none where nothing was counted.

    Args:
        run: its id.
        right: metric to whether each example was got right, [n] bool.
    """
    if not right:
        return {}
    arrays = {RUN: np.array(run)}
    for name, each in right.items():
        arrays |= {name: np.packbits(each), f"{name}{COUNT}": np.array(len(each))}
    return arrays


def unpacked(directory: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Read a run's predictions: the run's id, and by metric what was right, [n] bool.

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
            raise Damaged(f"has other bits of {name} than it counts")
        right[name] = np.unpackbits(bits)[: int(count)].astype(bool)
    if arrays:
        raise Damaged(f"has {', '.join(arrays)}, which is nothing a run writes")
    return run, right


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash named arrays by kind, shape and values, however they are packed."""
    whole = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()
