"""The parts of an artifact: rows, columns, axes, published values, claims, profiles.

A table prints its rows and columns as such. In a figure of points a row is a line, and a column is
a point of every line: an x in a panel. In a figure of curves a row is a line, a column is a panel,
and a cell is a whole curve. In a figure of maps a cell is a picture.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpexp.reporting.schema.crossing import Crossing
from dpexp.types import ConfigError

Key = tuple[str, str]
"""A cell's row key and column key."""

SUITES_OWN = "dpexp"
"""The folder of artifacts that no paper prints."""

POINTS, CURVES, MAPS = "points", "curves", "maps"
REDUCTIONS = ("last", "first", "mean", "min", "max")


@dataclass(frozen=True)
class Published:
    """A published value and its place; for a curve, the value at its end.

    Attributes:
        value: in the metric's unit.
        place: the table, figure or section, and the row and column in it.
        std: the published standard deviation, in the same unit; None if there is none.
    """

    value: float
    place: str
    std: float | None = None


@dataclass(frozen=True)
class Part:
    """What a row has in some of the columns.

    Attributes:
        overrides: Hydra overrides, after the row's own.
        grid: in place of the row's.
        absent: why the row has no cell there; "" if it has one.
    """

    overrides: tuple[str, ...] = ()
    grid: tuple[tuple[str, ...], ...] = ()
    absent: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table, a line of a figure, or a row of its maps.

    Attributes:
        key: its name in published values, claims and on the command line.
        labels: printed, one for each of the artifact's `row_head`.
        overrides: Hydra overrides, in order.
        regardless_of: keys of the columns' overrides that it ignores, such as eps. In a figure of
            points it then has one run per panel, drawn as a level line.
        metric, decimals, value_label: used in place of the artifact's.
        grid: axes of settings that the paper chose from. An axis is a list of points, a point one
            or more overrides joined by spaces. `tuned` gives the point that a cell uses.
        within: a pattern of column keys -> what the row has in these columns.
    """

    key: str
    labels: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    regardless_of: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    decimals: int | None = None
    value_label: str = ""
    grid: tuple[tuple[str, ...], ...] = ()
    within: Mapping[str, Part] = field(default_factory=dict)

    def in_column(self, column: Column) -> Part:
        """Return the row's overrides and grid in a column, or why it has no cell there."""
        parts = [self.within[pattern] for pattern in self.patterns_of(column.key)]
        grids = [part.grid for part in parts if part.grid]
        return Part(
            (*self.overrides, *(word for part in parts for word in part.overrides)),
            grids[-1] if grids else self.grid,
            next((part.absent for part in parts if part.absent), ""),
        )

    def patterns_of(self, column: str) -> list[str]:
        """Return the patterns of `within` that fit a column's key; at most one in an artifact."""
        return [pattern for pattern in self.within if fnmatch.fnmatchcase(column, pattern)]

    def grids(self) -> list[tuple[tuple[str, ...], ...]]:
        """Return its grid and those within columns, without empty ones."""
        return [grid for grid in (self.grid, *(p.grid for p in self.within.values())) if grid]


@dataclass(frozen=True)
class Column:
    """A column of a table, a point or a panel of a figure, or a column of its maps.

    Attributes:
        key: its name in published values, claims and on the command line.
        labels: printed: a table's heading, a point's panel and x, a curve's panel.
        overrides: Hydra overrides, in order.
        panel: in a figure, the heading of the panel; "" if there is only one.
        x: in a figure of points, the point's x.
        metric, decimals, value_label: used in place of the row's and the artifact's.
        words: in a table, row key -> text. Such a column has no runs.
        bench: in a table, the stem of a file in results/bench whose steps are rows' keys: the words
            are each row's time and memory there (`dpexp.reporting.collect.costs`).
    """

    key: str
    labels: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    panel: str = ""
    x: float | None = None
    metric: tuple[str, ...] = ()
    decimals: int | None = None
    value_label: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    bench: str = ""

    @property
    def place(self) -> float:
        """The x of what is a point of a figure."""
        assert self.x is not None, self.key
        return self.x


