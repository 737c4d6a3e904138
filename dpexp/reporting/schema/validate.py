"""Reject artifacts with inconsistent parts."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from dpexp.reporting.schema.artifact import (
    CURVES,
    MAPS,
    POINTS,
    REDUCTIONS,
    Artifact,
    Claim,
    Key,
    Row,
    unknown,
)
from dpexp.types import ConfigError

MOST_DECIMALS = 15
"""Digits that a float holds."""

PATTERN = ",*?[]"
"""Characters that rows= and columns= read as more than a key's own."""

OF_TABLES = {
    "seed": "seeds stand under 'seeds' of a profile",
    "profile": "a cell is run under the profile that the command line names",
    "results": "the command line says where results are kept",
    "hydra": "how Hydra runs is said on the command line",
}
"""Settings that no cell may have of its own, and where each is said."""


def validate(artifact: Artifact) -> None:
    """Check an artifact.

    Raises:
        ConfigError: it refers to missing rows or columns, a profile lacks a required entry, or an
            entry is used where it does not apply.
    """
    rows, columns = [r.key for r in artifact.rows], [c.key for c in artifact.columns]
    if artifact.figure is None:
        _validate_table(artifact)
    else:
        _validate_figure(artifact)
    columns += [artifact.average.key] if artifact.average else []
    for keys, kind in ((rows, "row"), (columns, "column")):
        if len(set(keys)) < len(keys):
            raise ConfigError(f"Expected every {kind} key once; got {keys}.")
        for key in keys:
            if key != key.strip() or not key or set(key) & set(PATTERN):
                raise ConfigError(
                    f"Expected a {kind} key that {kind}s= can name, without spaces around it or "
                    f"any of {PATTERN}; got '{key}'. Give it a short word, and that as label."
                )
    without_runs = {c.key for c in artifact.columns} - {c.key for c in artifact.measured_columns}
    valued = [key for key in columns if key not in without_runs]
    stated: list[tuple[Key, Claim | None]] = [(cell, None) for cell in artifact.published]
    for claim in artifact.claims:
        sides = [side for pair in _pairs(claim, artifact, valued) for side in pair]
        stated += [(side, claim) for side in sides if isinstance(side, tuple)]
    cells = {(r.key, c.key): r.in_column(c).absent for r in artifact.rows for c in artifact.columns}
    if artifact.average is not None:
        for row in artifact.rows:
            whys = (cells[row.key, c.key] for c in artifact.measured_columns)
            cells[row.key, artifact.average.key] = next(filter(None, whys), "")
    for (of_row, column), on_it in stated:
        if of_row not in rows:
            raise unknown("row", of_row, rows)
        if column not in valued:
            raise unknown("column", column, valued)
        if why := cells.get((of_row, column)):
            raise ConfigError(
                f"Expected no value or claim on {of_row}, {column}: {why.rstrip('. ')}. "
                f"{_remedy(on_it, column, valued)}"
            )
    _validate_average(artifact)
    for row in artifact.rows:
        _validate_metrics(artifact, row)
    for row in artifact.rows:
        for pattern in row.within:
            if not fnmatch.filter(valued, pattern):
                raise unknown(f"column within row {row.key}", pattern, valued)
        for column in valued:
            if len(patterns := row.patterns_of(column)) > 1:
                raise ConfigError(
                    f"Row {row.key}: expected one pattern within it for column {column}; got "
                    f"{' and '.join(patterns)}. Make the patterns narrower."
                )
        if len(row.labels) != len(artifact.row_head):
            raise ConfigError(f"Row {row.key}: expected labels for {artifact.row_head}.")
    _validate_crossings(artifact, rows)
    _validate_profiles(artifact, rows, columns)
    decimals: dict[str, int | None] = {"the file": artifact.decimals}
    decimals |= {row.key: row.decimals for row in artifact.rows}
    decimals |= {column.key: column.decimals for column in artifact.columns}
    for place, number in decimals.items():
        if number is not None and not 0 <= number <= MOST_DECIMALS:
            raise ConfigError(
                f"Expected decimals in [0, {MOST_DECIMALS}] in {place}; got {number}."
            )
    _validate_words(artifact)
    _validate_labels(artifact)


