"""The runs that an artifact needs under a profile."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.reporting.schema import tuned
from dpexp.reporting.schema.artifact import Artifact, Column, Key, Profile, Row, unknown
from dpexp.types import ConfigError, counted, setting_at

Compose = Callable[[list[str]], dict[str, Any]]
"""Composes Hydra overrides to a plain, resolved config; raises ConfigError for an invalid one."""


MOST_NAMED = 5
"""Cells that a line names (ours)."""


@dataclass(frozen=True)
class Job:
    """One run of one cell.

    Attributes:
        cell: the row's and the column's key.
        name: of the cell, for readers.
        metric: names of the record's numbers whose mean the cell holds.
        seed: one of the profile's seeds.
        overrides: all Hydra overrides, the user's last.
        config: the composed config; None if the cell can't be composed.
        run_id: name of its run directory; "" without a config.
        not_built: override with an option that the suite lacks, such as "method=powersgd".
        contradicts: how the user's overrides contradict the cell's row or column; "" if they don't.
        choice: the chosen point of the row's grid; None if none was chosen.
    """

    cell: Key
    name: str
    metric: tuple[str, ...]
    seed: int
    overrides: tuple[str, ...]
    config: dict[str, Any] | None = None
    run_id: str = ""
    not_built: str = ""
    contradicts: str = ""
    choice: tuned.Choice | None = None


def profile_of(artifact: Artifact, name: str) -> Profile:
    """Return an artifact's profile.

    Raises:
        ConfigError: if it has none of that name.
    """
    if name not in artifact.profiles:
        raise unknown(f"profile of {artifact.name}", name, artifact.profiles)
    return artifact.profiles[name]


def relabel(heading: Row | Column, profile: Profile) -> tuple[str, ...]:
    """Return the labels of a row or column under a profile."""
    return profile.labels_of(heading)


def is_skipped(artifact: Artifact, profile: Profile, row: Row, column: Column) -> bool:
    """Return whether there is no such cell, or a profile skips it.

    A level line needs only one point of its panel.
    """
    columns = artifact.panel_of(column) if row.regardless_of else (column,)
    why = profile.why_skipped(row) or row.in_column(column).absent
    return bool(why) or all(map(profile.why_skipped, columns))


def cell_name(row: Row, column: Column, profile: Profile) -> str:
    """Return a cell's name for readers: the labels of its row and column under a profile.

    The name of a level line has no x.
    """
    words = relabel(column, profile)
    is_level = row.regardless_of and column.x is not None
    return ", ".join([*relabel(row, profile), *(words[:-1] if is_level else words)])


def expand(
    artifact: Artifact,
    profile: str,
    compose: Compose,
    conf: Path,
    user: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    own: Sequence[Path] = (),
) -> list[Job]:
    """Return every run of an artifact, all cells of the first seed first.

    In this order an interrupted build leaves a full table of one seed, not a few rows of all seeds.
    Cells that the profile skips, columns of words, and a level line's cells after its first have no
    run.

    Args:
        artifact: the artifact.
        profile: the profile's name.
        compose: see `Compose`.
        conf: the folder of config groups; a cell whose `group=option` has no file there, nor in
            `own`, is "not built".
        user: overrides to apply after the cell's.
        seeds: replace the profile's.
        own: further folders like `conf`, the user's.

    Raises:
        ConfigError: from `compose`, or if there is no such profile.
    """
    changes = profile_of(artifact, profile)
    compose = _once(compose)
    seeds = tuple(seeds if seeds is not None else changes.seeds)
    choices = tuned.load(conf, artifact, profile)
    cells = [
        _jobs(artifact, profile, row, column, seeds, compose, (conf, *own), user, choices)
        for row in artifact.rows
        for column in artifact.measured_columns
        if column is artifact.run_column(row, column)
        and not is_skipped(artifact, changes, row, column)
    ]
    return [job for of_one_seed in zip(*cells, strict=True) for job in of_one_seed]


def _once(compose: Compose) -> Compose:
    """Compose equal overrides once: a figure's rows may show several series of one run."""
    composed: dict[tuple[str, ...], dict[str, Any]] = {}

    def compose_once(words: list[str]) -> dict[str, Any]:
        if tuple(words) not in composed:
            composed[tuple(words)] = compose(words)
        return composed[tuple(words)]

    return compose_once


def _jobs(
    artifact: Artifact,
    profile: str,
    row: Row,
    column: Column,
    seeds: Sequence[int],
    compose: Compose,
    folders: Sequence[Path],
    user: Sequence[str],
    choices: Mapping[Key, tuned.Choice],
) -> list[Job]:
    """Return one cell's runs, composed once: seeds differ only in the config's `seed`."""
    changes = artifact.profiles[profile]
    key = (row.key, column.key)
    choice = choices.get(key)
    point = choice.overrides if choice else ()
    chosen = [*said_of(row, column, changes), *point]
    name = cell_name(row, column, changes)
    of_cell = words_of(row, column, changes, point)
    metric = artifact.metric_of(row, column)
    neutral = [word for word in user if records.is_neutral(word)]
    words = [(f"profile={profile}", *of_cell, f"seed={seed}", *user) for seed in seeds]
    absent = next((word for word in of_cell if _is_absent(word, folders)), "")
    if absent:
        return [
            Job(key, name, metric, seed, overrides, not_built=absent, choice=choice)
            for seed, overrides in zip(seeds, words, strict=True)
        ]
    composed = compose(list(words[0]))
    if choice:
        settings = settings_of(row, column, changes, [f"profile={profile}", *neutral], compose)
        tuned.check(choice, settings, key, folders[0], artifact, profile)
    contradicts = ""
    if len(neutral) < len(user):
        without = compose([*words[0][: len(words[0]) - len(user)]])
        contradicts = _contradiction(name, chosen, composed, without)
    configs = [{**composed, "seed": seed} for seed in seeds]
    return [
        Job(
            key,
            name,
            metric,
            seed,
            overrides,
            config,
            records.run_id(config),
            "",
            contradicts,
            choice,
        )
        for seed, overrides, config in zip(seeds, words, configs, strict=True)
    ]


