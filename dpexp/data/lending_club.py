"""Lending Club's loans: predict the interest rate from loan and borrower (compressive)."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from csv import Error as CsvError
from csv import reader as csv_reader
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpexp.data.cache import decoded
from dpexp.data.examples import Examples, subset
from dpexp.data.numerals import (
    ANY,
    DATE,
    MISSING,
    MONTHS,
    NUMBER,
    PER_CENT,
    YEARS,
    ZIP,
    Forms,
    number,
)
from dpexp.data.regression import regress
from dpexp.data.task import Task
from dpexp.types import ConfigError, MissingData, counted, one_line, require_word

EXTRACT = ("lending-club", "loan_data.csv")
"""Path of the extract under data_root."""

UNITS = {"fraction": 1.0, "percent": 100.0}

FORMS = {
    "revol_util": (PER_CENT, "a percentage such as 83.7%"),
    "dti": (PER_CENT, "a percentage such as 27.65"),
    "dti_joint": (PER_CENT, "a percentage such as 27.65"),
    "term": (MONTHS, "months such as 36 months"),
    "emp_length": (YEARS, "years such as 3 years, < 1 year or 10+ years"),
    "zip_code": (ZIP, "three digits of a zip code such as 860xx"),
}
"""Formats of a column's cells, and their description in messages. Others are dates or numbers."""

OF_DATES = ("_d", "_date", "earliest_cr_line")
"""Endings of the names of date columns."""

Range = Sequence[float | str]
"""Lowest and highest number, or a category's words in the order of their integers."""


def lending_club(
    *,
    name: str,
    csv: str | None,
    target: str,
    target_unit: str,
    columns: Mapping[str, Range],
    train_size: int | None,
    subset_seed: int,
    dataset_size: int,
    delta: float,
    data_root: str,
) -> Task:
    """Load the loans with every column mapped to [0, 1] by its declared range.

    Categories become integers (compressive, Section 4). The paper does not mention scales; ranges
    are declared, not estimated, because the data are private. Values outside a range are clamped,
    missing values become 0, and unlisted words count as the last one. A cell that is neither
    missing nor in its column's format is an error: no row may be read by what others look like,
    nor months as years.

    Args:
        name: as in conf/task.
        csv: path of the file, in UTF-8, with commas between columns; None:
            lending-club/loan_data.csv under data_root.
        target: column of the interest rate; a row without a number there is no loan.
        target_unit: "fraction" or "percent"; declared, because no loan may change the others'.
        columns: columns to read if the file has them, with their ranges.
        train_size: loans to keep, drawn from subset_seed; None keeps all.
        subset_seed: seed of that draw, separate from a run's seed: all runs see the same ones.
        dataset_size: required number of loans.
        delta: of the (eps, delta) guarantee.
        data_root: a folder laid out like hub snapshots.

    Raises:
        MissingData: no file at csv.
        ConfigError: the file is not such a table, or not as declared.
    """
    require_word("task.target_unit", target_unit, UNITS)
    path = Path(csv or Path(data_root, *EXTRACT)).expanduser().absolute()
    if not path.is_file():
        raise MissingData(
            f"Expected Lending Club's loans at {path}; there is no such file. Put loan.csv of "
            "Kaggle's wendykan/lending-club-loan-data, or its extract loan_data.csv, anywhere and "
            "set task.csv to it, or data_root to the folder that holds lending-club/loan_data.csv."
        )
    recipe = (
        f"loans 4 {target} {target_unit} {json.dumps({key: list(columns[key]) for key in columns})}"
    )
    inputs, targets = decoded([path], recipe, lambda: _decode(path, target, target_unit, columns))
    loans = subset(Examples(inputs, targets), train_size, subset_seed)
    return regress(name, loans, delta=delta, dataset_size=dataset_size)


