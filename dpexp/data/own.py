"""What the doors for one's own data share: which columns are read, and which classes there are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from dpexp.data import classes as class_lists
from dpexp.data import overlap, parquet, rows
from dpexp.data.classes import Classes
from dpexp.data.examples import Examples
from dpexp.data.source import Found
from dpexp.data.text import Texts
from dpexp.types import ConfigError

log = logging.getLogger("dpexp")

LABEL = "label"
"""A column of this name holds the labels, where nothing else says so."""

FEWEST = 50
"""Test examples by which a set is told to be of training ones (ours): fewer may be by chance."""


def columns_of(found: Found, delimiter: str | None) -> list[str]:
    """Return the first training table's columns.

    Raises:
        ConfigError: it has none, or a delimiter is named that no table has.
    """
    path = found.train[0]
    formats = sorted({path.suffix.lower() for path in (*found.train, *found.test)})
    if delimiter is not None and not {*formats} & {*rows.DELIMITERS}:
        raise ConfigError(
            f"Expected no task.delimiter for {' and '.join(formats)} files; got {delimiter}. Leave "
            "task.delimiter out."
        )
    if not (columns := rows.columns_of(path, delimiter)):
        raise ConfigError(f"Expected a table with columns at {path}; it is empty. Set data.")
    return columns


def require_column(setting: str, column: str, columns: Sequence[str], path: Path) -> str:
    """Return a column that was named; raise ConfigError if the table lacks it."""
    if column not in columns:
        near = get_close_matches(str(column), columns, 1, 0.5)
        hint = f" Did you mean {_shown(near[0])}?" if near else ""
        way = f"Set {setting}."
        if near and near[0] != near[0].strip():
            way = f"""Take the spaces out of the header, or quote twice: '{setting}="{near[0]}"'."""
        raise ConfigError(
            f"Expected {setting} to be a column of {path}, which has {_listed(columns)}; got "
            f"{column}.{hint}{rows.of_first_line(path)} {way}"
        )
    return column


def label_column(found: Found, columns: Sequence[str], others: Sequence[str]) -> str:
    """Return the column of the labels, where it was not named.

    It is the only one that metadata give classes, else the one called label, else the only one
    that is left.

    Args:
        found: the data.
        columns: of the first training table.
        others: columns that are known to hold something else.

    Raises:
        ConfigError: nothing says which it is.
    """
    path, left = found.train[0], [column for column in columns if column not in others]
    named = [column for column in left if names_in(found, path, column)]
    for candidates in (named, [column for column in left if column == LABEL], left):
        if len(candidates) == 1:
            return candidates[0]
    raise ConfigError(
        f"Expected one column of labels in {path}; its columns are {_listed(columns)}. Set "
        "task.label_column."
    )


def names_in(found: Found, path: Path, column: str) -> tuple[str, ...]:
    """Return the class names that a file's metadata, or the data set's card, give a column."""
    names = parquet.class_names(path, column) if path.suffix.lower() == ".parquet" else None
    return names or found.names.get(column, ())


def is_text(path: Path, column: str) -> bool:
    """Return whether a column may hold texts; only parquet files say what they hold."""
    if path.suffix.lower() != ".parquet":
        return True
    kind = parquet.schema(path).field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()


def classes_of(
    found: Found,
    column: str,
    delimiter: str | None,
    classes: Any,
    num_classes: int | None,
    remedy: str = "",
) -> tuple[Classes, dict[Path, tuple[str, ...]]]:
    """Return the classes, and each table's own list of them (empty if it has none).

    Args:
        found: the data.
        column: of the labels.
        delimiter: between cells of CSV and TSV files.
        classes: task.classes.
        num_classes: task.num_classes.
        remedy: what else may be set where nothing declares the classes.

    Raises:
        ConfigError: nothing declares the classes.
    """
    files = (*found.train, *found.test)
    lists = {path: names_in(found, path, column) for path in files}
    chosen = class_lists.declared(classes, num_classes)
    named = {str(path): names for path, names in lists.items() if names}
    if named and (chosen is None or classes is None) and classes != class_lists.READ:
        of_files = class_lists.of_lists(named)
        if of_files and num_classes not in (None, len(of_files.words)):
            raise ConfigError(
                f"Expected task.num_classes={len(of_files.words)}, as many as {next(iter(named))} "
                f"names in column {column}; got {num_classes}. Leave task.num_classes out."
            )
        chosen = of_files
    if classes == class_lists.READ:
        chosen = class_lists.read_off(_labels(files, lists, column, delimiter))
    if chosen is None:
        held = ""
        if found.test:  # which no guarantee covers
            labels = _labels(found.test, lists, column, delimiter)
            words = {str(label) for label in labels if not class_lists.is_missing(label)}
            shown = ", ".join(sorted(words)[:8])
            held = f", and the test set's labels are {shown}{', …' if len(words) > 8 else ''}"
        raise ConfigError(
            f"Expected the classes of column {column} to be declared; no metadata name them{held}. "
            f"Set{remedy} task.classes=[WORD,WORD], task.num_classes where labels are whole "
            "numbers from 0, or task.classes=read, which the certificate then says."
        )
    return chosen, lists


def _labels(
    files: Sequence[Path],
    lists: Mapping[Path, Sequence[str]],
    column: str,
    delimiter: str | None,
) -> set[Any]:
    """Return the labels that occur, by the names of the file's own list if it has one."""
    found: set[Any] = set()
    for path in files:
        names = lists[path]
        for row in rows.read(path, [column], delimiter):
            (label,) = row.cells
            if not isinstance(label, str | int | float | None):
                raise ConfigError(
                    f"Expected a label in column {column}, {row.where}; it holds "
                    f"{type(label).__name__}. Set task.label_column."
                )
            if isinstance(label, int) and 0 <= label < len(names):
                label = names[label]
            found.add(label)
    return found


