"""Read an artifact from its YAML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from dpexp.reporting.schema.artifact import (
    CURVES,
    MAPS,
    POINTS,
    Artifact,
    Axes,
    Claim,
    Column,
    Key,
    Part,
    Profile,
    Published,
    Row,
    unknown,
)
from dpexp.reporting.schema.crossing import Crossing
from dpexp.reporting.schema.kinds import OneEach, require_kinds
from dpexp.reporting.schema.validate import validate
from dpexp.types import ConfigError, one_line

__all__ = ["Artifact", "Key", "load", "papers", "unknown"]

CLAIMED = {"eps", "noise", "clip", "sampling", "seed", "privacy.eps", "privacy.delta",
           "privacy.budget", "privacy.noise", "privacy.sampling"}  # fmt: skip
GROUPS = {"task", "public", "profile", "attack", "audit", "results", "hydra"}
"""Groups that a grid may not set, nor `CLAIMED`: the cell's guarantee and its data."""

OF_THE_TRIAL = {"holdout", "tracking", "device", "ranks", "data_root", "model_root", "weights",
                "checkpoint", "wandb", "eval_every"}  # fmt: skip
"""Nor these: what points are compared on, and how a run is done."""

NEEDED = {POINTS: ("x_name",), CURVES: ("x",), MAPS: ("y_label",)}
"""Required entries of each kind of figure besides `x_label`."""


