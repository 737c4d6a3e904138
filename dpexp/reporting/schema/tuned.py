"""The point of a row's grid that each cell uses, chosen on held-out training examples.

Some papers print the best of several settings. A row's `grid` lists these settings, and
`python -m scripts.tune` tries each of them on held-out training examples. It writes the accuracies
to `tuned/<profile>/<paper>/<name>.yaml` of the config folder that holds the artifact, and a table
runs the best one. A cell without scores
for all points runs the settings of its row and column.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from dpexp.reporting.schema.artifact import SUITES_OWN, Artifact, Column, Key, Profile, Row
from dpexp.reporting.schema.kinds import OneEach
from dpexp.types import ConfigError, one_line

TUNE = "python -m scripts.tune"
"""The command that writes these files."""

HEAD = """\
# {command}
# Accuracy in % on held-out training examples, by row, column and point of the grid: the mean over
# these seeds. The best is what the table runs. The choice is not covered by the privacy guarantee.
# `settings` is a hash of the cell's settings without the point, for which these scores were found,
# and `data` the fingerprint of the examples.
"""


HOW = (
    "best of {count} settings on held-out training examples (in brackets its accuracy there, which "
    "as the best of so many flatters), a choice that the privacy guarantee does not cover"
)
"""How rows were tuned."""


@dataclass(frozen=True)
class Tried:
    """Scores of a cell.

    Attributes:
        scores: accuracy by point, whose overrides are joined by spaces.
        seeds: that each score is averaged over.
        settings: 12 hexadecimal digits, the hash of the cell's settings without a point; "" in a
            file that does not say it.
        data: fingerprint of the task's examples, public ones left out; "" if it is not known.
    """

    scores: Mapping[str, float]
    seeds: tuple[int, ...]
    settings: str = ""
    data: str = ""


@dataclass(frozen=True)
class Choice:
    """The choice for a cell.

    Attributes:
        overrides: of the best point; among equal ones, the first in the grid.
        score: its accuracy in % on the held-out examples, averaged over the seeds.
        settings, data: for which it was found, as in `Tried`.
    """

    overrides: tuple[str, ...]
    score: float
    settings: str = ""
    data: str = ""


def points(row: Row, column: Column, profile: Profile) -> list[tuple[str, ...]]:
    """Return a cell's grid under this profile, in order; [] for one without.

    Points that the profile replaces by the same words are one.
    """
    grid = row.in_column(column).grid
    if not grid:
        return []
    axes = [[_replaced(words.split(), profile) for words in axis] for axis in grid]
    found = [tuple(word for words in point for word in words) for point in product(*axes)]
    return list(dict.fromkeys(found))


def _replaced(words: Sequence[str], profile: Profile) -> list[str]:
    return [new for word in words for new in profile.in_place_of(word)]


def file_of(conf: Path, artifact: Artifact, profile: str) -> Path:
    """Return the path of the file that holds an artifact's choices, in the folder that it is in."""
    return (artifact.own or conf) / "tuned" / profile / artifact.paper / f"{artifact.name}.yaml"


def known(conf: Path, artifact: Artifact, profile: str) -> dict[Key, Tried]:
    """Read the scores by cell; {} if there are none.

    Raises:
        ConfigError: the file is not one that `text_of` writes.
    """
    path = file_of(conf, artifact, profile)
    if not path.is_file():
        return {}
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), OneEach) or {}
        return {
            (str(row), str(column)): _tried(kept)
            for row, cells in tree.items()
            for column, kept in cells.items()
        }
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected scores by row, column and point; {one_line(error)}. "
            f"{_again(artifact, profile)} anew=true"
        ) from error


def load(conf: Path, artifact: Artifact, profile: str) -> dict[Key, Choice]:
    """Read the choices by cell; {} if there are none.

    Raises:
        ConfigError: the file cannot be read, or its points are not the grid's.
    """
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in artifact.columns}
    choices = {}
    for (row, column), tried in known(conf, artifact, profile).items():
        where = f"{file_of(conf, artifact, profile)}: "
        if row not in rows or column not in columns:
            raise ConfigError(
                f"{where}{artifact.name} has no cell {row}, {column}. {_again(artifact, profile)}"
            )
        tried_by = points(rows[row], columns[column], artifact.profiles[profile])
        grid = [" ".join(point) for point in tried_by]
        if not set(tried.scores) <= set(grid):
            raise ConfigError(
                f"{where}the points of {row}, {column} are not those of the row's grid. "
                f"{_again(artifact, profile)}"
            )
        if len(tried.scores) == len(grid):
            best = max(grid, key=lambda words: tried.scores[words])
            chosen = tuple(best.split())
            choices[row, column] = Choice(chosen, tried.scores[best], tried.settings, tried.data)
    return choices