def _decode(
    path: Path, target: str, unit: str, columns: Mapping[str, Range]
) -> tuple[Tensor, Tensor]:
    """Return columns [n, d] in [0, 1] and rates [n]."""
    records = _records(path)
    place = _places(path, next(records, (1, []))[1], target, columns)
    rate = _reader(path, target, None, unit)
    readers = {name: _reader(path, name, columns[name], unit) for name in place if name != target}
    rates, numbers = array("d"), {name: array("d") for name in readers}
    for line, cells in records:
        try:
            value = rate(cells[place[target]], line)
        except ConfigError:
            if sum(cell.strip() not in MISSING for cell in cells) > 1:
                raise
            value = math.nan  # a remark at the end of some versions of the file
        if math.isnan(value):
            continue
        rates.append(value)
        for name, read in readers.items():
            numbers[name].append(read(cells[place[name]], line))
    scaled = np.stack([_scaled(numbers[name], columns[name]) for name in numbers], axis=1)
    targets = np.array(rates, dtype=np.float64) / UNITS[unit]
    return torch.tensor(scaled).float(), torch.tensor(targets).float()


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield a table's rows, the header first, each with the line it ends on.

    Raises:
        ConfigError: the file is not a table with rows of one length.
    """
    line, width = 0, None
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv_reader(stream, strict=True)
            for cells in rows:
                line = rows.line_num
                width = width or len(cells)
                if len(cells) != width and not _is_remark(cells):
                    raise ValueError(f"it has {counted(len(cells), 'cell')}, the header {width}")
                if cells:
                    yield line, cells + [""] * (width - len(cells))
    except (ValueError, OSError, CsvError) as error:
        raise ConfigError(
            f"Expected a table in UTF-8, with a header and commas between columns, at {path}; it "
            f"cannot be read after line {line} ({one_line(error)}). Fetch the file again, unpack "
            "it, or save it in this format."
        ) from None


def _is_remark(cells: list[str]) -> bool:
    """Return whether a line is text or empty, not a truncated row."""
    if any(cells[1:]):
        return False
    try:
        return not cells or math.isnan(number(cells[0], ANY))
    except ValueError:
        return True


def _places(
    path: Path, header: list[str], target: str, columns: Mapping[str, Range]
) -> dict[str, int]:
    """Return the indices of the columns to read: the target, and the rest as declared."""
    names = [_name(column) for column in header]
    present = [name for name in columns if name in names and name != target]
    if target not in names or not present:
        held = " ".join(", ".join(header).split())[:200]
        raise ConfigError(
            f"Expected columns {target} and some of {', '.join(columns)} in {path}, with commas "
            f"between them; got {held or 'none'}. Set task.csv, or task.target."
        )
    for name in (target, *present):
        if names.count(name) > 1:
            same = ", ".join(column for column in header if _name(column) == name)
            raise ConfigError(
                f"Expected one column {name} in {path}; got {same}, which are equal once a point "
                "is read as _. Remove the others from the file."
            )
    return {name: names.index(name) for name in (target, *present)}


def _name(column: str) -> str:
    return column.strip().replace(".", "_")


def _forms(column: str, is_target: bool, unit: str) -> tuple[Forms, str]:
    """Return the formats of a column's cells, and their description in messages."""
    if is_target and unit == "percent":
        return PER_CENT, "a percentage such as 11.89 or 11.89%"
    if not is_target and column in FORMS:
        return FORMS[column]
    if not is_target and column.endswith(OF_DATES):
        return DATE, "a date such as Dec-2011 or 2011-12-01"
    return NUMBER, "a number, such as 28854 or 0.1189,"


def _reader(path: Path, column: str, of: Range | None, unit: str) -> Callable[[str, int], float]:
    """Return a function that reads a column's cell, given its line, as a number or word index.

    Each cell is read on its own, so that no loan affects how another is read.

    Args:
        path: the file, for messages.
        column: its name.
        of: its range; None: of the target.
        unit: of the target.
    """
    cache: dict[str, float] = {}
    if of is not None and isinstance(of[0], str):
        words = {word: float(index) for index, word in enumerate(of)}
        for nothing in MISSING - words.keys():
            words[nothing] = math.nan
        return lambda cell, line: words.get(cell.strip(), len(of) - 1.0)
    forms, description = _forms(column, of is None, unit)

    def read(cell: str, line: int) -> float:
        value = cache.get(cell)
        if value is None:
            if "%" in cell and forms is not PER_CENT:
                raise ConfigError(
                    f"Expected numbers without a per cent sign in column {column} of {path}; line "
                    f"{line} holds {cell[:40]!r}. Set task.target_unit=percent if it is the rate, "
                    "or remove the sign."
                )
            try:
                value = cache[cell] = number(cell, forms)
            except ValueError:
                raise _unreadable(path, column, cell, line, description) from None
        return value

    return read


def _unreadable(path: Path, column: str, cell: str, line: int, description: str) -> ConfigError:
    return ConfigError(
        f"Expected {description} in column {column} of {path}; line {line} holds {cell[:40]!r}. "
        "Use this format, with numbers that have a decimal point, no separators or signs, and are "
        "below 1e38, or leave the cell empty."
    )


def _scaled(numbers: array, of: Range) -> np.ndarray:
    """Map a column to [0, 1], [n]; missing values become 0."""
    low, high = (0.0, len(of) - 1.0) if isinstance(of[0], str) else map(float, of)
    share = (np.array(numbers, dtype=np.float64) - low) / (high - low)
    return np.nan_to_num(share.clip(0, 1), nan=0.0)
