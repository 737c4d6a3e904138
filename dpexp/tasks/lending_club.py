"""Lending Club's loans: the interest rate by what is known of loan and borrower (compressive)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dpexp.tasks.cache import decoded
from dpexp.tasks.regression import regress
from dpexp.tasks.task import Examples, Task, subset
from dpexp.types import ConfigError, MissingData, one_line, require_word

EXTRACT = ("lending-club", "loan_data.csv")
"""Where the extract lies under data_root."""

UNITS = {"fraction": 1.0, "percent": 100.0}

NUMBER = r"((?:(?<![A-Za-z0-9])[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
"""A sign counts where no letter or digit stands before it."""

Range = Sequence[float] | Sequence[str]
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
    """Load the loans with every column mapped to [0, 1] by a range that was declared.

    Categories become integers (compressive, Section 4). The paper says nothing of scales; ranges
    are declared, not read off, because the data are private. What is outside a range is clamped to
    it, what is missing becomes 0, and a word of no list goes with the last one.

    Args:
        name: as in conf/task.
        csv: path of the file; None: lending-club/loan_data.csv under data_root.
        target: column of the interest rate; a row without a number there is no loan.
        target_unit: "fraction" or "percent"; declared, as one loan may not change the others'.
        columns: what to read where the file has it, with its range.
        train_size: keep that many loans, drawn from subset_seed; None keeps all.
        subset_seed: which ones; apart from a run's seed, so that all runs see the same ones.
        dataset_size: how many loans there must be in the end.
        delta: of the (eps, delta) guarantee.
        data_root: a folder laid out like hub snapshots.

    Raises:
        MissingData: no file at csv.
        ConfigError: the file is no such table, or not what was declared.
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
        f"loans 2 {target} {target_unit} {json.dumps({key: list(columns[key]) for key in columns})}"
    )
    inputs, targets = decoded([path], recipe, lambda: _decode(path, target, target_unit, columns))
    loans = subset(Examples(inputs, targets), train_size, subset_seed)
    return regress(name, loans, delta=delta, dataset_size=dataset_size)


def _decode(
    path: Path, target: str, unit: str, columns: Mapping[str, Range]
) -> tuple[Tensor, Tensor]:
    """Give columns [n, d] in [0, 1] and rates [n]."""
    wanted = {target, *columns}
    try:
        table = pd.read_csv(path, usecols=lambda name: _name(name) in wanted, dtype=str)
    except (ValueError, OSError) as error:
        reason = one_line(error)
        raise ConfigError(
            f"Expected a table with a header at {path}; it cannot be read ({reason}). "
            "Fetch the file again."
        ) from None
    table.columns = [_name(name) for name in table.columns]
    present = [name for name in columns if name in table.columns]
    if target not in table.columns or not present:
        raise ConfigError(
            f"Expected columns {target} and some of {', '.join(columns)} in {path}; got "
            f"{', '.join(table.columns) or 'none of them'}. Set task.csv, or task.target."
        )
    rate = _numbers(table[target])
    is_loan = np.isfinite(rate)  # some versions end with lines of remarks
    table, rate = table[is_loan], rate[is_loan] / UNITS[unit]
    scaled = np.stack([_scaled(table[name], columns[name]) for name in present], axis=1)
    return torch.tensor(scaled).float(), torch.tensor(rate).float()


def _name(column: str) -> str:
    return column.strip().replace(".", "_")


def _scaled(column: pd.Series, of: Range) -> np.ndarray:
    """Map a column to [0, 1], [n]."""
    if isinstance(of[0], str):
        place = {word: index for index, word in enumerate(of)}
        number = column.str.strip().map(place).fillna(len(of) - 1).where(column.notna())
        low, high = 0, len(of) - 1
    else:
        number, (low, high) = _numbers(column), of
    share = (np.asarray(number, dtype=np.float64) - low) / (high - low)
    return np.nan_to_num(share.clip(0, 1), nan=0.0)


def _numbers(column: pd.Series) -> np.ndarray:
    """Read each text's first number: " 36 months", "10+ years", "83.7%", "Dec-2011", "-1e3".

    One row at a time: how a row is read may not depend on the others.
    """
    return column.str.extract(NUMBER, expand=False).astype(float).to_numpy(dtype=np.float64)
