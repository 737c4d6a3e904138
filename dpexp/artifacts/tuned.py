"""Which point of a row's grid each cell takes: chosen on held-out training examples, kept in conf.

A paper that prints the best of several settings is read so: `grid` in a row of an artifact lists
the settings, `python -m scripts.tune` tries each of them on training examples that it holds out,
and writes what it found to `conf/tuned/<profile>/<paper>/<name>.yaml`. A table takes the best from
there; a cell that is not there takes what its row and column say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from dpexp.artifacts.words import Artifact, Key, Line, Profile
from dpexp.types import ConfigError, one_line

TUNE = "python -m scripts.tune"
"""The command that writes these files."""


@dataclass(frozen=True)
class Choice:
    """What was chosen for a cell.

    Attributes:
        overrides: the words of the point that did best.
        scores: each point's words, joined by spaces -> its accuracy in % on the held-out examples,
            the mean over the seeds.
    """

    overrides: tuple[str, ...]
    scores: Mapping[str, float]


def points(row: Line, profile: Profile) -> list[tuple[str, ...]]:
    """List a row's grid as this profile words it, in order; [] of a row that has none."""
    if not row.grid:
        return []
    axes = [[_replaced(words.split(), profile) for words in axis] for axis in row.grid]
    return [tuple(word for words in point for word in words) for point in product(*axes)]


def _replaced(words: Sequence[str], profile: Profile) -> list[str]:
    return [new for word in words for new in profile.in_place_of(word)]


def file_of(conf: Path, artifact: Artifact, profile: str) -> Path:
    """Say where an artifact's choices are kept."""
    return conf / "tuned" / profile / artifact.paper / f"{artifact.name}.yaml"


def load(conf: Path, artifact: Artifact, profile: str) -> dict[Key, Choice]:
    """Read what was chosen; {} where nothing was.

    Raises:
        ConfigError: the file is not what `save` writes, or its points are not the grid's.
    """
    path = file_of(conf, artifact, profile)
    if not path.is_file():
        return {}
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key for column in artifact.columns}
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        choices = {
            (str(row), str(column)): _choice(kept)
            for row, cells in tree.items()
            for column, kept in cells.items()
        }
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected scores by row, column and point; {one_line(error)}."
        ) from error
    for (row, column), choice in choices.items():
        if row not in rows or column not in columns:
            raise ConfigError(f"{path}: {artifact.name} has no cell {row}, {column}.")
        wanted = {" ".join(p) for p in points(rows[row], artifact.profiles[profile])}
        if set(choice.scores) != wanted:
            raise ConfigError(
                f"{path}: the points of {row}, {column} are not those of the row's grid. "
                f"Run {TUNE} {artifact.name} paper={artifact.paper} profile={profile} again."
            )
    return choices


def _choice(kept: Any) -> Choice:
    scores = {str(words): float(score) for words, score in kept.items()}
    if not scores or not all(map(math.isfinite, scores.values())):
        raise ValueError("a score is not a finite number")
    best = max(scores, key=lambda words: scores[words])  # of equal ones the grid's first
    return Choice(tuple(best.split()), scores)


def text_of(choices: Mapping[Key, Mapping[str, float]], command: str) -> str:
    """Word the file that `load` reads.

    Args:
        choices: scores by cell and by point, points in the grid's order.
        command: what wrote it, a line for the reader.
    """
    tree: dict[str, dict[str, dict[str, float]]] = {}
    for (row, column), scores in choices.items():
        rounded = {words: round(score, 2) for words, score in scores.items()}
        tree.setdefault(row, {})[column] = rounded
    head = (
        f"# {command}\n"
        "# Accuracy in % on held-out training examples, by row, column and point of the grid. The\n"
        "# best is what the table runs. The choice is not covered by the privacy guarantee.\n"
    )
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def notes(artifact: Artifact, profile: str, choices: Mapping[Key, Choice]) -> list[str]:
    """Say for each row with a grid what was chosen, from how many, and how well it did."""
    changes = artifact.profiles[profile]
    lines = []
    for row in artifact.rows:
        count = len(points(row, changes))
        if not count or changes.why_skipped(row):
            continue
        told = [
            f"{_label(column, changes)}: {' '.join(choice.overrides)} "
            f"({max(choice.scores.values()):.1f} %)"
            for column in artifact.columns
            if (choice := choices.get((row.key, column.key)))
        ]
        how = (
            f"best of {count} settings on held-out training examples, which the privacy guarantee "
            f"does not cover: {'; '.join(told)}"
            if told
            else f"the paper chose from {count} settings, of which one was run"
        )
        lines.append(f"{_label(row, changes)}: {how}.")
    return lines


def _label(line: Line, profile: Profile) -> str:
    return ", ".join(profile.relabel.get(label, label) for label in line.labels)