def said_of(row: Row, column: Column, profile: Profile) -> list[str]:
    """Return the overrides of a row and a column under a profile."""
    return profile.said_of(row, column)


def words_of(row: Row, column: Column, profile: Profile, point: Sequence[str] = ()) -> list[str]:
    """Return all overrides of a cell; those of a point of its row's grid come last."""
    return [*said_of(row, column, profile), *profile.overrides, *point]


def settings_of(
    row: Row, column: Column, profile: Profile, context: Sequence[str], compose: Compose
) -> str:
    """Return the hash of a cell's settings without a point of its grid, 12 hexadecimal digits.

    It is that of the run which they give, or of the words where no run goes without a point.

    Args:
        row: the cell's.
        column: the cell's.
        profile: the cell's.
        context: words beside the cell's that it takes to compose it: the profile, and whatever
            does not change results.
        compose: see `Compose`.
    """
    words = words_of(row, column, profile)
    try:
        return records.run_id(compose([*context, *words, "seed=0"]))
    except ConfigError:
        return records.run_id({"words": words})


def choices_of(jobs: Iterable[Job]) -> dict[Key, tuned.Choice]:
    """Return the chosen grid points of these runs' cells."""
    return {job.cell: job.choice for job in jobs if job.choice}


def _contradiction(
    name: str, chosen: Sequence[str], composed: dict[str, Any], without: dict[str, Any]
) -> str:
    """Return how the user's overrides contradict a cell's row and column; "" if they don't.

    Args:
        name: the cell's name.
        chosen: overrides of row and column.
        composed: the cell's config.
        without: the same without the user's overrides.
    """
    keys = [word.lstrip("+~").partition("=")[0] for word in chosen]
    derived = [f"privacy.{key}" for key in keys if key in without["privacy"]]
    for key in (*keys, *derived, "profile", "seed"):
        expected, actual = _setting(without, key), _setting(composed, key)
        if expected != actual:
            return (
                f"Expected {key} to stay {expected}, as in '{name}'; the overrides set it to "
                f"{actual}. Remove that override, or use run.py."
            )
    if "eps" in keys or "privacy.eps" in keys:
        before, after = without["privacy"], composed["privacy"]
        for key in ("noise", "clip"):
            if before["noise"] and before["clip"] and not after[key]:
                return (
                    f"Expected the eps of '{name}' to hold; with {key}=false there is none. Remove "
                    "that override, or use run.py."
                )
    return ""


def _setting(config: dict[str, Any], key: str) -> Any:
    """Return a setting's value, or the chosen option of a group; None if there is none."""
    value = setting_at(config, key)
    return value.get("name", sorted(value)) if isinstance(value, dict) else value


def not_built(jobs: Iterable[Job], folders: Sequence[Path]) -> list[str]:
    """Return a line for each override of these jobs that chooses what has no file.

    Args:
        jobs: of an artifact.
        folders: of config groups, the user's own and the suite's.
    """
    lines = []
    for word, count in Counter(job.not_built for job in jobs if job.not_built).items():
        group, _, options = word.partition("=")
        known = {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
        wanted = [option.strip() for option in options.strip("[]").split(",")]
        absent = next(option for option in wanted if option not in known)
        near = difflib.get_close_matches(absent, sorted(known), n=1)
        hint = f". Did you mean {near[0]}?" if near else ""
        lines.append(f"{counted(count, 'run')} not built, as there is no {group}={absent}{hint}")
    return lines


def untried(artifact: Artifact, profile: str, jobs: Iterable[Job]) -> list[str]:
    """Return a line for the cells of these jobs whose grid has not been tried; else none.

    Args:
        artifact: the jobs'.
        profile: its name.
        jobs: that are to run.
    """
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in artifact.columns}
    names = dict[str, None]()
    for job in jobs:
        row, column = job.cell
        if job.choice is None and rows[row].in_column(columns[column]).grid:
            names[job.name] = None
    if not names:
        return []
    rest = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [
        f"{counted(len(names), 'cell')} with a grid of settings that are not all tried yet, and so "
        f"with the row's own: {'; '.join([*names][:MOST_NAMED])}{rest}. "
        f"{tuned.command(artifact, profile)} tries them on held-out examples, before the runs"
    ]


def _is_absent(override: str, folders: Sequence[Path]) -> bool:
    """Return whether an override chooses an option, or one of a list, that has no file."""
    group, _, options = override.partition("=")
    wanted = [option.strip() for option in options.strip("[]").split(",")]
    within = [folder / group for folder in folders if (folder / group).is_dir()]
    return bool(within) and not all(
        any((place / f"{option}.yaml").is_file() for place in within) for option in wanted
    )
