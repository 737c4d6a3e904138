"""Reads an artifact from its YAML, and refuses one that doesn't say what it has to."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from dpexp.artifacts.words import (
    CURVES,
    MAPS,
    POINTS,
    REDUCTIONS,
    Artifact,
    Axes,
    Claim,
    Key,
    Line,
    Profile,
    Published,
    unknown,
)
from dpexp.types import ConfigError, one_line

__all__ = ["Artifact", "Axes", "Claim", "Key", "Line", "Profile", "Published", "load", "unknown"]

CLAIMED = {"eps", "noise", "clip", "sampling", "seed", "privacy.eps", "privacy.delta",
           "privacy.budget", "privacy.noise", "privacy.sampling"}  # fmt: skip
GROUPS = {"task", "public", "profile", "attack", "audit", "results"}
"""What no grid may hold: what a cell promises, and on which data."""

NEEDED = {POINTS: ("x_name",), CURVES: ("x",), MAPS: ("y_label",)}
"""What a figure of each kind has to say of its axes besides `x_label`."""


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
        raise unknown(f"artifact of {paper}:", name, names)
    path = root / paper / f"{name}.yaml"
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {one_line(error)}") from error
    try:
        return _artifact(paper, name, tree)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _artifact(paper: str, name: str, tree: Any) -> Artifact:
    tree = dict(_mapping(tree, "the file"))
    tree["rows"] = tuple(_line(row, "labels") for row in _list(tree, "rows"))
    if "figure" in tree:
        tree["figure"] = _axes(tree["figure"])
        tree["columns"] = tuple(_column(c, tree["figure"]) for c in _list(tree, "columns"))
    else:
        tree["columns"] = tuple(_line(column, "label") for column in _list(tree, "columns"))
    if "average" in tree:
        average = dict(_mapping(tree["average"], "average"))
        tree["average"] = _line({**average, "overrides": []}, "label")
    if isinstance(tree.get("metric"), str):
        tree["metric"] = [tree["metric"]]
    tree["row_head"] = tuple(map(str, _list(tree, "row_head")))
    tree["published"] = _published(tree.get("published", {}))
    tree["claims"] = tuple(_claim(c) for c in tree.get("claims", []))
    profiles = _mapping(tree.get("profiles"), "profiles")
    tree["profiles"] = {key: _build(Profile, p, f"profile {key}") for key, p in profiles.items()}
    artifact = _build(Artifact, {"paper": paper, "name": name, **tree}, "the file")
    _check(artifact)
    return artifact


def _claim(tree: Any) -> Claim:
    tree = dict(_mapping(tree, "a claim"))
    where = f"Claim '{tree.get('says')}'"
    if ("of" in tree) != ("within" in tree):
        raise ConfigError(f"{where}: expected 'of' and 'within' together.")
    if "of" in tree:
        if mixed := [word for word in ("above", "below", "margin") if word in tree]:
            raise ConfigError(f"{where}: expected no '{mixed[0]}' beside 'of' and 'within'.")
        pairs = _list(tree, "of")
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ConfigError(f"{where}: expected pairs under 'of'; got {pairs!r}.")
        tree["of"] = tuple(map(tuple, pairs))
        within = tree["within"]
        if not _is_number(within) or not 0 < within < math.inf:
            raise ConfigError(f"{where}: expected a number above 0 as 'within'; got {within!r}.")
    else:
        for word in ("above", "below"):
            _list(tree, word)
        if not _is_number(tree.get("margin", 0.0)):
            raise ConfigError(f"{where}: expected a number as margin; got {tree['margin']!r}.")
    return _build(Claim, tree, "a claim")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _axes(tree: Any) -> Axes:
    axes = _build(Axes, tree, "figure")
    if axes.kind not in NEEDED:
        raise unknown("kind of figure", str(axes.kind), NEEDED)
    needed = NEEDED[axes.kind]
    for words in NEEDED.values():
        for word in words:
            if bool(getattr(axes, word)) != (word in needed):
                expected = f"'{word}'" if word in needed else f"no '{word}'"
                raise ConfigError(f"Expected {expected} in a figure of {axes.kind}.")
    if axes.kind == MAPS and (axes.log_x or axes.log_y):
        raise ConfigError("Expected neither log_x nor log_y in a figure of maps.")
    return axes


def _line(tree: Any, label: str) -> Line:
    tree = dict(_mapping(tree, "a row or column"))
    labels = tree.pop(label, None)
    labels = [labels] if isinstance(labels, str) else labels
    where = f"row or column {tree.get('key')}"
    if isinstance(tree.get("metric"), str):
        tree["metric"] = [tree["metric"]]
    if "words" not in tree and "overrides" not in tree:
        raise ConfigError(f"Expected 'overrides' in {where}; [] if it has none of its own.")
    if tree.get("words"):
        words = _mapping(tree["words"], f"words of {where}")
        tree["words"] = {str(key): str(text) for key, text in words.items()}
    if "grid" in tree:
        tree["grid"] = _grid(tree, where)
    return _build(Line, {**tree, "labels": labels}, where)


def _grid(tree: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    axes = _list(tree, "grid")
    for axis in axes:
        points = axis if isinstance(axis, list) else []
        words = [word for point in points for word in str(point).split()]
        if (
            not all(isinstance(point, str) for point in points)
            or not words
            or not all("=" in word for word in words)
        ):
            raise ConfigError(
                f"Expected lists of overrides, such as [epochs=1, epochs=2], under 'grid' in "
                f"{where}; got {axes!r}."
            )
        for key in (word.partition("=")[0].lstrip("+~") for word in words):
            if key in CLAIMED or key.split(".")[0] in GROUPS:
                raise ConfigError(
                    f"Expected no {key} under 'grid' in {where}: it says what a cell is, and is "
                    "not chosen."
                )
    return tuple(tuple(axis) for axis in axes)


def _column(tree: Any, axes: Axes) -> Line:
    """Read a figure's column: of points by panel and x, of curves by panel, of maps by label."""
    if axes.kind == MAPS:
        return _line(tree, "label")
    tree = dict(_mapping(tree, "a column"))
    panel = [tree["panel"]] if tree.get("panel") else []
    if axes.kind == CURVES:
        return _line({**tree, "label": panel}, "label")
    x = tree.get("x")
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise ConfigError(f"Column {tree.get('key')}: expected a number as x; got {x!r}.")
    if axes.log_x and x <= 0:
        raise ConfigError(f"Column {tree.get('key')}: expected x > 0 where log_x is set; got {x}.")
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
    if artifact.figure is None:
        _check_table(artifact)
    else:
        _check_figure(artifact)
    columns += [artifact.average.key] if artifact.average else []
    for keys, kind in ((rows, "row"), (columns, "column")):
        if len(set(keys)) < len(keys):
            raise ConfigError(f"Expected every {kind} key once; got {keys}.")
    valued = [c for c in columns if c not in {w.key for w in artifact.columns if w.words}]
    claimed = [
        side
        for claim in artifact.claims
        for pair in _pairs(claim, artifact, valued)
        for side in pair
    ]
    for row, column in [*artifact.published, *(s for s in claimed if isinstance(s, tuple))]:
        if row not in rows:
            raise unknown("row", row, rows)
        if column not in valued:
            raise unknown("column", column, valued)
    for line in artifact.columns:
        if line.grid:
            raise ConfigError(f"Column {line.key}: 'grid' is a row's.")
    for row in (row for row in artifact.rows if row.grid):
        for column in artifact.measured_columns:
            if not all(m.startswith("test_accuracy") for m in artifact.metric_of(row, column)):
                raise ConfigError(f"Row {row.key}: a 'grid' is chosen from by accuracy alone.")
    for line in artifact.rows:
        if len(line.labels) != len(artifact.row_head):
            raise ConfigError(f"Row {line.key}: expected labels for {artifact.row_head}.")
    _check_profiles(artifact, rows, columns)


