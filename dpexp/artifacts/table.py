"""A table ready to be written: an artifact, a profile and every cell's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.artifacts.cells import profile_of, relabel
from dpexp.artifacts.collect import Value
from dpexp.artifacts.spec import Artifact, Key, Line, Profile


@dataclass(frozen=True)
class Table:
    """Everything the writers need.

    Attributes:
        artifact, profile: what is shown and under which profile.
        values: every cell.
        settings: lines on what was really run (task, model, examples, batch, epochs).
        overridden: the user's overrides that change the numbers.
    """

    artifact: Artifact
    profile: str
    values: Mapping[Key, Value]
    settings: Sequence[str] = ()
    overridden: Sequence[str] = ()

    @property
    def changes(self) -> Profile:
        """Give what the profile changes."""
        return profile_of(self.artifact, self.profile)

    def grid(self) -> list[tuple[Line, list[tuple[Line, Value]]]]:
        """Give the rows, each with its cells in order."""
        columns = self.artifact.columns
        return [
            (row, [(column, self.values[row.key, column.key]) for column in columns])
            for row in self.artifact.rows
        ]

    def name(self, row: Line, column: Line) -> str:
        """Give a cell's name as this profile words it."""
        return ", ".join([*relabel(row, self.changes), *relabel(column, self.changes)])

    def head(self) -> list[str]:
        """Give the heading of every column of the printed table."""
        columns = (" ".join(relabel(c, self.changes)) for c in self.artifact.columns)
        return [*self.artifact.row_head, *columns]

    def deviations(self) -> list[str]:
        """List what certificates admit, each once, in the order of the cells."""
        return list(dict.fromkeys(w for value in self.values.values() for w in value.deviations))


def settings(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was really run, one line per distinct setting, from the composed configs."""
    lines = (
        f"{c['task']['name']}: {c['model']['name']}, {c['task']['dataset_size']:,} training "
        f"examples, batch {c['batch_size']:,}, {c['epochs']:g} epochs"
        for c in configs
    )
    return list(dict.fromkeys(lines))
