"""Class indices out of a file's column, for every task: taken as they are meant, or refused."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpexp.data import parquet
from dpexp.types import ConfigError

HIDDEN = -1
"""What stands for a label that is kept back, in GLUE's own test splits and others."""

TEXTS: Mapping[str, tuple[str, ...]] = {
    "sst2": ("negative", "positive"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "qqp": ("not_duplicate", "duplicate"),
}
"""Classes whose indices mean something beyond a file: prompts and public texts count in them."""

DIGITS = tuple(map(str, range(10)))

IMAGES: Mapping[str, tuple[str, ...]] = {
    "cifar10": (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    **dict.fromkeys(("mnist", "svhn", "svhn_extended"), DIGITS),
}
"""Classes in their customary order; a file may call them by other words."""


def class_indices(
    values: pa.Array, num_classes: int, *, column: str, path: Path, first: int
) -> np.ndarray:
    """Take class indices from a column, [n] int64.

    Whole numbers pass, stored as floats too. Nothing is rounded or guessed.

    Args:
        values: some rows of the column.
        num_classes: how many classes there are.
        column: its name.
        path: the file they are from.
        first: the first row's number in the file.

    Raises:
        ConfigError: a row holds no class index; it is named.
    """
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if is_number and not values.null_count:
        numbers = values.to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            is_class = (numbers >= 0) & (numbers < num_classes) & (numbers % 1 == 0)
        if is_class.all():
            return numbers.astype(np.int64)
    found = values.to_pylist()  # of a dictionary's entries, too, as categories are written
    for row, value in enumerate(found, first):
        reason = _what_is_wrong(value, num_classes)
        if reason is not None:
            raise ConfigError(
                f"Expected class indices in [0, {num_classes}) in column {column} of {path}; "
                f"row {row} holds {reprlib.repr(value)}{reason}"
            )
    return np.array(found, np.int64)


def _what_is_wrong(value: object, num_classes: int) -> str | None:
    """End the sentence about a value that is no class index, with the remedy; None: it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ". Set task.label_column, or write every class as its index."
    if value == HIDDEN:
        return (
            ", the mark of a label that is kept back: these rows are unlabelled, as GLUE's own "
            "test splits are. Set the split to one that has labels."
        )
    if value != value or value % 1 or value < 0:
        return ", which is no index. Set task.label_column, or write every class as its index."
    return None if value < num_classes else ". Set task.num_classes; indices begin at 0."


def check_names(
    task: str, files: Mapping[str, Sequence[Path]], column: str, num_classes: int
) -> None:
    """Check that an index means the same class in all files, as far as they name their classes.

    Args:
        task: as in conf/task.
        files: those of each split.
        column: the column that holds the class indices.
        num_classes: how many classes there are.

    Raises:
        ConfigError: the names are too many or too few, or not in the task's order, or not in the
            same one everywhere.
    """
    seen: dict[tuple[str, ...], Path] = {}
    for path in (path for paths in files.values() for path in paths):
        names = parquet.class_names(path, column)
        if names is None or names in seen:
            continue
        if len(names) != num_classes:
            raise ConfigError(
                f"Expected {num_classes} classes in column {column} of {path}; it names "
                f"{len(names)}. Set task.num_classes, or task.label_column."
            )
        own = _own_order(task, names)
        if own is not None:
            _compare(names, own, f"task={task}", column, path)
        for others, where in seen.items():
            # The indices for names, in order, say nothing beside words.
            if sorted(names) == sorted(others) or _count(names) not in (names, others):
                _compare(names, others, str(where), column, path)
        seen[names] = path


def _own_order(task: str, names: tuple[str, ...]) -> Sequence[str] | None:
    """Return the order a task has its classes in; None: it has none that these names speak of."""
    if task in TEXTS:
        return None if names == _count(names) else TEXTS[task]
    said = [_plain(name) for name in names]
    own = IMAGES.get(task, ())
    if len(own) != len(names) or not set(said) & set(own):
        return None
    # Words of a file's own keep their places.
    return [mine if name in own else name for mine, name in zip(own, said, strict=True)]


def _compare(
    names: Sequence[str], others: Sequence[str], source: str, column: str, path: Path
) -> None:
    """Check that classes have the same names in one order."""
    for index, (name, other) in enumerate(zip(names, others, strict=True)):
        if _plain(name) != _plain(other):
            raise ConfigError(
                f"Expected class {index} of column {column} to be {other}, as {source} has it; in "
                f"{path} it is {name}. Write all labels in one order of the classes."
            )


def _count(names: Sequence[str]) -> tuple[str, ...]:
    """Return the indices of some names as their names."""
    return tuple(map(str, range(len(names))))


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