def load(conf: Path, paper: str, name: str, own: Sequence[Path] = ()) -> Artifact:
    """Read `<conf>/artifact/<paper>/<name>.yaml`.

    Args:
        conf: the folder of config groups.
        paper: a folder in it.
        name: the file's name, without its suffix.
        own: further folders like `conf`, the user's.

    Raises:
        ConfigError: there is no such paper or artifact, or its file is incomplete or contradictory.
    """
    every = papers((conf, *own))
    if paper not in every:
        raise unknown("paper", paper, every)
    files = {
        path.stem: (folder, path)
        for folder in (*own, conf)
        for path in (folder / "artifact" / paper).glob("*.yaml")
    }
    if name not in files:
        raise unknown(f"artifact of {paper}:", name, files)
    folder, path = files[name]
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), OneEach)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {one_line(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return _artifact(paper, name, tree, None if folder == conf else folder)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def papers(folders: Sequence[Path]) -> list[str]:
    """Return the papers that these folders of config groups have artifacts of, each once."""
    roots = [folder / "artifact" for folder in folders]
    found = [p.name for r in roots if r.is_dir() for p in sorted(r.iterdir()) if p.is_dir()]
    return list(dict.fromkeys(found))


def _artifact(paper: str, name: str, tree: Any, own: Path | None) -> Artifact:
    tree = dict(_mapping(tree, "the file"))
    where = {"paper": paper, "name": name, "own": own}
    for entry in where.keys() & tree.keys():
        raise ConfigError(f"Expected no '{entry}': the file's own place says it. Take it out.")
    tree["rows"] = tuple(map(_row, _list(tree, "rows")))
    if "figure" in tree:
        tree["figure"] = _axes(tree["figure"])
        tree["columns"] = tuple(_figure_column(c, tree["figure"]) for c in _list(tree, "columns"))
    else:
        tree["columns"] = tuple(map(_table_column, _list(tree, "columns")))
    if "average" in tree:
        average = dict(_mapping(tree["average"], "average"))
        tree["average"] = _column({**average, "overrides": []})
    tree["metric"] = _metric(tree, "the file")
    tree["row_head"] = tuple(_list(tree, "row_head"))
    tree["published"] = _published(tree.get("published", {}))
    tree["claims"] = tuple(map(_claim, _list_if_any(tree, "claims")))
    tree["crossings"] = tuple(
        _build(Crossing, each, "a crossing") for each in _list_if_any(tree, "crossings")
    )
    profiles = _mapping(tree.get("profiles"), "profiles")
    tree["profiles"] = {key: _build(Profile, p, f"profile {key}") for key, p in profiles.items()}
    artifact = _build(Artifact, {**where, **tree}, "the file")
    validate(artifact)
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


def _row(tree: Any) -> Row:
    tree = _heading(tree, "row", "labels")
    if "grid" in tree:
        tree["grid"] = _grid(tree, f"row {tree.get('key')}")
    if "within" in tree:
        parts = _mapping(tree["within"], f"'within' of row {tree.get('key')}")
        where = f"row {tree.get('key')} within"
        tree["within"] = {str(key): _part(part, f"{where} {key}") for key, part in parts.items()}
    return _build(Row, tree, f"row {tree.get('key')}")


def _part(tree: Any, where: str) -> Part:
    tree = dict(_mapping(tree, where))
    if "grid" in tree:
        tree["grid"] = _grid(tree, where)
    if "absent" in tree and not str(tree["absent"] or "").strip():
        raise ConfigError(f"Expected a reason, in words, as 'absent' in {where}.")
    if tree.get("absent") and len(tree) > 1:
        raise ConfigError(f"Expected nothing beside 'absent' in {where}.")
    return _build(Part, tree, where)


def _column(tree: Any) -> Column:
    tree = _heading(tree, "column", "label")
    if tree.get("words"):
        words = _mapping(tree["words"], f"words of column {tree.get('key')}")
        tree["words"] = {str(key): str(text) for key, text in words.items()}
    return _build(Column, tree, f"column {tree.get('key')}")


def _heading(tree: Any, kind: str, label: str) -> dict[str, Any]:
    """Return a row's or column's entries, with its labels and metric as lists."""
    tree = dict(_mapping(tree, f"a {kind}"))
    labels = tree.pop(label, None)
    if "metric" in tree:
        tree["metric"] = _metric(tree, f"{kind} {tree.get('key')}")
    if not {"words", "bench", "overrides"} & tree.keys():
        raise ConfigError(
            f"Expected 'overrides' in {kind} {tree.get('key')}; [] if it has none of its own."
        )
    return {**tree, "labels": [labels] if isinstance(labels, str) else labels}


def _metric(tree: Mapping[str, Any], where: str) -> Any:
    """Return the names under 'metric', of which one may stand without a list."""
    metric = tree.get("metric")
    if not metric:
        raise ConfigError(f"Expected a name, such as test_accuracy, as 'metric' in {where}.")
    return [metric] if isinstance(metric, str) else metric


def _grid(tree: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    axes = _list(tree, "grid")
    for axis in axes:
        points = axis if isinstance(axis, list) else []
        words = [word for point in points for word in str(point).split()]
        if (
            not all(isinstance(point, str) for point in points)
            or not words
            or not all("=" in word[1:] for word in words)
        ):
            raise ConfigError(
                f"Expected lists of overrides, such as [epochs=1, epochs=2], under 'grid' in "
                f"{where}; got {axes!r}."
            )
        for key in (word.partition("=")[0].lstrip("+~") for word in words):
            if key in CLAIMED or key.split(".")[0] in GROUPS:
                raise ConfigError(
                    f"Expected no {key} under 'grid' in {where}: it defines the cell, so it cannot "
                    "be chosen."
                )
            if key.split(".")[0] in OF_THE_TRIAL:
                raise ConfigError(
                    f"Expected no {key} under 'grid' in {where}: points are compared on the same "
                    "held-out examples, by runs done in the same way. Leave it out."
                )
    return tuple(tuple(axis) for axis in axes)


def _table_column(tree: Any) -> Column:
    if isinstance(tree, Mapping) and (tree.get("panel") or tree.get("x") is not None):
        raise ConfigError(
            f"Column {tree.get('key')}: panel and x are a figure's words; describe its axes under "
            "'figure'."
        )
    return _column(tree)


def _figure_column(tree: Any, axes: Axes) -> Column:
    """Read a figure's column and label it: points by panel and x, curves by panel."""
    if axes.kind == MAPS:
        return _column(tree)
    tree = dict(_mapping(tree, "a column"))
    panel = [tree["panel"]] if tree.get("panel") else []
    if axes.kind == CURVES:
        return _column({**tree, "label": panel})
    x = tree.get("x")
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise ConfigError(f"Column {tree.get('key')}: expected a number as x; got {x!r}.")
    if axes.log_x and x <= 0:
        raise ConfigError(f"Column {tree.get('key')}: expected x > 0 where log_x is set; got {x}.")
    return _column({**tree, "label": [*panel, f"{axes.x_name} = {x:g}"]})


def _published(tree: Any) -> dict[Key, Published]:
    return {
        (row, column): _build(Published, entry, f"published {row}, {column}")
        for row, cells in _mapping(tree, "published").items()
        for column, entry in _mapping(cells, f"published {row}").items()
    }


def _build(kind: type, tree: Any, where: str) -> Any:
    """Return a dataclass built from a mapping, with lists as tuples.

    Raises:
        ConfigError: an entry is unknown or missing.
    """
    tree = _mapping(tree, where)
    known = {f.name for f in fields(kind)}
    for word in tree:
        if word not in known:
            raise unknown(f"word in {where}", str(word), known)
    require_kinds(kind, tree, where)
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


def _list_if_any(tree: Mapping[str, Any], word: str) -> list[Any]:
    return [] if tree.get(word, []) == [] else _list(tree, word)
