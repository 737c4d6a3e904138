"""Columns of a table as numbers in [0, 1], by what is declared of them and nothing else."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dpexp.data.numerals import LARGEST, MISSING, is_truth, number
from dpexp.data.rows import of_first_line
from dpexp.types import ConfigError

REFUSE, FLAG = "refuse", "flag"
"""Values of task.missing."""


@dataclass(frozen=True)
class Numbers:
    """A column of numbers in a declared range.

    Attributes:
        column: its name.
        low: lowest number, mapped to 0.
        high: highest number, mapped to 1.
        is_flagged: whether a missing number is 0 with a one beside it; otherwise it is refused.
    """

    column: str
    low: float
    high: float
    is_flagged: bool

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        return 1 + self.is_flagged

    def read(self, cell: Any, where: str) -> tuple[list[float], bool]:
        """Return a cell's numbers, and whether it was clamped to the range."""
        value = number_in(cell, self.column, where)
        if math.isnan(value):
            if not self.is_flagged:
                raise missing(self.column, where)
            return [0.0, 1.0], False
        share = (value - self.low) / (self.high - self.low)
        inside = min(max(share, 0.0), 1.0)
        return [inside, 0.0][: self.width], inside != share


@dataclass(frozen=True)
class Words:
    """A column of declared words, each a column of zeros and ones.

    Attributes:
        column: its name.
        words: as written in the file.
        is_flagged: whether a missing word is none of them; otherwise it is refused.
    """

    column: str
    words: tuple[str, ...]
    is_flagged: bool

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        return len(self.words)

    def read(self, cell: Any, where: str) -> tuple[list[float], bool]:
        """Return a cell's numbers, and False: no word is moved to another."""
        word = str(cell).lower() if isinstance(cell, bool) else cell
        word = str(word) if isinstance(word, int) else word
        if word not in self.words and is_truth(word):  # pandas writes True, spreadsheets TRUE
            word = word.lower()
        if word not in self.words:
            if word is None or (isinstance(word, str) and word.strip() in MISSING):
                if not self.is_flagged:
                    raise missing(self.column, where)
            else:
                raise ConfigError(
                    f"Expected one of {', '.join(self.words)[:200]} in column {self.column}, "
                    f"{where}; it holds {reprlib.repr(cell)}. Set task.columns, or mend the file."
                )
        return [float(word == known) for known in self.words], False


def declared(
    columns: Any, target: str, held: Sequence[str], path: Any, is_flagged: bool
) -> list[Numbers | Words]:
    """Return what reads each declared column.

    Args:
        columns: task.columns.
        target: task.target.
        held: the table's columns.
        path: the table, for messages.
        is_flagged: whether missing cells are flagged, not refused.

    Raises:
        ConfigError: nothing is declared, or a column is not there or not as it may be declared.
    """
    if not isinstance(columns, Mapping) or not columns:
        others = ", ".join(column for column in held if column != target)[:300]
        raise ConfigError(
            f"Expected task.columns to declare the columns to read, each with its lowest and "
            f"highest number or its words; {path} has {others or 'none'} beside {target}. Set "
            "task.columns, as in task.columns={age:[0,120],smoker:[no,yes]}."
        )
    found: list[Numbers | Words] = []
    # Sorted, as the order in which a config lists settings is no part of what it says.
    for column, said in sorted((str(key), said) for key, said in columns.items()):
        if column == target or column not in held:
            what = "to leave out task.target" if column == target else f"to be of {path}"
            raise ConfigError(
                f"Expected task.columns {what}, which has {', '.join(held)[:300]}; got {column}."
                f"{of_first_line(path)} Set task.columns."
            )
        if _are_words(said):
            words = tuple(str(w).lower() if isinstance(w, bool) else str(w) for w in said)
            if len(set(words)) < len(words) or len(words) < 2:
                raise ConfigError(
                    f"Expected two or more words for column {column}, each once; got "
                    f"{list(words)}. Set task.columns."
                )
            found.append(Words(column, words, is_flagged))
        else:
            found.append(Numbers(column, *range_of(f"column {column}", said), is_flagged))
    return found


def range_of(what: str, said: Any) -> tuple[float, float]:
    """Return a declared range; raise ConfigError if it is none."""
    are_two = _is_list(said) and len(said) == 2
    if are_two and all(isinstance(v, int | float) and not isinstance(v, bool) for v in said):
        low, high = map(float, said)
        if math.isfinite(high - low) and low < high:
            return low, high
    raise ConfigError(
        f"Expected [lowest, highest] of {what}, or its words; got {said}. Set task.columns, or "
        "task.target_range."
    )


def number_in(cell: Any, column: str, where: str) -> float:
    """Return a cell's number; nan for a missing one.

    Raises:
        ConfigError: the cell is no number, or one that float32 cannot hold.
    """
    try:
        if cell is None:
            return math.nan
        if isinstance(cell, str):
            return number(cell)
        if isinstance(cell, int | float | Decimal):  # a truth value is 0 or 1
            value = float(cell)
            if math.isnan(value) or abs(value) <= LARGEST:
                return value
    except (ValueError, OverflowError):
        pass
    raise ConfigError(
        f"Expected a number, such as 28854 or 0.1189, in column {column}, {where}; it holds "
        f"{reprlib.repr(cell)}. Use a decimal point, no separators or signs, and numbers below "
        "1e38, or declare the column's words in task.columns."
    )


def missing(column: str, where: str) -> ConfigError:
    """Return the error for a cell that is empty."""
    return ConfigError(
        f"Expected a value in column {column}, {where}; it is missing. Set task.missing={FLAG} to "
        "read it as 0 with a one in a column of its own, or fill it in."
    )


def _are_words(said: Any) -> bool:
    return _is_list(said) and any(isinstance(word, str | bool) for word in said)


def _is_list(said: Any) -> bool:
    return isinstance(said, Sequence) and not isinstance(said, str)