def _pairs(claim: Claim, artifact: Artifact, columns: list[str]) -> list[tuple[Any, Any]]:
    """List what a claim compares; refuses what can't be compared."""
    if len(claim.above) != len(claim.below):
        raise ConfigError(f"Claim '{claim.says}': expected as many rows below as above.")
    if claim.reduce not in REDUCTIONS:
        raise unknown(f"reduction in claim '{claim.says}'", str(claim.reduce), REDUCTIONS)
    if artifact.kind == MAPS and claim.reduce == "last" and not claim.metric:
        raise ConfigError(
            f"Claim '{claim.says}': expected reduce: mean, min or max, or a metric, where cells "
            "are maps."
        )
    if claim.reduce != "last" and artifact.kind not in (CURVES, MAPS):
        raise ConfigError(f"Claim '{claim.says}': a cell is a number; expected no 'reduce'.")
    if claim.rows and claim.columns:
        raise ConfigError(f"Claim '{claim.says}': expected columns or rows, not both.")
    for above, below in (*zip(claim.above, claim.below, strict=True), *claim.of):
        if not isinstance(above, str) and not isinstance(below, str):
            raise ConfigError(f"Claim '{claim.says}': expected a key on one side of {above}.")
    return claim.pairs(columns)


def _check_profiles(artifact: Artifact, rows: list[str], columns: list[str]) -> None:
    for name, profile in artifact.profiles.items():
        if name != "paper" and not profile.scaled:
            raise ConfigError(f"Profile {name}: say under 'scaled' how the setting was cut down.")
        if not profile.seeds:
            raise ConfigError(f"Profile {name}: expected at least one seed.")
        for pattern in _mapping(profile.skip, f"skip of profile {name}: patterns and reasons"):
            if not fnmatch.filter([*rows, *columns], pattern):
                raise unknown(
                    f"row or column under skip in profile {name}", pattern, rows + columns
                )


