"""Read class indices from a file's column, exactly or not at all."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpexp.data import parquet
from dpexp.types import ConfigError

HIDDEN = -1
"""Marks a withheld label, e.g. in GLUE's own test splits."""

TEXTS: Mapping[str, tuple[str, ...]] = {
    "sst2": ("negative", "positive"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "qqp": ("not_duplicate", "duplicate"),
}
"""Classes of text tasks by index; prompts and public texts rely on this order."""

DIGITS = tuple(map(str, range(10)))

IMAGES: Mapping[str, tuple[str, ...]] = {
    "cifar10": (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    **dict.fromkeys(("mnist", "svhn", "svhn_extended"), DIGITS),
}
"""Classes of image tasks in their customary order; a file may use other names."""


def class_indices(
    values: pa.Array, num_classes: int, *, column: str, path: Path, first: int
) -> np.ndarray:
    """Return the class indices of a column, [n] int64.

    Whole numbers stored as floats are accepted. Nothing is rounded or guessed.

    Args:
        values: rows of the column.
        num_classes: number of classes.
        column: its name.
        path: the file they are from.
        first: the first row's number in the file.

    Raises:
        ConfigError: a row holds no class index; the message names it.
    """
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if is_number and not values.null_count:
        numbers = values.to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):
            is_class = (numbers >= 0) & (numbers < num_classes) & (numbers % 1 == 0)
        if is_class.all():
            return numbers.astype(np.int64)
    entries = values.to_pylist()  # decodes dictionary arrays, the type of categories, too
    for row, value in enumerate(entries, first):
        reason = _what_is_wrong(value, num_classes)
        if reason is not None:
            raise ConfigError(
                f"Expected class indices in [0, {num_classes}) in column {column} of {path}; "
                f"row {row} holds {reprlib.repr(value)}{reason}"
            )
    return np.array(entries, np.int64)


def _what_is_wrong(value: object, num_classes: int) -> str | None:
    """Return the end of the error message, with the remedy; None if the value is a class index."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ". Set task.label_column, or write every class as its index."
    if value == HIDDEN:
        return (
            ", which marks a withheld label: these rows are unlabelled, as in GLUE's own test "
            "splits. Set the split to one that has labels."
        )
    if value != value or value % 1 or value < 0:
        return ", which is not an index. Set task.label_column, or write every class as its index."
    return None if value < num_classes else ". Set task.num_classes; indices start at 0."


def check_names(
    task: str, files: Mapping[str, Sequence[Path]], column: str, num_classes: int
) -> tuple[str, ...]:
    """Check that an index means the same class in all files that name their classes.

    Args:
        task: as in conf/task.
        files: of each split.
        column: the column that holds the class indices.
        num_classes: number of classes.

    Returns:
        The classes' names by index: the files', else the task's; empty if neither has any.

    Raises:
        ConfigError: a file has too many or too few names, or not in the order of the task and of
            the other files.
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
        expected = _task_order(task, names)
        if expected is not None:
            _compare(names, expected, f"task={task}", column, path)
        for others, where in seen.items():
            # Names that are just the indices cannot be compared with words.
            if sorted(names) == sorted(others) or _count(names) not in (names, others):
                _compare(names, others, str(where), column, path)
        seen[names] = path
    customary = TEXTS.get(task, IMAGES.get(task, ()))
    named = [names for names in seen if names != _count(names)]
    return next(iter(named or seen), customary if len(customary) == num_classes else ())


def _task_order(task: str, names: tuple[str, ...]) -> Sequence[str] | None:
    """Return the order of a task's classes; None if it has none that applies to these names."""
    if task in TEXTS:
        return None if names == _count(names) else TEXTS[task]
    plain = [_plain(name) for name in names]
    classes = IMAGES.get(task, ())
    if len(classes) != len(names) or not set(plain) & set(classes):
        return None
    # Names that only the file uses keep their places.
    pairs = zip(classes, plain, strict=True)
    return [expected if name in classes else name for expected, name in pairs]


def _compare(
    names: Sequence[str], others: Sequence[str], source: str, column: str, path: Path
) -> None:
    """Check that two lists name the same classes in the same order."""
    for index, (name, other) in enumerate(zip(names, others, strict=True)):
        if _plain(name) != _plain(other):
            raise ConfigError(
                f"Expected class {index} of column {column} to be {other}, as in {source}; in "
                f"{path} it is {name}. Use one order of the classes in all files."
            )


def _count(names: Sequence[str]) -> tuple[str, ...]:
    """Return "0", "1", ..., one for each name."""
    return tuple(map(str, range(len(names))))


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
