"""The words an artifact is written in: rows, columns, axes, published values, claims, profiles.

A table's rows and columns are printed as such. In a figure of points a row is a line and a column
is a point of all lines: an x in a panel. In a figure of curves a row is a line, a column a panel
and a cell a whole curve. In a figure of maps a cell is a picture.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dpexp.types import ConfigError

Key = tuple[str, str]
"""A cell's row key and column key."""

POINTS, CURVES, MAPS = "points", "curves", "maps"
REDUCTIONS = ("last", "first", "mean", "min", "max")


@dataclass(frozen=True)
class Published:
    """A value the paper prints, and where it prints it; of a curve, its end.

    Attributes:
        value: in the metric's unit.
        place: the table, figure or section, and the row and column in it.
        std: the standard deviation that the paper prints beside it, in the same unit; None if none.
    """

    value: float
    place: str
    std: float | None = None


@dataclass(frozen=True)
class Line:
    """A row or a column.

    Attributes:
        key: how published values, claims and the command line refer to it.
        labels: what the reader sees; a row has one for each of the artifact's `row_head`. Columns
            of points are labelled by panel and x, those of curves by panel.
        overrides: Hydra overrides, in order.
        panel, x: a figure's columns alone: the heading of the panel, "" if there is one panel
            only, and, of points, where in it the point lies.
        regardless_of: a row's alone: the keys of the columns' overrides that it does without,
            such as eps. Among points it is then one run a panel, and drawn as a level line.
        metric, decimals, value_label: in place of the artifact's; a column's go before a row's.
        words: a table's columns alone: row key -> text. Such a column has no runs.
        grid: a row's alone: axes of settings that the paper chose from, each a list of overrides
            (several joined by spaces), of which `dpexp.artifacts.tuned` has one point for a cell.
    """

    key: str
    labels: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    panel: str = ""
    x: float | None = None
    regardless_of: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    decimals: int | None = None
    value_label: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    grid: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Axes:
    """What makes an artifact a figure.

    Attributes:
        x_label: x in words, with its unit.
        kind: points, curves or maps.
        x_name: of points: the symbol along x, as in "ε = 2".
        x: of curves: which series of the record lies along x.
        y_label: of maps: y in words; other figures have `value_label` along y.
        log_x, log_y: whether x or y is spaced by ratios.
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
    """Something the paper says in words: each `above` exceeds its `below` by `margin`.

    Or both of each pair are alike: they differ by less than `within`, whichever is larger.

    Attributes:
        says: the sentence.
        above, below: row keys or numbers, compared in pairs in every one of `columns`; where
            `rows` are given, column keys or numbers, compared in every one of these.
        columns: column keys; empty means all.
        rows: row keys; empty means that rows are what is compared.
        margin: what the difference has to exceed, in the metric's unit; below 0, how far at most
            `above` may lie below.
        of, within: in place of above, below and margin: pairs of keys, or of a key and a number,
            and by how much they may differ, > 0.
        reduce: which number of a curve or picture is compared: the last, the first, the mean, the
            least or the largest.
        metric: a number of result.json that is compared in place of the cells' own.
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
        """Give what every difference has to exceed."""
        return -self.within if self.of else self.margin

    def pairs(self, columns: Iterable[str]) -> list[tuple[Key | float, Key | float]]:
        """List what is compared with what: cells, or a cell and a number; of `of`, both ways.

        Args:
            columns: the keys of the columns that are compared where the claim names none.
        """
        fixed = self.rows or self.columns or tuple(columns)

        def side(given: str | float, at: str) -> Key | float:
            if not isinstance(given, str):
                return float(given)
            return (at, given) if self.rows else (given, at)

        named = [*zip(self.above, self.below, strict=True)]
        named += [both for one, other in self.of for both in ((one, other), (other, one))]
        return [(side(above, at), side(below, at)) for above, below in named for at in fixed]