def _check_table(artifact: Artifact) -> None:
    """Refuse words that only a figure knows, and columns of words that have runs."""
    rows = [row.key for row in artifact.rows]
    for line in (*artifact.rows, *artifact.columns):
        if line.panel or line.x is not None:
            raise ConfigError(
                f"Row or column {line.key}: panel and x are a figure's words; "
                "say its axes under 'figure'."
            )
    for line in artifact.rows:
        if line.words:
            raise ConfigError(f"Row {line.key}: 'words' are a column's.")
    for column in artifact.columns:
        if column.words and (column.overrides or column.metric):
            raise ConfigError(
                f"Column {column.key}: a column of words has no runs; expected neither overrides "
                "nor metric."
            )
        for key in column.words:
            if key not in rows:
                raise unknown(f"row in words of column {column.key}", key, rows)


def _check_figure(artifact: Artifact) -> None:
    """Refuse words that only a table or another kind of figure knows, and cells in one place."""
    if artifact.average is not None:
        raise ConfigError("Expected no 'average' in a figure: it is a table's column.")
    for line in (*artifact.rows, *artifact.columns):
        if line.words:
            raise ConfigError(f"Row or column {line.key}: 'words' are a table's.")
        if artifact.kind != POINTS and line.x is not None:
            raise ConfigError(f"Column {line.key}: x is a word of points; got {artifact.kind}.")
    if artifact.kind == MAPS:
        if artifact.published:
            raise ConfigError("Expected nothing published in a figure of maps: cells are pictures.")
        return
    places = [(column.panel, column.x) for column in artifact.columns]
    for column, place in zip(artifact.columns, places, strict=True):
        if places.count(place) > 1:
            what = "point a panel and x" if artifact.kind == POINTS else "column a panel"
            raise ConfigError(f"Column {column.key}: expected one {what}.")
