"""From an artifact and a profile to the runs it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.artifacts import tuned
from dpexp.artifacts.words import Artifact, Key, Line, Profile, unknown
from dpexp.types import setting_at

Compose = Callable[[list[str]], dict[str, Any]]
"""Turns Hydra overrides into a plain, resolved config; raises ConfigError for a wrong one."""


@dataclass(frozen=True)
class Job:
    """One run of one cell.

    Attributes:
        cell: the row's and the column's key.
        name: the cell as the reader sees it.
        metric: which numbers of the record it holds the mean of.
        seed: which of the profile's seeds.
        overrides: everything Hydra needs for it, the user's last.
        config: the composed config; None for a cell that can't be composed.
        run_id: names its run directory; "" without a config.
        not_built: what it needs that the suite doesn't have, such as "method=powersgd".
        contradicts: how the user's overrides contradict the cell's row or column; "" if they don't.
        choice: which point of its row's grid was chosen for it; None: none was.
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
    """Give what the profile changes; raises ConfigError if the artifact doesn't have it."""
    if name not in artifact.profiles:
        raise unknown(f"profile of {artifact.name}", name, artifact.profiles)
    return artifact.profiles[name]


def relabel(line: Line, profile: Profile) -> tuple[str, ...]:
    """Give a row's or column's labels as this profile words them."""
    return profile.labels_of(line)


def is_skipped(artifact: Artifact, profile: Profile, row: Line, column: Line) -> bool:
    """Tell whether the profile skips a cell; a level line stays with any point of its panel."""
    columns = artifact.panel_of(column) if row.regardless_of else (column,)
    return bool(profile.why_skipped(row)) or all(map(profile.why_skipped, columns))


def cell_name(row: Line, column: Line, profile: Profile) -> str:
    """Name a cell for the reader: the row's labels and the column's, as this profile words them.

    A level line has no x to tell.
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
) -> list[Job]:
    """List every run of an artifact, all cells of the first seed first.

    In that order an interrupted build leaves a full table of one seed and not a few rows of all.
    Cells that the profile skips have no run, nor have columns of words, nor a level line's cells
    after its first.

    Args:
        artifact: the artifact.
        profile: the profile's name.
        compose: see `Compose`.
        conf: the folder of config groups; an artifact's own `group=option` without a file there
            is "not built".
        user: overrides that come after the cell's own.
        seeds: in place of the profile's.

    Raises:
        ConfigError: from `compose`, or a profile that isn't there.
    """
    changes = profile_of(artifact, profile)
    compose = _once(compose)
    seeds = tuple(seeds if seeds is not None else changes.seeds)
    choices = tuned.load(conf, artifact, profile)
    cells = [
        _jobs(artifact, profile, row, column, seeds, compose, conf, user, choices)
        for row in artifact.rows
        for column in artifact.measured_columns
        if column is artifact.run_column(row, column)
        and not is_skipped(artifact, changes, row, column)
    ]
    return [job for of_one_seed in zip(*cells, strict=True) for job in of_one_seed]


def _once(compose: Compose) -> Compose:
    """Compose equal overrides once: several lines of a figure may show several series of a run."""
    composed: dict[tuple[str, ...], dict[str, Any]] = {}

    def compose_once(words: list[str]) -> dict[str, Any]:
        if tuple(words) not in composed:
            composed[tuple(words)] = compose(words)
        return composed[tuple(words)]

    return compose_once


def _jobs(
    artifact: Artifact,
    profile: str,
    row: Line,
    column: Line,
    seeds: Sequence[int],
    compose: Compose,
    conf: Path,
    user: Sequence[str],
    choices: Mapping[Key, tuned.Choice],
) -> list[Job]:
    """Give one cell's runs; composed once, since seeds differ in the config's `seed` alone."""
    changes = artifact.profiles[profile]
    key = (row.key, column.key)
    choice = choices.get(key)
    point = choice.overrides if choice else ()
    chosen = [*said_of(row, column, changes), *point]
    name = cell_name(row, column, changes)
    own = words_of(row, column, changes, point)
    metric = artifact.metric_of(row, column)
    words = [(f"profile={profile}", *own, f"seed={seed}", *user) for seed in seeds]
    absent = next((word for word in own if _is_absent(word, conf)), "")
    if absent:
        return [
            Job(key, name, metric, seed, overrides, not_built=absent, choice=choice)
            for seed, overrides in zip(seeds, words, strict=True)
        ]
    composed = compose(list(words[0]))
    contradicts = ""
    if any(re.split("[.=]", word.lstrip("+~"))[0] not in records.RESULT_NEUTRAL for word in user):
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


def said_of(row: Line, column: Line, profile: Profile) -> list[str]:
    """Give the overrides that a row and a column have, as this profile words them."""
    of_column = [w for w in column.overrides if w.partition("=")[0] not in row.regardless_of]
    replaced = [profile.in_place_of(word) for word in (*row.overrides, *of_column)]
    return [word for words in replaced for word in words]


def words_of(row: Line, column: Line, profile: Profile, point: Sequence[str] = ()) -> list[str]:
    """Give all overrides of a cell, those of a point of its row's grid last."""
    return [*said_of(row, column, profile), *profile.overrides, *point]


def choices_of(jobs: Iterable[Job]) -> dict[Key, tuned.Choice]:
    """Give what was chosen for the cells that these runs are of."""
    return {job.cell: job.choice for job in jobs if job.choice}


def _contradiction(
    name: str, chosen: Sequence[str], composed: dict[str, Any], without: dict[str, Any]
) -> str:
    """Say what overrides change of that which a cell's row and column say; "" if nothing.

    Args:
        name: the cell's.
        chosen: what row and column set.
        composed: the cell's config.
        without: the same without the user's overrides.
    """
    keys = [word.lstrip("+~").partition("=")[0] for word in chosen]
    fed = [f"privacy.{key}" for key in keys if key in without["privacy"]]
    for key in (*keys, *fed, "profile", "seed"):
        wanted, found = _at(without, key), _at(composed, key)
        if wanted != found:
            return (
                f"Expected {key} to stay {wanted}, as '{name}' says; the overrides make it "
                f"{found}. Leave that out, or use run.py."
            )
    return ""


def _at(config: dict[str, Any], key: str) -> Any:
    """Give a setting, of a group what was chosen; None where there is none."""
    value = setting_at(config, key)
    return value.get("name", sorted(value)) if isinstance(value, dict) else value


def _is_absent(override: str, conf: Path) -> bool:
    """Tell whether an override picks an option, or one of a list, that has no file."""
    group, _, options = override.partition("=")
    wanted = [option.strip() for option in options.strip("[]").split(",")]
    return (conf / group).is_dir() and not all(
        (conf / group / f"{option}.yaml").is_file() for option in wanted
    )