def _remedy(claim: Claim | None, column: str, columns: Sequence[str]) -> str:
    """Return how to take a column where a row has no cell out of a claim, or of what is published.

    Args:
        claim: on the cell; None if it has a published value.
        column: the cell's.
        columns: those that a claim is on if it names none.
    """
    if claim is None:
        return "Take its published value out."
    if claim.rows:
        return f"Take the row out of the rows of claim '{claim.says}'."
    kept = [key for key in claim.columns or columns if key != column]
    if not kept:
        return f"Take claim '{claim.says}' out."
    return f"Say which columns claim '{claim.says}' is on, as columns: [{', '.join(kept)}]."


def _pairs(claim: Claim, artifact: Artifact, columns: list[str]) -> list[tuple[Any, Any]]:
    """Return a claim's pairs, after checking that they can be compared."""
    if len(claim.above) != len(claim.below):
        raise ConfigError(f"Claim '{claim.says}': expected as many rows below as above.")
    if claim.reduce not in REDUCTIONS:
        raise unknown(f"reduction in claim '{claim.says}'", str(claim.reduce), REDUCTIONS)
    if artifact.kind == MAPS and claim.reduce == "last" and not claim.metric:
        raise ConfigError(
            f"Claim '{claim.says}': expected reduce: mean, min or max, or a metric, where cells "
            "are maps."
        )
    if claim.reduce != "last" and claim.metric:
        raise ConfigError(
            f"Claim '{claim.says}': expected no 'reduce' beside metric, which is one number."
        )
    if claim.reduce != "last" and artifact.kind not in (CURVES, MAPS):
        raise ConfigError(f"Claim '{claim.says}': expected no 'reduce'; a cell is a number.")
    if claim.rows and claim.columns:
        raise ConfigError(f"Claim '{claim.says}': expected columns or rows, not both.")
    for above, below in (*zip(claim.above, claim.below, strict=True), *claim.of):
        if not isinstance(above, str) and not isinstance(below, str):
            raise ConfigError(f"Claim '{claim.says}': expected a key on one side of {above}.")
        if above == below:
            raise ConfigError(f"Claim '{claim.says}': expected two to compare; got {above} twice.")
    pairs = claim.pairs(columns)
    average = artifact.average.key if artifact.average else None
    if claim.metric and any(isinstance(s, tuple) and s[1] == average for p in pairs for s in p):
        raise ConfigError(
            f"Claim '{claim.says}': expected no metric beside column {average}: an average is of "
            "the numbers that its cells show. Leave metric out, or name other columns."
        )
    return pairs


