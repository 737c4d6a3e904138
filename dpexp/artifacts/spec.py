"""What an artifact is: rows, columns, overrides, published values, claims, changes per profile.

A table's rows and columns are printed as such. In a figure a row is a line and a column is a point
of all lines: an x in a panel.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from dpexp.types import ConfigError

Key = tuple[str, str]
"""A cell's row key and column key."""


@dataclass(frozen=True)
class Published:
    """A value the paper prints, and where it prints it."""

    value: float
    place: str


@dataclass(frozen=True)
class Line:
    """A row or a column.

    Attributes:
        key: how published values, claims and the command line refer to it.
        labels: what the reader sees; a row has one for each of the artifact's `row_head`. A
            figure's columns are labelled by panel and x.
        overrides: Hydra overrides, in order.
        panel, x: a figure's columns alone: the heading of the panel, "" if there is one panel
            only, and where in it the point lies.
        regardless_of: a figure's rows alone: the keys of the columns' overrides that it does
            without, such as eps. It is then one run a panel, and drawn as a level line.
    """

    key: str
    labels: tuple[str, ...]
    overrides: tuple[str, ...]
    panel: str = ""
    x: float | None = None
    regardless_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Axes:
    """What makes an artifact a figure.

    Attributes:
        x_name: the symbol along x, as in "ε = 2".
        x_label: the same in words.
        log_x: whether x is spaced by ratios.
    """

    x_name: str
    x_label: str
    log_x: bool = False


@dataclass(frozen=True)
class Claim:
    """Something the paper says in words: each `above` row exceeds its `below` row by `margin`.

    Attributes:
        says: the sentence.
        above, below: row keys, compared in pairs in every one of `columns`.
        columns: column keys; empty means all.
        margin: what the difference has to exceed, in the metric's unit.
    """

    says: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    columns: tuple[str, ...] = ()
    margin: float = 0.0


@dataclass(frozen=True)
class Profile:
    """What a profile changes.

    Attributes:
        seeds: one run of each cell per seed.
        overrides: added to every cell, after its own.
        replace: an override of a row or column -> the override that stands for it here; null
            leaves it out.
        relabel: a label -> the label that stands for it here.
        skip: a row's or column's key, or a pattern of keys -> why it isn't run here.
        scaled: how the published setting was cut down; required but for `paper`.
        why_not: a footnote where a claim of the paper's does not show here: the likely reason.
    """

    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    replace: Mapping[str, str | None] = field(default_factory=dict)
    relabel: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)
    scaled: str = ""
    why_not: str = ""

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
        metric: which number of the record a cell holds; of several, the mean.
        value_label, decimals: how to print it.
        row_head: headings of the row labels.
        average: a table's column of the means of its rows, or None.
        figure: the axes of a figure, None for a table.
        published: values by cell; a cell the paper leaves out is absent.
        published_note: how to read the published values.
    """

    paper: str
    name: str
    title: str
    place: str
    metric: tuple[str, ...]
    row_head: tuple[str, ...]
    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    profiles: Mapping[str, Profile]
    published: Mapping[Key, Published] = field(default_factory=dict)
    published_note: str = ""
    value_label: str = ""
    decimals: int = 1
    claims: tuple[Claim, ...] = ()
    average: Line | None = None
    figure: Axes | None = None

    def run_column(self, row: Line, column: Line) -> Line:
        """Give the column whose run a cell shows: a level line has one run for all of a panel."""
        return self.panel_of(column)[0] if row.regardless_of else column

    def panel_of(self, column: Line) -> tuple[Line, ...]:
        """Give the columns of a column's panel; all of a table's are in one."""
        return tuple(c for c in self.columns if c.panel == column.panel)


def unknown(kind: str, name: str, valid: Iterable[str]) -> ConfigError:
    """Word the error for a name that doesn't exist: the nearest valid one, then all of them."""
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return ConfigError(f"Unknown {kind} '{name}': {hint}Valid: {', '.join(valid) or 'none'}.")


