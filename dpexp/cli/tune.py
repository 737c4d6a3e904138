"""Choose among the settings that a paper tried, on held-out training examples.

    python -m scripts.tune table3 paper=gep
    python -m scripts.tune table2 paper=rgp profile=quick rows=rgp columns=cifar10 seeds=0,1

Tries every point of the `grid` of a row of the artifact, in each of its cells, and saves the scores
in conf/tuned. The table uses the best point. Each run trains on four fifths of the training set,
with batches of four fifths, and is evaluated on the rest. So noise weighs a quarter more than in
the table. The test set is never used. The privacy guarantee does not cover the choice
(docs/privacy/index.md). Its own words:

    paper=rgp profile=embedded   as in scripts.artifact
    rows=A,B columns=C           only these cells, and others that show the same run
    seeds=0                      a point's score is the mean over these seeds, and 0 if one of them
                                 diverged; if left out, a cell that has scores of other seeds keeps
                                 them
    anew=true                    try these cells again though they have scores
    workers=2                    runs side by side; without it one a core, or one on a GPU
    --config-dir FOLDER          a folder of your own like conf; scores of its artifacts go into
                                 its own tuned

Other words are Hydra overrides that do not change results, such as data_root. Points with scores
are skipped, unless the cell's settings or its data changed since, and an interrupted one goes on
from its last checkpoint. Several processes may run at once. Exit code: 0, also where data are
missing (it says so and continues with the other cells); 2 for a user error.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import lock_descriptor

from dpexp import records
from dpexp.cli import errors, folders, groups, lookup, many, search, validate
from dpexp.cli.arguments import changing, exit_code_of, split, truth
from dpexp.cli.artifact import Request, parse
from dpexp.cli.composition import compose
from dpexp.cli.picking import is_picked, none_tuned
from dpexp.cli.suite import lacks
from dpexp.distributed.pool import Ended
from dpexp.reporting.collect import build, cells
from dpexp.reporting.schema import spec, tuned
from dpexp.reporting.schema.artifact import Artifact, Column, Key, Profile, Row
from dpexp.training import progress
from dpexp.types import ConfigError, MissingData, one_line

Attempt = Callable[[Sequence[str]], float]
"""Trains one run with these overrides; returns the metric on the held-out examples."""

Words = tuple[str, ...]

Tuned = tuple[Words, tuple[Words, ...]]
"""A cell's words without a point, and its points."""

OTHERS = ("plan", "run", "launcher", "flops")
"""Words of scripts.artifact that do not apply here."""


@dataclass(eq=False)
class Cell:
    """A cell that is tuned, with those that show the same run.

    Attributes:
        name: for readers.
        keys: of the cells.
        points: of the grid, in order.
        tried: what is known of them; another process may add to it.
        is_anew: whether scores in the file do not count.
        lacks_data: whether its data were missing when a run began.
        values: of the points that lack some seeds, by seed.
    """

    name: str
    keys: Sequence[Key]
    points: Sequence[Words]
    tried: tuned.Tried
    is_anew: bool
    lacks_data: bool = False
    values: dict[Words, dict[int, float]] = field(default_factory=dict)

    def lacks(self, point: Words) -> bool:
        """Return whether a point has no score."""
        return " ".join(point) not in self.tried.scores

    def join(self, known: Mapping[Key, tuned.Tried]) -> None:
        """Take over the scores that another process has found meanwhile for the same."""
        for key in () if self.is_anew else self.keys:
            other = known.get(key)
            if other and replace(other, scores={}) == replace(self.tried, scores={}):
                self._add({**other.scores, **self.tried.scores})

    def scored(self, trial: Trial, value: float) -> str:
        """Take a run's score; return the line on its point once that has all seeds, or ""."""
        point = trial.point
        given = self.values.setdefault(point, {})
        given[trial.seed] = value
        if len(given) < len(self.tried.seeds):
            return ""
        # A mean of the other seeds would flatter a point at which some diverge.
        diverged = sum(not math.isfinite(each) for each in given.values())
        score = 0.0 if diverged else statistics.fmean(given.values())
        self._add({" ".join(point): score})
        why = f"diverged ({diverged} of {len(given)})" if diverged else ""
        return " ".join((self.name, *point, *filter(None, (f"{score:.1f}", why))))

    def _add(self, scores: Mapping[str, float]) -> None:
        """Add scores, in the grid's order: runs end in any."""
        added = {**self.tried.scores, **scores}
        of_grid = [" ".join(point) for point in self.points]
        ordered = {words: added[words] for words in of_grid if words in added}
        self.tried = replace(self.tried, scores=ordered)


