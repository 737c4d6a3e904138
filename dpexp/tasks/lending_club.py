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
from dpexp.types import ConfigError, MissingData

Range = Sequence[float] | Sequence[str]
"""Lowest and highest number, or a category's words in the order of their integers."""


def lending_club(
    *,
    name: str,
    csv: str,
    target: str,
    columns: Mapping[str, Range],
    train_size: int | None,
    subset_seed: int,
    dataset_size: int,
    delta: float,
) -> Task:
    """Load the loans with every column mapped to [0, 1] by a range that was declared.

    Categories become integers (compressive, Section 4). The paper says nothing of scales; ranges
    are declared, not read off, because the data are private. What is outside a range is clamped to
    it, what is missing becomes 0, and a word of no list goes with the last one.

    Args:
        name: as in conf/task.
        csv: path of the file.
        target: column of the interest rate, a fraction or, where any exceeds one, per cent.
        columns: what to read where the file has it, with its range.
        train_size: keep that many loans, drawn from subset_seed; None keeps all.
        subset_seed: which ones; apart from a run's seed, so that all runs see the same ones.
        dataset_size: how many loans there must be in the end.
        delta: of the (eps, delta) guarantee.

    Raises:
        MissingData: no file at csv.
        ConfigError: the file is no such table, or not what was declared.
    """
    path = Path(csv).expanduser().absolute()
    if not path.is_file():
        raise MissingData(
            f"Expected Lending Club's loans at {path}; there is no such file. Put loan.csv of "
            "Kaggle's wendykan/lending-club-loan-data, or its extract loan_data.csv, anywhere and "
            "set task.csv to it, or data_root to the folder that holds lending-club/loan_data.csv."
        )
    recipe = f"loans 1 {target} {json.dumps({key: list(columns[key]) for key in columns})}"
    inputs, targets = decoded([path], recipe, lambda: _decode(path, target, columns))
    loans = subset(Examples(inputs, targets), train_size, subset_seed)
    return regress(name, loans, delta=delta, dataset_size=dataset_size)


def _decode(path: Path, target: str, columns: Mapping[str, Range]) -> tuple[Tensor, Tensor]:
    """Give columns [n, d] in [0, 1] and rates [n]."""
    wanted = {target, *columns}
    try:
        table = pd.read_csv(path, usecols=lambda name: _name(name) in wanted, low_memory=False)
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
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
    table = table[table[target].notna()]  # some versions end with lines of remarks
    rate = _numbers(table[target])
    rate = rate / 100 if rate.max() > 1 else rate
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
    """Read numbers, of a text its first one: " 36 months", "10+ years", "83.7%", "Dec-2011"."""
    if not pd.api.types.is_numeric_dtype(column):
        column = column.astype(str).str.extract(r"(\d+(?:\.\d+)?)", expand=False).astype(float)
    return column.to_numpy(dtype=np.float64)