def load(conf: Path, paper: str, name: str) -> Artifact:
    """Read `<conf>/artifact/<paper>/<name>.yaml`.

    Raises:
        ConfigError: no such paper or artifact, or a file that doesn't say what it has to.
    """
    root = conf / "artifact"
    papers = [p.name for p in root.iterdir() if p.is_dir()] if root.is_dir() else []
    if paper not in papers:
        raise unknown("paper", paper, papers)
    names = [p.stem for p in (root / paper).glob("*.yaml")]
    if name not in names:
        raise unknown(f"artifact of paper '{paper}'", name, names)
    path = root / paper / f"{name}.yaml"
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return _artifact(paper, name, tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _artifact(paper: str, name: str, tree: Any) -> Artifact:
    tree = dict(_mapping(tree, "the file"))
    tree["rows"] = tuple(_line(row, "labels") for row in _list(tree, "rows"))
    if "figure" in tree:
        tree["figure"] = _build(Axes, tree["figure"], "figure")
        tree["columns"] = tuple(_point(c, tree["figure"]) for c in _list(tree, "columns"))
    else:
        tree["columns"] = tuple(_line(column, "label") for column in _list(tree, "columns"))
    if "average" in tree:
        average = dict(_mapping(tree["average"], "average"))
        tree["average"] = _line({**average, "overrides": []}, "label")
    if isinstance(tree.get("metric"), str):
        tree["metric"] = [tree["metric"]]
    tree["row_head"] = tuple(map(str, _list(tree, "row_head")))
    tree["published"] = _published(tree.get("published", {}))
    tree["claims"] = tuple(_build(Claim, c, "a claim") for c in tree.get("claims", []))
    profiles = _mapping(tree.get("profiles"), "profiles")
    tree["profiles"] = {key: _build(Profile, p, f"profile {key}") for key, p in profiles.items()}
    artifact = _build(Artifact, {"paper": paper, "name": name, **tree}, "the file")
    _check(artifact)
    return artifact


def _line(tree: Any, label: str) -> Line:
    tree = dict(_mapping(tree, "a row or column"))
    labels = tree.pop(label, None)
    labels = [labels] if isinstance(labels, str) else labels
    return _build(Line, {**tree, "labels": labels}, f"row or column {tree.get('key')}")


def _point(tree: Any, axes: Axes) -> Line:
    tree = dict(_mapping(tree, "a column"))
    x = tree.get("x")
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise ConfigError(f"Column {tree.get('key')}: expected a number as x; got {x!r}.")
    if axes.log_x and x <= 0:
        raise ConfigError(f"Column {tree['key']}: expected x > 0 where log_x is set; got {x}.")
    panel = [tree["panel"]] if tree.get("panel") else []
    return _line({**tree, "label": [*panel, f"{axes.x_name} = {x:g}"]}, "label")


def _published(tree: Any) -> dict[Key, Published]:
    return {
        (row, column): _build(Published, entry, f"published {row}, {column}")
        for row, cells in _mapping(tree, "published").items()
        for column, entry in _mapping(cells, f"published {row}").items()
    }


def _build(kind: type, tree: Any, where: str) -> Any:
    """Make a dataclass of a mapping, lists as tuples; unknown and missing words are errors."""
    tree = _mapping(tree, where)
    known = {f.name for f in fields(kind)}
    for word in tree:
        if word not in known:
            raise unknown(f"word in {where}", str(word), known)
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in tree.items()})
    except TypeError as error:
        raise ConfigError(f"{where}: {str(error).split('() ')[-1]}") from error


def _mapping(tree: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"Expected a mapping for {where}; got {tree!r}.")
    return tree


def _list(tree: Mapping[str, Any], word: str) -> list[Any]:
    if not isinstance(tree.get(word), list) or not tree[word]:
        raise ConfigError(f"Expected a list under '{word}'; got {tree.get(word)!r}.")
    return tree[word]


def _check(artifact: Artifact) -> None:
    """Refuse references to rows and columns that aren't there, and profiles that keep quiet."""
    rows, columns = [r.key for r in artifact.rows], [c.key for c in artifact.columns]
    _check_axes(artifact)
    columns += [artifact.average.key] if artifact.average else []
    for keys, kind in ((rows, "row"), (columns, "column")):
        if len(set(keys)) < len(keys):
            raise ConfigError(f"Expected every {kind} key once; got {keys}.")
    claimed = [(r, c) for claim in artifact.claims for r in claim.above + claim.below
               for c in claim.columns or columns]  # fmt: skip
    for row, column in [*artifact.published, *claimed]:
        if row not in rows:
            raise unknown("row", row, rows)
        if column not in columns:
            raise unknown("column", column, columns)
    for line in artifact.rows:
        if len(line.labels) != len(artifact.row_head):
            raise ConfigError(f"Row {line.key}: expected labels for {artifact.row_head}.")
    for claim in artifact.claims:
        if len(claim.above) != len(claim.below):
            raise ConfigError(f"Claim '{claim.says}': expected as many rows below as above.")
    for name, profile in artifact.profiles.items():
        if name != "paper" and not profile.scaled:
            raise ConfigError(f"Profile {name}: say under 'scaled' how the setting was cut down.")
        if not profile.seeds:
            raise ConfigError(f"Profile {name}: expected at least one seed.")
        for pattern in profile.skip:
            if not fnmatch.filter([*rows, *columns], pattern):
                raise unknown(
                    f"row or column under skip in profile {name}", pattern, rows + columns
                )


def _check_axes(artifact: Artifact) -> None:
    """Refuse words that only a figure or only a table knows, and two points in one place."""
    if artifact.figure is None:
        for line in (*artifact.rows, *artifact.columns):
            if line.panel or line.x is not None or line.regardless_of:
                raise ConfigError(
                    f"Row or column {line.key}: panel, x and regardless_of are a figure's words; "
                    "say its axes under 'figure'."
                )
        return
    if artifact.average is not None:
        raise ConfigError("Expected no 'average' in a figure: it is a table's column.")
    places = [(column.panel, column.x) for column in artifact.columns]
    for column, place in zip(artifact.columns, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"Column {column.key}: expected one point a panel and x.")