class Trial(NamedTuple):
    """One run of a point."""

    cell: Cell
    point: Words
    seed: int


def attempt_of_accuracy(words: Sequence[str]) -> float:
    """Train one run as `search.attempt` does; return its accuracy on the held-out examples.

    Raises:
        ConfigError: for a metric of which less is better: the largest score is chosen.
    """
    config, parts = search.prepared(compose(words))
    if search.is_error(metric := parts.task.metric):
        raise ConfigError(
            f"Expected a grid in rows that are judged by an accuracy, of which the largest is the "
            f"best; {config['task']['name']} is judged by {metric}. Leave the grid out."
        )
    return search.score(config, parts)


def main(words: Sequence[str], attempt: Attempt = attempt_of_accuracy, called: str = "") -> int:
    """Run the command line; return the exit code.

    Args:
        words: of the command line.
        attempt: trains a run.
        called: how the program is called in its help; "" keeps the scripts' names.
    """
    doc = __doc__ or ""
    if called:
        doc = doc.replace(tuned.TUNE, called).replace("scripts.artifact", "dpexp table")
    return exit_code_of(partial(_main, attempt), words, doc, of_records=2, is_quiet=True)


def _main(attempt: Attempt, words: Sequence[str]) -> int:
    for word in words:
        if (key := word.partition("=")[0]) in OTHERS:
            raise ConfigError(f"Expected no {key}: it is a word of scripts.artifact. See --help.")
    named = [word for word in words if "=" not in word]
    own, rest = split([word for word in words if "=" in word], {"anew": truth})
    request = parse([*named, *rest])
    if wrong := changing(request.overrides):
        near = errors.nearest(wrong[0].partition("=")[0], errors.own_words)
        got = " ".join(wrong)
        raise ConfigError(f"Expected overrides that do not change results; got {got}.{near}")
    artifact = spec.load(groups.CONF, request.paper, request.artifact, request.own)
    if lacking := lacks(artifact, request.profile):
        print(lacking)
        return 0
    profile = cells.profile_of(artifact, request.profile)
    context = (*folders.searchpath(request.own), f"profile={request.profile}", *request.overrides)
    is_anew = bool(own.get("anew"))
    together = _together(request, artifact, profile)
    path = tuned.file_of(groups.CONF, artifact, request.profile)
    _drop_stale(path, artifact, request.profile, reset=is_anew)

    def known() -> dict[Key, tuned.Tried]:
        return tuned.known(groups.CONF, artifact, request.profile)

    def keep(cell: Cell) -> None:
        with _locked(path):
            found = known()
            cell.join(found)
            kept = {**found, **dict.fromkeys(cell.keys, cell.tried)}
            build.save(path, tuned.text_of(artifact, request.profile, kept))

    trials: dict[Trial, Words] = {}
    configs: list[Mapping[str, Any]] = []
    for (of_cell, points), places in together.items():
        name = cells.cell_name(*places[0], profile)
        try:
            data = lookup.examples_here(compose([*context, *of_cell, *points[0]]))
        except MissingData as error:
            _say_missing(name, error)
            continue
        keys = [(row.key, column.key) for row, column in places]
        found, settings = known(), cells.settings_of(*places[0], profile, context, compose)
        old = next((found[key] for key in keys if key in found), None)
        if other := _others(old, settings, data):
            print(f"{name}: its scores are of other {other}, and are dropped.", flush=True)
            old = None
        seeds = request.seeds or (old.seeds if old else (0,))
        scores = old.scores if old and old.seeds == seeds and not is_anew else {}
        cell = Cell(name, keys, points, tuned.Tried(scores, seeds, settings, data), is_anew)
        if scores and any(found.get(key) != old for key in keys):
            keep(cell)
        for point in filter(cell.lacks, points):
            config = compose([*context, *of_cell, *point])
            validate.check_values(config)  # the last one's mistake costs no run of the first
            for seed in seeds:
                trials[Trial(cell, point, seed)] = (*context, *of_cell, *point, f"seed={seed}")
                configs.append(config)

    def is_wanted(trial: Trial) -> bool:
        trial.cell.join(known())
        return trial.cell.lacks(trial.point) and not trial.cell.lacks_data

    def take(trial: Trial, ended: Ended, say: many.Say) -> None:
        cell = trial.cell
        if isinstance(ended.error, MissingData):
            if not cell.lacks_data:
                _say_missing(cell.name, ended.error)
            cell.lacks_data = True
        elif ended.error is not None:
            raise many.named(" ".join((cell.name, *trial.point)), ended.error)
        elif line := cell.scored(trial, ended.value):
            say(line)
            keep(cell)

    if trials:
        many.each(attempt, trials, many.number(configs, request.workers), take, is_wanted)
    print(path)
    return 0