def parted(
    whole: Examples | Texts,
    test: Examples | Texts | None,
    test_size: int | None,
    split_seed: int,
    judged_on_training: bool | None,
) -> tuple[Any, Any]:
    """Return training and test examples.

    Args:
        whole: what was read for training.
        test: what was read for testing; None: it is split off.
        test_size: examples to split off.
        split_seed: seed of the draw, separate from a run's seed: all runs share a test set.
        judged_on_training: what is said of test examples that are training ones; None: nothing.

    Raises:
        ConfigError: there are too few examples, or most test examples are training ones.
    """
    if test is not None:
        if judged_on_training is None:
            _require_others(whole, test)
        return whole, test
    tests, rest = split_off(len(whole), test_size, split_seed)
    log.info(
        "%d of %d examples, drawn by task.split_seed=%d, are the test set and not trained on",
        len(tests),
        len(whole),
        split_seed,
    )
    return whole.take(rest), whole.take(tests)


def _require_others(train: Examples | Texts, test: Examples | Texts) -> None:
    """Refuse test examples that are training ones in another file: the metric would be theirs."""
    if len(test) < FEWEST:
        return
    held, tests = map(overlap.hashes_of, (train, test))
    if len(train) and overlap.are_repeated(held, tests):
        raise ConfigError(
            "Expected test examples that are not trained on; most of them are training examples "
            "too. Remove them from either file, set task.test_splits, or set "
            "task.judged_on_training: true if the metric may be of the training set, which the "
            "certificate then says, false if they are others, though equal."
        )


def split_off(total: int, test_size: int | None, split_seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the test examples, drawn from split_seed, and of the rest, in order.

    Raises:
        ConfigError: no training example is left.
    """
    if total < 2:
        raise ConfigError(
            "Expected examples to train on and to test on, as task.test_size splits them; the data "
            f"have {total}. Set data."
        )
    if test_size is None or test_size >= total:
        raise ConfigError(
            f"Expected task.test_size in [1, {total}), the number of examples; got {test_size}. "
            "Set task.test_size."
        )
    order = torch.randperm(total, generator=torch.Generator().manual_seed(split_seed))
    return order[:test_size].sort().values, order[test_size:].sort().values


def _listed(columns: Sequence[str]) -> str:
    text = " ".join(", ".join(map(_shown, columns)).split())
    return text if len(text) <= 300 else f"{text[:300]}…"


def _shown(column: str) -> str:
    """Return a column's name; in quotes, if it has spaces around it."""
    return column if column == column.strip() else repr(column)