@dataclass(frozen=True)
class Axes:
    """The axes of a figure.

    Attributes:
        x_label: label of x, with its unit.
        kind: points, curves or maps.
        x_name: of points: the symbol of x, as in "ε = 2".
        x: of curves: name of the record's series used as x.
        y_label: of maps: label of y; other figures label y with `value_label`.
        log_x, log_y: whether the axis is logarithmic.
    """

    x_label: str
    kind: str = POINTS
    x_name: str = ""
    x: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Claim:
    """A testable claim of the paper: each `above` exceeds its `below` by `margin`.

    Or the two of each pair are alike: they differ by less than `within`, in either direction.

    Attributes:
        says: the claim as a sentence.
        above, below: row keys or numbers, compared in pairs in each of `columns`; with `rows`,
            column keys or numbers, compared in each of these rows.
        columns: column keys; empty means all.
        rows: row keys; empty means that rows are compared.
        margin: that the difference must exceed, in the metric's unit. With a negative margin,
            `above` may be that much smaller.
        of, within: in place of above, below and margin: pairs of keys, or of a key and a number,
            and the bound on their difference, > 0.
        reduce: number of a curve or picture to compare: last, first, mean, min or max.
        metric: a number of result.json to compare in place of the cells' metric.
    """

    says: str
    above: tuple[str | float, ...] = ()
    below: tuple[str | float, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    margin: float = 0.0
    reduce: str = "last"
    metric: str = ""
    of: tuple[tuple[str | float, str | float], ...] = ()
    within: float = 0.0

    @property
    def exceeds(self) -> float:
        """The number that every difference must exceed."""
        return -self.within if self.of else self.margin

    def pairs(self, columns: Iterable[str]) -> list[tuple[Key | float, Key | float]]:
        """Return the pairs to compare: two cells, or a cell and a number; those of `of` both ways.

        Args:
            columns: keys of the columns to compare if the claim names none.
        """
        fixed = self.rows or self.columns or tuple(columns)

        def side(varied: str | float, key: str) -> Key | float:
            if not isinstance(varied, str):
                return float(varied)
            return (key, varied) if self.rows else (varied, key)

        named = [*zip(self.above, self.below, strict=True)]
        named += [both for one, other in self.of for both in ((one, other), (other, one))]
        return [(side(above, key), side(below, key)) for above, below in named for key in fixed]


@dataclass(frozen=True)
class Profile:
    """A profile's changes to an artifact.

    Attributes:
        seeds: one run of each cell per seed.
        overrides: added to every cell, after its own.
        replace: an override of a row or column -> the override that replaces it, or a list of them;
            null removes it.
        relabel: a label -> the label that replaces it.
        skip: the key of a row or column, or a pattern of keys -> why it isn't run.
        scaled: how the published setting was cut down; required except for `paper`.
        why_not: the likely reason why a claim fails, printed as a footnote if one does.
    """

    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    replace: Mapping[str, str | Sequence[str] | None] = field(default_factory=dict)
    relabel: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    scaled: str = ""
    why_not: str = ""

    def labels_of(self, heading: Row | Column) -> tuple[str, ...]:
        """Return the labels of a row or column under this profile."""
        return tuple(self.relabel.get(label, label) for label in heading.labels)

    def in_place_of(self, override: str) -> list[str]:
        """Return the overrides that replace one of a row or column under this profile."""
        replacement = self.replace.get(override, override)
        if replacement is None:
            return []
        return [replacement] if isinstance(replacement, str) else list(replacement)

    def said_of(self, row: Row, column: Column) -> list[str]:
        """Return the overrides of a row and a column under this profile."""
        of_column = [w for w in column.overrides if w.partition("=")[0] not in row.regardless_of]
        of_row = row.in_column(column).overrides
        return [w for word in (*of_row, *of_column) for w in self.in_place_of(word)]

    def why_skipped(self, heading: Row | Column) -> str:
        """Return why this row or column isn't run under this profile; "" if it is."""
        patterns = (p for p in self.skip if fnmatch.fnmatchcase(heading.key, p))
        return next((self.skip[pattern] for pattern in patterns), "")


@dataclass(frozen=True)
class Artifact:
    """A table or a figure of a paper.

    Attributes:
        paper, name: the folder and the stem of its YAML.
        title, place: its title, in our words, and its place in the paper.
        metric: name of a cell's number in result.json; with several, their mean. For curves a
            column of metrics.jsonl or an array of the run's analysis, for maps such an array.
        value_label, decimals: label and decimals of the printed value.
        row_head: headings of the row labels.
        average: a table's column of row means, or None.
        figure: the axes of a figure; None for a table.
        crossings: of a figure of points, predictions of where one line passes another.
        alone: whether its cells measure time, and so run one at a time.
        published: published values by cell.
        published_note: how to read the published values.
        own: the user's folder of config groups that it is in; None for dpexp's own conf.
    """

    paper: str
    name: str
    title: str
    place: str
    row_head: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    profiles: Mapping[str, Profile]
    metric: tuple[str, ...]
    published: Mapping[Key, Published] = field(default_factory=dict)
    published_note: str = ""
    value_label: str = ""
    decimals: int = 1
    claims: tuple[Claim, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    average: Column | None = None
    figure: Axes | None = None
    alone: bool = False
    own: Path | None = None

    @property
    def kind(self) -> str:
        """The kind of figure; "" for a table."""
        return self.figure.kind if self.figure else ""

    @property
    def axes(self) -> Axes:
        """The axes of what is a figure."""
        assert self.figure is not None, self.title
        return self.figure

    @property
    def measured_columns(self) -> tuple[Column, ...]:
        """The columns that have runs: all except those of words."""
        return tuple(column for column in self.columns if not (column.words or column.bench))

    def run_column(self, row: Row, column: Column) -> Column:
        """Return the column whose run a cell shows: a level line has one run per panel."""
        return self.panel_of(column)[0] if row.regardless_of else column

    def panel_of(self, column: Column) -> tuple[Column, ...]:
        """Return the columns of a point's panel; for other kinds, the column itself."""
        if self.kind != POINTS:
            return (column,)
        return tuple(c for c in self.columns if c.panel == column.panel)

    def metric_of(self, row: Row, column: Column) -> tuple[str, ...]:
        """Return the names of the numbers, series or arrays of a record that a cell holds."""
        return column.metric or row.metric or self.metric

    def decimals_of(self, row: Row, column: Column) -> int:
        """Return the number of decimals that a cell is printed with."""
        candidates = (column.decimals, row.decimals, self.decimals)
        return next(decimals for decimals in candidates if decimals is not None)

    def value_label_of(self, row: Row, column: Column) -> str:
        """Return the label of a cell's value, with its unit."""
        label = column.value_label or row.value_label or self.value_label
        return label or " and ".join(self.metric_of(row, column))


def unknown(kind: str, name: str, valid: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name; it gives the nearest valid name, then all of them."""
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else "."
    return ConfigError(f"Unknown {kind} '{name}'{hint} Valid: {', '.join(valid) or 'none'}.")
