"""One's own tables of numbers and words: parquet, CSV, TSV or JSONL (`task=table data=...`)."""

from __future__ import annotations

import json
import logging
import math
import reprlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpexp.data import columns as of_columns
from dpexp.data import own, rows
from dpexp.data.cache import decoded
from dpexp.data.columns import FLAG, REFUSE, Numbers, Words
from dpexp.data.examples import Examples
from dpexp.data.regression import squared_error
from dpexp.data.source import Found, find
from dpexp.data.task import Task, assemble
from dpexp.types import ConfigError, require_word

log = logging.getLogger("dpexp")

NUMBER = " task.target_range=[LOWEST,HIGHEST] where it is a number to predict,"


class Goal(NamedTuple):
    """What is predicted.

    Attributes:
        read: reads a target's cell, given its place and the names that its file gives labels.
        outputs: of the model: a number a class, or one.
        unit: of a number, in terms of which its range is 1 wide; None for a class.
        recipe: what decides the targets besides the files' bytes.
        classes: by index; empty for a number.
    """

    read: Callable[[Any, str, Sequence[str]], float]
    outputs: int
    unit: float | None
    recipe: str
    classes: tuple[str, ...] = ()


def table(
    *,
    name: str,
    data: str,
    config: str | None,
    columns: Mapping[str, Sequence[Any]],
    target: str | None,
    target_range: Sequence[float] | None,
    classes: Any,
    num_classes: int | None,
    missing: str,
    delimiter: str | None,
    train_splits: Sequence[str] | None,
    test_splits: Sequence[str] | None,
    test_size: int | None,
    split_seed: int,
    judged_on_training: bool | None = None,
    dataset_size: int,
    delta: float,
    data_root: str,
) -> Task:
    """Load a table of one's own, each declared column mapped to [0, 1] by what is declared of it.

    A number becomes its place in its range, clamped to it; a word a one in a column of its own.
    A last column of ones stands for a constant, which a linear model here lacks. No range is
    estimated: the rows are private. A column that is not declared is not read.

    Args:
        name: what records call the data.
        data: a file, a folder, or owner/name of the hub.
        config: of several configurations, the one to read; None: there is one.
        columns: to read: [lowest, highest], or the words.
        target: the column to predict.
        target_range: [lowest, highest] of a number to predict; they scale it, and clamp nothing.
        classes: words of a class to predict, "read", or None.
        num_classes: of classes that are whole numbers from 0, or None.
        missing: "refuse", or "flag": a missing number is 0, with a one in a column of its own; a
            missing word is none of the words.
        delimiter: between a CSV or TSV file's cells; None: a comma in CSV, a tab in TSV.
        train_splits: of the training set; None: the one that is named so.
        test_splits: of the test set; None: the one that is named so.
        test_size: examples to split off for the test set, or None.
        split_seed: seed of that draw, separate from a run's seed.
        judged_on_training: whether test examples are training ones, which the certificate then
            says; False: they are others, though equal; None: they are refused.
        dataset_size: the declared N.
        delta: of the (eps, delta) guarantee.
        data_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: data are missing, corrupt, or not as declared.
    """
    require_word("task.missing", missing, (REFUSE, FLAG))
    found = find(
        data=data,
        config=config,
        train_splits=train_splits,
        test_splits=test_splits,
        test_size=test_size,
        judged_on_training=judged_on_training,
        data_root=data_root,
        takes_images=False,
    )
    held, path = own.columns_of(found, delimiter), found.train[0]
    if target is None:
        raise ConfigError(
            f"Expected task.target, the column to predict; {path} has {', '.join(held)[:300]}. Set "
            "task.target."
        )
    own.require_column("task.target", target, held, path)
    readers = of_columns.declared(columns, target, held, path, missing == FLAG)
    named = [reader.column for reader in readers]
    if unread := [column for column in held if column not in named and column != target]:
        log.info("not declared in task.columns, and not read: %s", ", ".join(unread))
    goal, lists = _goal(found, target, target_range, classes, num_classes, delimiter)
    said = json.dumps({str(column): list(columns[column]) for column in columns}, sort_keys=True)
    recipe = f"own table 2 {said} {target} {goal.recipe} {missing} {delimiter}"

    def load(files: list[Path]) -> Examples:
        inputs, clamped, targets = decoded(
            files,
            f"{recipe} {[lists[path] for path in files]}",
            lambda: _decode(files, target, delimiter, readers, goal, lists),
        )
        if counts := [f"{c} {n}" for c, n in zip(named, clamped.tolist(), strict=True) if n]:
            log.info("cells moved to the end of their declared range: %s", ", ".join(counts))
        return Examples(inputs, targets.long() if goal.unit is None else targets)

    test = load(found.test) if found.test else None
    task = assemble(
        name,
        *own.parted(load(found.train), test, test_size, split_seed, judged_on_training),
        num_classes=goal.outputs,
        delta=delta,
        dataset_size=dataset_size,
        size_word="dataset_size",
        preprocessing=Table(
            {str(column): list(columns[column]) for column in columns},
            missing,
            goal.classes,
            None if target_range is None else of_columns.range_of("task.target", target_range),
        ),
    )
    if goal.unit is None:
        return task
    score = partial(absolute_error, unit=goal.unit)
    return replace(task, metric="test_absolute_error", loss=squared_error, score=score)


