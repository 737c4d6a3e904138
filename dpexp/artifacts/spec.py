"""What an artifact is: rows, columns, overrides, published values, claims, changes per profile."""

from __future__ import annotations

import difflib
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
        labels: what the reader sees; a row has one for each of the artifact's `row_head`.
        overrides: Hydra overrides, in order.
    """

    key: str
    labels: tuple[str, ...]
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        """Give all labels in one."""
        return " ".join(self.labels)


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
        replace: an override of a row or column -> the override that stands for it here.
        relabel: a label -> the label that stands for it here.
        scaled: how the published setting was cut down; required but for `paper`.
    """

    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    relabel: Mapping[str, str] = field(default_factory=dict)
    scaled: str = ""


@dataclass(frozen=True)
class Artifact:
    """A table of a paper.

    Attributes:
        paper, name: the folder and the stem of its YAML.
        title, place: what it shows, in our words, and where the paper shows it.
        metric, value_label, decimals: which number of the record a cell holds, and how to print it.
        row_head: headings of the row labels.
        published: values by cell; a cell the paper leaves out is absent.
        published_note: how to read the published values.
    """

    paper: str
    name: str
    title: str
    place: str
    metric: str
    row_head: tuple[str, ...]
    rows: tuple[Line, ...]
    columns: tuple[Line, ...]
    profiles: Mapping[str, Profile]
    published: Mapping[Key, Published] = field(default_factory=dict)
    published_note: str = ""
    value_label: str = ""
    decimals: int = 1
    claims: tuple[Claim, ...] = ()


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
    tree["columns"] = tuple(_line(column, "label") for column in _list(tree, "columns"))
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
