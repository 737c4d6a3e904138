"""Which cells rows= and columns= pick, and what to say where none of these has a run or a grid."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Protocol

from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from dpexp.reporting.schema.artifact import Artifact, Column, Key, Row
from dpexp.types import ConfigError

MOST_NAMED = 3
"""Reasons in a line."""


class Asked(Protocol):
    """What a command line asks for."""

    @property
    def rows(self) -> tuple[str, ...]:
        """Patterns of rows; none means all."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Patterns of columns; none means all."""

    @property
    def profile(self) -> str:
        """The profile's name."""


def is_picked(request: Asked, artifact: Artifact, cell: Key) -> bool:
    """Return whether rows= and columns= pick this cell.

    Any column of a panel picks its level lines.

    Raises:
        ConfigError: if a pattern picks nothing.
    """
    row = next(line for line in artifact.rows if line.key == cell[0])
    column = next(line for line in artifact.columns if line.key == cell[1])
    columns = artifact.panel_of(column) if row.regardless_of else (column,)
    axes = (((row,), request.rows, artifact.rows, "row"),
            (columns, request.columns, artifact.columns, "column"))  # fmt: skip
    for _, patterns, lines, kind in axes:
        keys = [line.key for line in lines]
        for pattern in patterns:
            if not fnmatch.filter(keys, pattern):
                raise spec.unknown(f"{kind} of {artifact.name}", pattern, keys)
    return all(
        not patterns or any(fnmatch.fnmatchcase(line.key, p) for p in patterns for line in asked)
        for asked, patterns, _, _ in axes
    )


def none_run(request: Asked, artifact: Artifact) -> ConfigError:
    """Return the refusal of a request that picks no cell with a run.

    Raises:
        ConfigError: if a pattern picks nothing.
    """
    return _refusal(request, artifact, _asked(request, artifact))


def none_tuned(request: Asked, artifact: Artifact) -> ConfigError:
    """Return the refusal of a request that picks no cell with a run and a grid.

    Raises:
        ConfigError: if a pattern picks nothing.
    """
    asked = _asked(request, artifact)
    keys = [row.key for row in artifact.rows if row.grids()]
    if not keys:
        return ConfigError(
            f"Expected a table or figure with a 'grid' in one of its rows; {artifact.paper} "
            f"{artifact.name} has none. Name another one, or give a row of yours a grid."
        )
    with_grid = [(row, column) for row, column in asked if row.in_column(column).grid]
    if with_grid or all(_why_none(artifact, request.profile, *at) for at in asked):
        return _refusal(request, artifact, with_grid or asked)
    return ConfigError(
        f"Expected rows= and columns= to pick cells with a 'grid'; these have none. Rows of "
        f"{artifact.name} with one: {', '.join(keys)}."
    )


def _asked(request: Asked, artifact: Artifact) -> list[tuple[Row, Column]]:
    return [
        (row, column)
        for row in artifact.rows
        for column in artifact.columns
        if is_picked(request, artifact, (row.key, column.key))
    ]


def _refusal(
    request: Asked, artifact: Artifact, asked: Sequence[tuple[Row, Column]]
) -> ConfigError:
    """Say why none of the cells has a run, and which profile runs one of them."""
    reasons = [*dict.fromkeys(_why_none(artifact, request.profile, *at) for at in asked)]
    rest = f"; and {len(reasons) - MOST_NAMED} more" if len(reasons) > MOST_NAMED else ""
    others = [
        f"profile={name}"
        for name in artifact.profiles
        if not all(_why_none(artifact, name, *at) for at in asked)
    ]
    advice = f"Set {' or '.join(others)}, or pick other cells." if others else "Pick other cells."
    return ConfigError(
        "Expected rows= and columns= to pick cells that have runs; these have none: "
        f"{'; '.join(reasons[:MOST_NAMED])}{rest}. {advice}"
    )


def _why_none(artifact: Artifact, profile: str, row: Row, column: Column) -> str:
    """Return why a cell has no run under a profile; "" if it has one."""
    changes = artifact.profiles[profile]
    if column not in artifact.measured_columns:
        return f"column {column.key} holds no runs"
    if not cells.is_skipped(artifact, changes, row, column):
        return ""
    if why := row.in_column(column).absent:
        return f"there is no {row.key} in {column.key} ({_short(why)})"
    kind, heading = ("row", row) if changes.why_skipped(row) else ("column", column)
    return f"profile {profile} skips {kind} {heading.key} ({_short(changes.why_skipped(heading))})"


def _short(reason: object) -> str:
    return " ".join(str(reason).split()).rstrip(".")