def _together(
    request: Request, artifact: Artifact, profile: Profile
) -> dict[Tuned, list[tuple[Row, Column]]]:
    """Return the cells that are asked for; those that show one run and have one grid are one.

    Raises:
        ConfigError: if none of them has a grid and runs.
    """
    together: dict[Tuned, list[tuple[Row, Column]]] = {}
    picked = set()
    for row in artifact.rows:
        for column in artifact.measured_columns:
            shown = column is artifact.run_column(row, column)
            has_grid = bool(row.in_column(column).grid)
            if not has_grid or not shown or cells.is_skipped(artifact, profile, row, column):
                continue
            points = tuple(tuned.points(row, column, profile))
            of_cell = (tuple(cells.words_of(row, column, profile)), points)
            together.setdefault(of_cell, []).append((row, column))
            if is_picked(request, artifact, (row.key, column.key)):
                picked.add(of_cell)
    if not picked:
        raise none_tuned(request, artifact)
    return {of_cell: places for of_cell, places in together.items() if of_cell in picked}


def _say_missing(name: str, error: MissingData) -> None:
    progress.say(f"{name}: no data: {one_line(error)}")


def _others(old: tuned.Tried | None, settings: str, data: str) -> str:
    """Return what the scores that are there were found for in place of these; "" if for these."""
    if old is None:
        return ""
    if old.settings != settings:
        return "settings"
    return "data" if old.data and data and old.data != data else ""


def _drop_stale(path: Path, artifact: Artifact, profile: str, reset: bool) -> None:
    """Remove scores of points outside the grids; with `reset`, all of an unreadable file."""
    with _locked(path):
        try:
            kept = tuned.known(groups.CONF, artifact, profile)
        except ConfigError:
            if not reset:
                raise
            kept = {}
        grids = {
            (row.key, column.key): {
                " ".join(point) for point in tuned.points(row, column, artifact.profiles[profile])
            }
            for row in artifact.rows
            for column in artifact.columns
        }
        fits = {
            cell: tried
            for cell, tried in kept.items()
            if set(tried.scores) <= grids.get(cell, set())
        }
        if path.is_file() and (fits != kept or not kept):
            build.save(path, tuned.text_of(artifact, profile, fits))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file's folder, so that processes do not overwrite each other's scores."""
    records.make_folder(path.parent)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        lock_descriptor(folder)
        yield
    finally:
        os.close(folder)
