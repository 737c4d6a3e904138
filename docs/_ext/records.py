"""Runs and tables that stand in results, as the site's pages quote them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpexp.cli.groups import CONF
from dpexp.cli.suite import OWN, PAPERS, natural
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec

RESULTS = CONF.parent / "results"
METHOD = re.compile(r"^method:\n(?:  .*\n)*?  name: (\w+)", re.M)


@dataclass(frozen=True)
class Built:
    """A table or figure that was made under a profile.

    Attributes:
        artifact: what it is.
        profile: under which it was made.
        lines: of its CSV.
    """

    artifact: spec.Artifact
    profile: str
    lines: tuple[dict[str, str], ...]

    @property
    def path(self) -> Path:
        """Its page of Markdown."""
        return RESULTS / self.profile / self.artifact.paper / f"{self.artifact.name}.md"

    @property
    def title(self) -> str:
        """Paper, number and profile."""
        stem = self.artifact.name.rstrip("0123456789")
        number = self.artifact.name.removeprefix(stem)
        return f"{self.artifact.paper} {stem.capitalize()} {number}, `{self.profile}`"

    def row_labels(self, key: str) -> str:
        """Return a row's labels as one."""
        profile = cells.profile_of(self.artifact, self.profile)
        (row,) = (row for row in self.artifact.rows if row.key == key)
        return ", ".join(label for label in cells.relabel(row, profile) if label)

    def column_labels(self, key: str) -> str:
        """Return a column's labels as one."""
        profile = cells.profile_of(self.artifact, self.profile)
        columns = [*self.artifact.columns, self.artifact.average]
        found = [column for column in columns if column and column.key == key]
        return ", ".join(label for label in cells.relabel(found[0], profile) if label)

    def decimals(self, line: dict[str, str]) -> int:
        """Return how many decimals a line's values are printed with."""
        rows = {row.key: row for row in self.artifact.rows}
        columns = {column.key: column for column in self.artifact.columns}
        if line["column"] not in columns:
            return self.artifact.decimals
        return self.artifact.decimals_of(rows[line["row"]], columns[line["column"]])


def profiles() -> list[str]:
    """Return the profiles that have results; real data first."""
    found = {path.parent.name for path in RESULTS.glob("*/index.html")}
    return sorted(found, key=("paper", "short", "quick", "embedded").index)


@cache
def artifacts() -> tuple[spec.Artifact, ...]:
    """Return every table and figure of conf, in order."""
    found = [
        spec.load(CONF, paper, path.stem)
        for paper in (*PAPERS, OWN)
        for path in sorted((CONF / "artifact" / paper).glob("*.yaml"), key=natural)
    ]
    return tuple(found)


@cache
def built() -> tuple[Built, ...]:
    """Return what was made of them."""
    found = []
    for profile in profiles():
        for artifact in artifacts():
            path = RESULTS / profile / artifact.paper / f"{artifact.name}.csv"
            if path.is_file() and profile in artifact.profiles:
                with path.open(encoding="utf-8", newline="") as file:
                    found.append(Built(artifact, profile, tuple(csv.DictReader(file))))
    return tuple(found)


@cache
def method_of(profile: str, run: str) -> str:
    """Return the name of a run's method; "" if the record is not there."""
    path = RESULTS / profile / "runs" / run / "config.yaml"
    found = METHOD.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else ""


def methods_of(table: Built) -> set[str]:
    """Return the methods of a table's or figure's runs."""
    runs = re.findall(r"runs/([0-9a-f]{12})/", table.path.read_text(encoding="utf-8"))
    return {method_of(table.profile, run) for run in runs} - {""}


def lines_of(table: Built, method: str) -> list[dict[str, str]]:
    """Return the lines of a table's CSV that are a method's own runs."""
    found = []
    for line in table.lines:
        runs = line.get("runs", "").split()
        if runs and method_of(table.profile, runs[0]) == method:
            found.append(line)
    return found


def certificates(method: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the certificates of a method's runs that tables show, in the tables' order."""
    for table in built():
        for line in lines_of(table, method) if table.artifact.figure is None else ():
            for run in line["runs"].split():
                path = RESULTS / table.profile / "runs" / run / "privacy.json"
                if path.is_file():
                    yield path, json.loads(path.read_text(encoding="utf-8"))
