"""The contents of a table or figure: an artifact, a profile and all cells' values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.reporting.collect.cells import cell_name, profile_of, relabel
from dpexp.reporting.collect.values import NONE, SKIPPED, Value
from dpexp.reporting.schema.artifact import (
    CURVES,
    MAPS,
    POINTS,
    Artifact,
    Column,
    Key,
    Profile,
    Row,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """The contents of a table or figure.

    Attributes:
        artifact, profile: the artifact and the profile's name.
        values: all cells' values.
        settings: lines on the actual runs (task, model, examples, batch, epochs).
        overridden: the user's overrides that change the numbers.
        chosen: lines on the point of a row's grid that each cell uses.
    """

    artifact: Artifact
    profile: str
    values: Mapping[Key, Value]
    settings: Sequence[str] = ()
    overridden: Sequence[str] = ()
    chosen: Sequence[str] = ()

    @property
    def changes(self) -> Profile:
        """The profile's changes to the artifact."""
        return profile_of(self.artifact, self.profile)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns shown, with the average if none of its columns is skipped."""
        columns, average = self.artifact.columns, self.artifact.average
        if average is None or any(map(self.changes.why_skipped, self.artifact.measured_columns)):
            return columns
        return (*columns, average)

    def grid(self) -> list[tuple[Row, list[tuple[Column, Value]]]]:
        """Return the rows, each with its cells in order."""
        return [
            (row, [(column, self.values[row.key, column.key]) for column in self.columns])
            for row in self.artifact.rows
        ]

    def distinct(self) -> list[tuple[Row, Column, Value]]:
        """Return row, column and value of every cell; of a level line, one cell per panel."""
        return [
            (row, column, value)
            for row, cells in self.grid()
            for column, value in cells
            if column is self.artifact.run_column(row, column)
        ]

    def name(self, row: Row, column: Column) -> str:
        """Return a cell's name under the profile."""
        return cell_name(row, column, self.changes)

    def printed(self) -> list[tuple[Row, list[tuple[Column, Value]]]]:
        """Return `grid` without rows and columns that the profile skips and no paper has values of.

        The notes name them (`skipped`).
        """
        grid = self.grid()
        rows = [(row, cells) for row, cells in grid if not _is_empty(v for _, v in cells)] or grid
        empty = {
            column.key
            for place, column in enumerate(self.columns)
            if _is_empty(cells[place][1] for _, cells in rows)
            or (column.words and self.changes.why_skipped(column))
        }
        if len(empty) == len(self.columns):
            return rows
        return [
            (row, [(column, value) for column, value in cells if column.key not in empty])
            for row, cells in rows
        ]

    def printed_columns(self) -> list[Column]:
        """Return the columns of `printed`."""
        return [column for column, _ in self.printed()[0][1]]

    def head(self) -> list[str]:
        """Return the heading of every column of the printed table."""
        columns = (" ".join(relabel(c, self.changes)) for c in self.printed_columns())
        return [*self.artifact.row_head, *columns]

    def frame(self, shown: Callable[[Value, int], str]) -> pd.DataFrame:
        """Return the printed table: row labels, then every cell as formatted by `shown`.

        Args:
            shown: formats a cell's value with a number of decimals.
        """
        import pandas as pd

        body = [
            [
                *relabel(row, self.changes),
                *(shown(value, self.artifact.decimals_of(row, c)) for c, value in cells),
            ]
            for row, cells in self.printed()
        ]
        return pd.DataFrame(body, columns=self.head(), dtype=object)

    def skipped(self) -> list[str]:
        """Return what the profile doesn't run, and which cells there are none of, and why.

        A whole panel is named once.
        """
        names: dict[str, list[str]] = {}
        headings: tuple[Row | Column, ...] = (*self.artifact.rows, *self.artifact.columns)
        for heading in headings:
            if why := self.changes.why_skipped(heading):
                words = relabel(heading, self.changes)
                panel: tuple[Column, ...] = ()
                if isinstance(heading, Column) and heading.panel:
                    panel = self.artifact.panel_of(heading)
                whole = panel and all(map(self.changes.why_skipped, panel))
                names.setdefault(why, []).append(words[0] if whole else ", ".join(words))
        return [
            *(f"{SKIPPED}: {'; '.join(dict.fromkeys(n))} ({why})" for why, n in names.items()),
            *self._missing(),
        ]

    def _missing(self) -> list[str]:
        """Return which rows have no cell in which columns, and why, a line for each reason."""
        columns: dict[tuple[str, str], list[Column]] = {}
        for row in self.shown_rows():
            for column in self.shown_columns():
                if why := row.in_column(column).absent:
                    label = ", ".join(relabel(row, self.changes))
                    columns.setdefault((why, label), []).append(column)
        lines: dict[str, dict[str, list[str]]] = {}
        for (why, label), of_row in columns.items():
            lines.setdefault(why, {}).setdefault("; ".join(self._places(of_row)), []).append(label)
        return [
            "; ".join(f"{NONE} in {where}: {'; '.join(rows)}" for where, rows in by_place.items())
            + f" ({why})"
            for why, by_place in lines.items()
        ]

    def _places(self, columns: Sequence[Column]) -> list[str]:
        """Return the names of columns; all of several under one heading as that heading."""
        under: dict[str, list[str]] = {}
        for column in self.shown_columns():
            under.setdefault(self._heading(column), []).append(column.key)
        keys = {column.key for column in columns}
        whole = {name for name, own in under.items() if len(own) > 1 and keys.issuperset(own)}
        named = (
            heading
            if (heading := self._heading(c)) in whole
            else ", ".join(relabel(c, self.changes))
            for c in columns
        )
        return list(dict.fromkeys(named))

    def _heading(self, column: Column) -> str:
        """Return a column's name without its last part, such as its ε."""
        *first, last = ", ".join(relabel(column, self.changes)).split(", ")
        return ", ".join(first) or last

    def shown_rows(self) -> list[Row]:
        """Return the rows that the profile runs."""
        return [row for row in self.artifact.rows if not self.changes.why_skipped(row)]

    def shown_columns(self) -> list[Column]:
        """Return the columns that the profile runs."""
        return [column for column in self.columns if not self.changes.why_skipped(column)]

    def value_label(self, columns: Sequence[Column] = ()) -> str:
        """Return the labels of the values of these columns (or all), with their units."""
        labels = dict.fromkeys(
            self.artifact.value_label_of(row, column)
            for row in self.artifact.rows
            for column in columns or self.artifact.measured_columns
        )
        return "; ".join(labels)

    def legend(self) -> str:
        """Return the meaning of a figure's marks: measured ones, their n, published ones."""
        counts = sorted({value.num_seeds for value in self.values.values() if value.num_seeds})
        seeds = " to ".join(map(str, counts[:1] + counts[1:][-1:]))
        several = bool(counts) and counts[-1] > 1
        kind = self.artifact.kind
        is_log = self.artifact.figure is not None and self.artifact.figure.log_y
        spread = "range" if is_log else "standard deviation"
        mark, spread = {
            POINTS: ("Filled", f"mean and {spread}"),
            CURVES: ("Lines", f"mean and, as bands, {spread}"),
            MAPS: ("Colours", "mean"),
        }[kind]
        measured = f"{mark}: {self.value_label()}"
        if several:
            measured += f", {spread} over n = {seeds} seeds"
        elif counts:
            measured += ", one seed"
        hollow = "Hollow or dashed" if kind == POINTS else "Hollow, at the end"
        return f"{measured}{f'. {hollow}: published' if self.artifact.published else ''}."

    def absent(self) -> dict[str, list[str]]:
        """Return the names of cells without a value, or not of all seeds that ran, by status.

        Skipped ones are left out, and those that there are none of.
        """
        cells: dict[str, list[str]] = {}
        for row, column, value in self.distinct():
            why = value.divergence or ("" if value.is_there else value.status)
            if why and why not in (NONE, SKIPPED):
                cells.setdefault(why, []).append(self.name(row, column))
        return cells

    @property
    def has_diverged(self) -> bool:
        """Whether a number of some seed is not finite."""
        return any(value.diverged for value in self.values.values())

    def devices(self) -> list[str]:
        """Return the machines that executed the runs, each once."""
        results = (result for value in self.values.values() for result in value.results)
        named = (str(result.get("device", "a machine not named")) for result in results)
        return list(dict.fromkeys(named))

    def deviations(self) -> list[str]:
        """Return the certificates' deviations, each once, in the order of the cells."""
        return list(dict.fromkeys(w for value in self.values.values() for w in value.deviations))


def _is_empty(values: Iterable[Value]) -> bool:
    """Return whether there is nothing to print: none was run or published, or is to be."""
    return all(value.status in (NONE, SKIPPED) and value.published is None for value in values)


def unbroken(label: str) -> str:
    """Return a label whose equations stay on one line, as in "SVHN, ε = 2"."""
    return re.sub(r"(\S) ([=<>≤≥]) (?=\S)", "\\1\u00a0\\2\u00a0", label)


def settings(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per distinct setting of the finished runs, from their configs."""
    lines = (
        f"{c['task']['name']}: {c['model']['name']}, {c['task']['dataset_size']:,} training "
        f"examples, batch {c['batch_size']:,}, {c['epochs']:g} epoch{'s' * (c['epochs'] != 1)}"
        for c in configs
    )
    return list(dict.fromkeys(lines))