def _validate_profiles(artifact: Artifact, rows: list[str], columns: list[str]) -> None:
    for name, profile in artifact.profiles.items():
        if name != "paper" and not profile.scaled:
            raise ConfigError(f"Profile {name}: say under 'scaled' how the setting was cut down.")
        if not profile.seeds:
            raise ConfigError(f"Profile {name}: expected at least one seed.")
        if len({*profile.seeds}) < len(profile.seeds):  # one run would count as several
            raise ConfigError(f"Profile {name}: expected seeds that differ; got {profile.seeds}.")
        if not isinstance(profile.skip, Mapping):
            raise ConfigError(
                f"Expected a mapping for skip of profile {name}: patterns and reasons; "
                f"got {profile.skip!r}."
            )
        for pattern in profile.skip:
            if not fnmatch.filter([*rows, *columns], pattern):
                raise unknown(
                    f"row or column under skip in profile {name}", pattern, rows + columns
                )
            if not profile.skip[pattern].strip():
                raise ConfigError(
                    f"Expected a reason, in words, why profile {name} skips {pattern}; got none."
                )


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _validate_words(artifact: Artifact) -> None:
    """Reject overrides of a cell that would take each other's place, and words that meet none."""
    for row in artifact.rows:
        parts = [row.overrides, *(part.overrides for part in row.within.values())]
        _require_of_cells(chain.from_iterable(parts), f"row {row.key}")
    for column in artifact.columns:
        _require_of_cells(column.overrides, f"column {column.key}")
    for name, profile in artifact.profiles.items():
        put = [[new] if isinstance(new, str) else new or [] for new in profile.replace.values()]
        _require_of_cells(chain(profile.overrides, *put), f"profile {name}")
    of_columns = {_key(w) for c in artifact.measured_columns for w in c.overrides}
    words = [w for c in artifact.measured_columns for w in c.overrides]
    for row in artifact.rows:
        for key in row.regardless_of:
            if key not in of_columns:
                raise unknown(f"setting under regardless_of in row {row.key}", key, of_columns)
        words += [w for grid in row.grids() for axis in grid for p in axis for w in p.split()]
        for column in artifact.measured_columns:
            part = row.in_column(column)
            words += part.overrides
            of_column = [w for w in column.overrides if _key(w) not in row.regardless_of]
            where = f"Row {row.key}, column {column.key}"
            if not part.absent:
                _require_apart(part.overrides, of_column, where, "the column", "regardless_of")
            for name, profile in artifact.profiles.items():
                said = profile.said_of(row, column)
                of_profile = f"the overrides of profile {name}"
                if not part.absent:
                    _require_apart(said, profile.overrides, where, of_profile, "replace")
    labels = [label for row in artifact.rows for label in row.labels]
    labels += [label for column in artifact.columns for label in column.labels]
    for name, profile in artifact.profiles.items():
        for word in profile.replace:
            if word not in words:
                raise unknown(f"override under replace in profile {name}", word, set(words))
        for label in profile.relabel:
            if label not in labels:
                raise unknown(f"label under relabel in profile {name}", label, set(labels))


def _require_of_cells(words: Iterable[str], where: str) -> None:
    """Refuse overrides that say what is said for a whole table; a cell's would be lost."""
    for word in words:
        key = _key(word)
        if why := OF_TABLES.get(re.split(r"[./@]", key)[0] if key.startswith("hydra") else key):
            raise ConfigError(f"Expected no {key} in the overrides of {where}: {why}.")


def _require_apart(
    said: Sequence[str], later: Sequence[str], where: str, whose: str, remedy: str
) -> None:
    """Refuse that a later word silently takes the place of what a cell says."""
    settings = {_key(word): word for word in said}
    for word in later:
        before = settings.get(_key(word), word)
        if before != word:
            raise ConfigError(
                f"{where}: expected one to set {_key(word)}; {before} is said, and {word} by "
                f"{whose} would take its place. Take one out, or use {remedy}."
            )


EPSILON = re.compile(r"(?:ε|\beps(?:ilon)?)\s*=\s*(\d+(?:\.\d+)?)")
"""An epsilon in a label."""


def _validate_labels(artifact: Artifact) -> None:
    """Reject a cell whose labels say another epsilon than its overrides set."""
    for name, profile in artifact.profiles.items():
        for row in artifact.rows:
            for column in artifact.measured_columns:
                words = [*profile.said_of(row, column), *profile.overrides]
                pairs = [word.lstrip("+").partition("=") for word in words]
                set_to = [value for key, _, value in pairs if key in ("eps", "privacy.eps")]
                if not set_to or not _is_number(set_to[-1]):
                    continue
                for heading in (row, column):
                    for label in profile.labels_of(heading):
                        for said in EPSILON.findall(label):
                            if float(said) != float(set_to[-1]):
                                raise ConfigError(
                                    f"Profile {name}, row {row.key}, column {column.key}: expected "
                                    f"eps={said}, as the label '{label}' says; got "
                                    f"eps={set_to[-1]}. Set the label or the overrides."
                                )


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def _validate_table(artifact: Artifact) -> None:
    """Reject columns of words that have runs."""
    rows = [row.key for row in artifact.rows]
    for column in artifact.columns:
        if (column.words or column.bench) and (column.overrides or column.metric):
            raise ConfigError(
                f"Column {column.key}: a column of words has no runs; expected neither overrides "
                "nor metric."
            )
        if column.words and column.bench:
            raise ConfigError(f"Column {column.key}: expected words or bench; got both.")
        for key in column.words:
            if key not in rows:
                raise unknown(f"row in words of column {column.key}", key, rows)