@dataclass(frozen=True)
class Profile:
    """What a profile changes.

    Attributes:
        seeds: one run of each cell per seed.
        overrides: added to every cell, after its own.
        replace: an override of a row or column -> the override that stands for it here, or the
            list of those that do; null leaves it out.
        relabel: a label -> the label that stands for it here.
        skip: a row's or column's key, or a pattern of keys -> why it isn't run here.
        scaled: how the published setting was cut down; required but for `paper`.
        why_not: a footnote where a claim of the paper's does not show here: the likely reason.
    """

    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    replace: Mapping[str, str | Sequence[str] | None] = field(default_factory=dict)
    relabel: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    scaled: str = ""
    why_not: str = ""

    def labels_of(self, line: Line) -> tuple[str, ...]:
        """Give a row's or column's labels as this profile words them."""
        return tuple(self.relabel.get(label, label) for label in line.labels)

    def in_place_of(self, override: str) -> list[str]:
        """Give the overrides that stand here for one of a row or column."""
        given = self.replace.get(override, override)
        if given is None:
            return []
        return [given] if isinstance(given, str) else list(given)

    def why_skipped(self, line: Line) -> str:
        """Say why this row or column isn't run here; "" if it is."""
        patterns = (p for p in self.skip if fnmatch.fnmatchcase(line.key, p))
        return next((self.skip[pattern] for pattern in patterns), "")


@dataclass(frozen=True)
class Artifact:
    """A table or a figure of a paper.

    Attributes:
        paper, name: the folder and the stem of its YAML.
        title, place: what it shows, in our words, and where the paper shows it.
        metric: which number of result.json a cell holds; of several, the mean. Of curves a column
            of metrics.jsonl or an array of the run's analysis, of maps such an array.
        value_label, decimals: how to print it.
        row_head: headings of the row labels.
        average: a table's column of the means of its rows, or None.
        figure: the axes of a figure, None for a table.
        alone: whether its cells measure time, and are run by themselves, one after another.
        published: values by cell; a cell the paper leaves out is absent.
        published_note: how to read the published values.
    """

    paper: str
    name: str
    title: str
    place: str
    row_head: tuple[str, ...]
    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    profiles: Mapping[str, Profile]
    metric: tuple[str, ...]
    published: Mapping[Key, Published] = field(default_factory=dict)
    published_note: str = ""
    value_label: str = ""
    decimals: int = 1
    claims: tuple[Claim, ...] = ()
    average: Line | None = None
    figure: Axes | None = None
    alone: bool = False

    @property
    def kind(self) -> str:
        """Give the kind of figure, "" for a table."""
        return self.figure.kind if self.figure else ""

    @property
    def measured_columns(self) -> tuple[Line, ...]:
        """Give the columns that have runs: all but those of words."""
        return tuple(column for column in self.columns if not column.words)

    def run_column(self, row: Line, column: Line) -> Line:
        """Give the column whose run a cell shows: a level line has one run for all of a panel."""
        return self.panel_of(column)[0] if row.regardless_of else column

    def panel_of(self, column: Line) -> tuple[Line, ...]:
        """Give the points of a column's panel; any other column stands by itself."""
        if self.kind != POINTS:
            return (column,)
        return tuple(c for c in self.columns if c.panel == column.panel)

    def metric_of(self, row: Line, column: Line) -> tuple[str, ...]:
        """Give what of a record a cell holds."""
        return column.metric or row.metric or self.metric

    def decimals_of(self, row: Line, column: Line) -> int:
        """Give how many decimals a cell is printed with."""
        given = (column.decimals, row.decimals, self.decimals)
        return next(decimals for decimals in given if decimals is not None)

    def value_label_of(self, row: Line, column: Line) -> str:
        """Give what a cell's value is called, with its unit."""
        label = column.value_label or row.value_label or self.value_label
        return label or " and ".join(self.metric_of(row, column))


def unknown(kind: str, name: str, valid: Iterable[str]) -> ConfigError:
    """Word the error for a name that doesn't exist: the nearest valid one, then all of them."""
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else "."
    return ConfigError(f"Unknown {kind} '{name}'{hint} Valid: {', '.join(valid) or 'none'}.")