@dataclass(frozen=True)
class Table:
    """Rows of declared columns.

    Attributes:
        columns: as `table` takes them.
        missing: as `table` takes it.
        classes: of the target, by index; empty for a number.
        target_range: of a number to predict, which outputs are in units of; None: a class.
    """

    kind: ClassVar[str] = "table"
    columns: Mapping[str, Sequence[Any]]
    missing: str
    classes: tuple[str, ...] = ()
    target_range: Sequence[float] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns that are read, in their order."""
        return tuple(sorted(self.columns))

    def examples(self, raw: Sequence[Mapping[str, Any]]) -> Examples:
        """Return rows as examples whose targets are all 0.

        Args:
            raw: a mapping of each column to its cell, for every row.

        Raises:
            ConfigError: a row lacks a column, or holds what is not declared of it.
        """
        readers = of_columns.declared(
            self.columns, "", self.names, "the model's columns", self.missing == FLAG
        )
        values = array("f")
        for index, row in enumerate(raw):
            for reader in readers:
                if not isinstance(row, Mapping) or reader.column not in row:
                    raise ConfigError(
                        f"Expected a mapping of columns to cells as row {index}, {reader.column} "
                        f"among them; got {reprlib.repr(row)}."
                    )
                values.extend(reader.read(row[reader.column], f"row {index}")[0])
            values.append(1.0)
        width = sum(reader.width for reader in readers) + 1
        inputs = torch.from_numpy(np.array(values, np.float32).reshape(-1, width))
        return Examples(inputs, torch.zeros(len(inputs), dtype=torch.long))

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make it again, in JSON's types."""
        return asdict(self)

    def save_files(self, folder: Path) -> None:
        """Rows need no files."""


def _goal(
    found: Found,
    target: str,
    target_range: Sequence[float] | None,
    classes: Any,
    num_classes: int | None,
    delimiter: str | None,
) -> tuple[Goal, dict[Path, tuple[str, ...]]]:
    """Return what is predicted, and each table's own list of class names."""
    if target_range is None:
        known, lists = own.classes_of(found, target, delimiter, classes, num_classes, NUMBER)

        def index(cell: Any, where: str, names: Sequence[str]) -> float:
            return known.index(cell, f"in column {target}, {where}", names)

        return Goal(index, len(known.words), None, repr(known.words), tuple(known.words)), lists
    if classes is not None or num_classes is not None:
        raise ConfigError(
            "Expected task.target_range for a number to predict, or task.classes for a class; got "
            "both. Leave one of them out."
        )
    low, high = of_columns.range_of("task.target", target_range)

    def share(cell: Any, where: str, names: Sequence[str]) -> float:
        value = of_columns.number_in(cell, target, where)
        if math.isnan(value):
            raise ConfigError(
                f"Expected a value of task.target in column {target}, {where}; it is missing. "
                "Remove the row, or fill it in."
            )
        return (value - low) / (high - low)

    lists = dict.fromkeys((*found.train, *found.test), ())
    return Goal(share, 1, high - low, repr((low, high))), lists


def absolute_error(outputs: Tensor, targets: Tensor, unit: float) -> Tensor:
    """Return |output - target| in the target's own unit, [n], of outputs [n, 1], targets [n]."""
    return (outputs[:, 0] - targets).abs() * unit


def _decode(
    files: Sequence[Path],
    target: str,
    delimiter: str | None,
    readers: Sequence[Numbers | Words],
    goal: Goal,
    lists: Mapping[Path, Sequence[str]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs [n, d], how many cells of each column were clamped, and targets [n]."""
    wanted = [*(reader.column for reader in readers), target]
    values, targets, clamped = array("f"), array("d"), [0] * len(readers)
    for path in files:
        for where, (*cells, wanted_cell) in rows.read(path, wanted, delimiter):
            targets.append(goal.read(wanted_cell, where, lists[path]))
            for place, (reader, cell) in enumerate(zip(readers, cells, strict=True)):
                numbers, is_clamped = reader.read(cell, where)
                values.extend(numbers)
                clamped[place] += is_clamped
            values.append(1.0)
    width = sum(reader.width for reader in readers) + 1
    inputs = torch.from_numpy(np.array(values, np.float32).reshape(-1, width))
    return inputs, torch.tensor(clamped), torch.from_numpy(np.array(targets)).float()