def _validate_average(artifact: Artifact) -> None:
    """Reject an average over numbers of several kinds, such as an accuracy and a time."""
    for row in artifact.rows if artifact.average else ():
        of_row = [artifact.metric_of(row, column) for column in artifact.measured_columns]
        kinds = {
            "accuracy" if all("accuracy" in name for name in names) else " and ".join(names)
            for names in of_row
        }
        if len(kinds) > 1:
            raise ConfigError(
                f"Row {row.key}: expected numbers of one kind, of which column "
                f"{artifact.average.key if artifact.average else ''} is the average; got "
                f"{' and '.join(sorted(kinds))}. Leave 'average' out, or make two tables."
            )


def _validate_metrics(artifact: Artifact, row: Row) -> None:
    """Check that a grid is chosen from by accuracy; other numbers of the same run may stand beside.

    Raises:
        ConfigError: naming the row and the column.
    """
    parts = {column.key: row.in_column(column) for column in artifact.measured_columns}
    with_grid = [
        column
        for column in artifact.measured_columns
        if parts[column.key].grid and not parts[column.key].absent
    ]
    runs = {column.key: (parts[column.key], column.overrides) for column in with_grid}
    judged = [
        runs[column.key]
        for column in with_grid
        if all(each.startswith("test_accuracy") for each in artifact.metric_of(row, column))
    ]
    for column in with_grid:
        if runs[column.key] not in judged:
            raise ConfigError(
                f"Row {row.key}: expected an accuracy as metric of column {column.key}, or of "
                "another column with its overrides, since accuracy alone chooses from a 'grid'."
            )


def _validate_crossings(artifact: Artifact, rows: list[str]) -> None:
    """Reject a prediction of rows or panels that are not there, or from fewer than two points."""
    panels = {column.panel for column in artifact.columns}
    for crossing in artifact.crossings:
        where = f"crossing '{crossing.says}'"
        if artifact.kind != POINTS:
            raise ConfigError(f"Expected no {where}: it belongs to a figure of points.")
        for row in (crossing.above, crossing.below):
            if row not in rows:
                raise unknown(f"row in {where}", row, rows)
        if crossing.above == crossing.below:
            raise ConfigError(f"Expected two rows in {where}; got {crossing.above} twice.")
        for panel in crossing.panels:
            if panel not in panels:
                raise unknown(f"panel in {where}", panel, panels)
        places = [(c.panel, c.x) for c in artifact.columns if c.x is not None]
        if any(x <= 0 for panel, x in places if panel in crossing.panels):
            raise ConfigError(f"Expected x > 0 in {where}, for power laws.")
        if len(set(crossing.panels)) < len(crossing.panels):
            raise ConfigError(f"Expected three panels in {where}; got {crossing.panels}.")
        common = set.intersection(
            *({x for each, x in places if each == panel} for panel in crossing.panels)
        )
        if sum(x <= crossing.until for x in common) < 2:
            raise ConfigError(
                f"Expected at least two points with x <= {crossing.until:g} that all panels of "
                f"{where} have. Set a larger 'until'."
            )


def _validate_figure(artifact: Artifact) -> None:
    """Reject entries of a table or another kind of figure, and columns at the same place."""
    if artifact.average is not None:
        raise ConfigError("Expected no 'average' in a figure: it is a table's column.")
    for column in artifact.columns:
        for word in ("words", "bench"):
            if getattr(column, word):
                raise ConfigError(f"Column {column.key}: '{word}' belongs to a table.")
        if artifact.kind != POINTS and column.x is not None:
            raise ConfigError(f"Column {column.key}: x belongs to points; got {artifact.kind}.")
    if artifact.kind == MAPS:
        if artifact.published:
            raise ConfigError("Expected nothing published in a figure of maps: cells are pictures.")
        return
    places = [(column.panel, column.x) for column in artifact.columns]
    for column, place in zip(artifact.columns, places, strict=True):
        if places.count(place) > 1:
            what = "point a panel and x" if artifact.kind == POINTS else "column a panel"
            raise ConfigError(f"Column {column.key}: expected one {what}.")