def check(
    choice: Choice, settings: str, key: Key, conf: Path, artifact: Artifact, profile: str
) -> None:
    """Check that a choice was made for the settings that its cell has now.

    Args:
        choice: the cell's.
        settings: hash of the cell's settings, as in `Tried`.
        key: the cell.
        conf: the folder of dpexp's own config groups.
        artifact: the cell's.
        profile: the name of the cell's.

    Raises:
        ConfigError: it was made for others, which may want another point.
    """
    if choice.settings != settings:
        row, column = key
        raise ConfigError(
            f"{file_of(conf, artifact, profile)}: the scores of {row}, {column} were found for "
            f"other settings than this cell has now. {_again(artifact, profile)} "
            f"{shlex.join([f'rows={row}', f'columns={column}'])}. If only names changed, write "
            f"'settings: {settings}' beside its seeds."
        )


def check_data(
    choice: Choice, here: str, key: Key, conf: Path, artifact: Artifact, profile: str
) -> None:
    """Check that a choice was made on the data that its cell's runs are about to read.

    Args:
        choice: the cell's.
        here: fingerprint of these data; "" if it is not known.
        key: the cell.
        conf: the folder of dpexp's own config groups.
        artifact: the cell's.
        profile: the name of the cell's.

    Raises:
        ConfigError: it was made on others, which may want another point, or hold test examples.
    """
    if choice.data and here and choice.data != here:
        row, column = key
        raise ConfigError(
            f"{file_of(conf, artifact, profile)}: the scores of {row}, {column} were found on "
            f"other data than are here. {_again(artifact, profile)} "
            f"{shlex.join([f'rows={row}', f'columns={column}'])}, or put the former data back."
        )


def _again(artifact: Artifact, profile: str) -> str:
    return f"Run {command(artifact, profile)}"


def command(artifact: Artifact, profile: str) -> str:
    """Return the command that tunes an artifact."""
    own = f" --config-dir {shlex.quote(str(artifact.own))}" if artifact.own else ""
    return f"{TUNE} {artifact.name} paper={artifact.paper} profile={profile}{own}"


def _tried(kept: Any) -> Tried:
    scores = {str(words): float(score) for words, score in kept["scores"].items()}
    if not scores or not all(map(math.isfinite, scores.values())):
        raise ValueError("a score is not a finite number")
    found_for = (str(kept.get(name, "")) for name in ("settings", "data"))
    return Tried(scores, tuple(map(int, kept["seeds"])), *found_for)


def text_of(artifact: Artifact, profile: str, tried: Mapping[Key, Tried]) -> str:
    """Return the text that `known` reads, rows and columns in the artifact's order."""
    tree: dict[str, dict[str, Any]] = {}
    for row in artifact.rows:
        for column in artifact.columns:
            if kept := tried.get((row.key, column.key)):
                scores = {words: round(score, 2) for words, score in kept.scores.items()}
                found_for = {"data": kept.data} if kept.data else {}
                cell: dict[str, Any] = {"settings": kept.settings, **found_for}
                cell |= {"seeds": list(kept.seeds), "scores": scores}
                tree.setdefault(row.key, {})[column.key] = cell
    body = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)
    return HEAD.format(command=command(artifact, profile)) + body


def notes(artifact: Artifact, profile: str, choices: Mapping[Key, Choice]) -> list[str]:
    """Return notes on the rows with a grid: the choices, their accuracy, the grid's size.

    What holds of several rows is said once, before them.
    """
    changes = artifact.profiles[profile]
    tried: dict[str, list[str]] = {}
    untried: dict[str, list[str]] = {}
    for row in artifact.rows:
        shown = [
            column
            for column in artifact.measured_columns
            if row.in_column(column).grid
            and column is artifact.run_column(row, column)
            and not changes.why_skipped(column)
            and not row.in_column(column).absent
        ]
        counts = {len(points(row, column, changes)) for column in shown}
        if not counts or changes.why_skipped(row):
            continue
        count = " or ".join(map(str, sorted(counts)))
        chosen = [
            f"{', '.join(changes.labels_of(column))}: {' '.join(choice.overrides)} "
            f"({choice.score:.1f} %)"
            for column in shown
            if (choice := choices.get((row.key, column.key)))
        ]
        rest = "; in the other columns one of them is run" if len(chosen) < len(shown) else ""
        name = ", ".join(changes.labels_of(row))
        if chosen:
            tried.setdefault(count, []).append(f"{name}: {'; '.join(chosen)}{rest}.")
        else:
            untried.setdefault(count, []).append(name)
    lines = []
    for count, rows in tried.items():
        how = HOW.format(count=count)
        lines += [f"{len(rows)} row{'s' * (len(rows) > 1)}: {how}.", *rows]
    for count, names in untried.items():
        whose = "of its grid" if artifact.paper == SUITES_OWN else "that the paper chose from"
        lines.append(f"{'; '.join(names)}: of {count} settings {whose}, one is run.")
    return lines
