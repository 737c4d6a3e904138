"""What a sweep (-m) ends with: a table of its jobs on the screen, and the same as CSV.

Each job notes what came of it in a file of its own, whatever launcher and sweeper there are. So the
table also shows the jobs of a sweep that was interrupted.

Under Optuna's sweeper a job is a trial: it trains on four fifths of the training set and returns
the score on the rest, so that the test set chooses nothing.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from dpexp.cli.choosing import cost_of_runs, cost_of_trials
from dpexp.cli.command_line import beside
from dpexp.cli.composition import plain
from dpexp.cli.named_folders import require_named
from dpexp.cli.quoting import quoted
from dpexp.records.rounded import at_most
from dpexp.reporting.text import clean
from dpexp.types import ConfigError

OPTIONS = {"-m", "--multirun"}
FOLDER = Path("multirun")
"""Where Hydra and its launchers leave notes too (conf/config.yaml)."""

SCORE, METRIC, SECONDS, WHY, LAST = "score", "metric", "seconds", "why", "folder"
EPSILON, DEVIATIONS = "epsilon", "deviations"
WIDEST = 50
"""Characters of a failure's message in the table on the screen; the CSV has all."""


class Notes(Callback):
    """Writes what came of a job.

    Args:
        folder: of the sweep.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Write one job's file."""
        value = job_return._return_value  # `return_value` raises what a failed job raised
        note: dict[str, Any] = {"words": list(job_return.overrides or ())}
        if job_return.status == JobStatus.COMPLETED:
            note["value"] = value
        else:
            reason = str(value.args[0] if isinstance(value, Exception) and value.args else value)
            note[WHY] = reason.removeprefix(f"{' '.join(note['words'])}: ")
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{config.hydra.job.num:05d}.json"
        path.write_text(json.dumps(note), encoding="utf-8")


@contextmanager
def ending_with_table(words: list[str]) -> Iterator[list[str]]:
    """Yield the command line to run; after a sweep, show its table whatever ended it.

    Args:
        words: of the command line.
    """
    if not OPTIONS & set(words) or os.environ.get("RANK", "0") != "0":  # one rank shows it
        yield words
        return
    folder = (FOLDER / f"{datetime.now():%Y-%m-%d-%H%M%S-%f}").absolute()
    place = "+hydra.callbacks.table"
    target = f"{place}._target_={Notes.__module__}.{Notes.__qualname__}"
    try:
        yield beside(words, [target, f"{place}.folder={quoted(str(folder))}"])
    finally:
        show(folder)


def show(folder: Path) -> None:
    """Print a sweep's table on stderr, and write it as CSV beside its notes."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        return
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    rows = table(notes)
    names = list(dict.fromkeys(name for row in rows for name in row))
    written = folder / "table.csv"
    with written.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    for path in paths:
        path.unlink()
    marks = footnotes(rows)
    notes_below = [f"[{number}] {words}" for words, number in marks.items()]
    shown = aligned([_on_screen(row, marks) for row in rows])
    print("", *shown, *notes_below, written, sep="\n", file=sys.stderr)
    if (private := sum(bool(row.get(EPSILON)) for row in rows)) > 1:
        print(cost_of_runs(private), file=sys.stderr)
    if trials := sum(isinstance(note.get("value"), float) for note in notes):
        print(cost_of_trials(trials), file=sys.stderr)


def table(notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every job: what varied, then score, epsilon, seconds and folder.

    A run that deviates from what its epsilon claims says how.

    The score is named by its metric if all jobs have the same one.
    """
    settings = [dict(word.partition("=")[::2] for word in note["words"]) for note in notes]
    keys = dict.fromkeys(key for some in settings for key in some)
    varied = [key for key in keys if len({some.get(key) for some in settings}) > 1]
    outcomes = [_outcome(note) for note in notes]
    metrics = {one[METRIC] for one in outcomes if METRIC in one}
    name = SCORE
    if len(metrics) == 1:
        name = metrics.pop()
        for one in outcomes:
            one.pop(METRIC, None)
    return [
        {**{key: some.get(key, "") for key in varied}, name: one.pop(SCORE), **one}
        for some, one in zip(settings, outcomes, strict=True)
    ]


def _outcome(note: Mapping[str, Any]) -> dict[str, Any]:
    from dpexp import records

    if WHY in note:
        return {SCORE: "failed", WHY: note[WHY]}
    if isinstance(note["value"], float):
        return {SCORE: f"{note['value']:.4g}"}
    directory = note["value"]
    record = records.read(directory)
    if record is None:  # on another machine's disk, or removed since
        return {SCORE: "no record", LAST: directory}
    result = record.result
    score, spent = result[result["metric"]], record.metrics[-1].get("epsilon")
    deviations = {DEVIATIONS: clean("; ".join(record.privacy.get("deviations") or []))}
    return {
        METRIC: result["metric"],
        SCORE: "no number" if score is None else f"{score:.4g}",
        EPSILON: "" if spent is None else at_most(spent),
        **{name: words for name, words in deviations.items() if words},
        SECONDS: result["wall_s"],
        LAST: directory,
    }


def footnotes(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how runs that state an epsilon deviate from its claim, each with a number from 1."""
    said = dict.fromkeys(row[DEVIATIONS] for row in rows if row.get(DEVIATIONS) and row[EPSILON])
    return {words: number for number, words in enumerate(said, 1)}


def _on_screen(row: Mapping[str, Any], marks: Mapping[str, int]) -> dict[str, str]:
    """Return a row as people read it.

    Its time is in minutes and seconds, a failure's reason stands in the folder's place, and a
    deviation is a mark behind the epsilon.
    """
    from dpexp.cli.lookup import duration

    names = {SECONDS: "time", WHY: LAST}
    shown = {names.get(name, name): str(row[name]) for name in row if name != DEVIATIONS}
    if (words := row.get(DEVIATIONS, "")) in marks:
        shown[EPSILON] += f" [{marks[words]}]"
    if SECONDS in row:
        shown["time"] = duration(row[SECONDS])
    if len(row.get(WHY, "")) > WIDEST:
        shown[LAST] = f"{row[WHY][: WIDEST - 3]}..."
    return shown


def aligned(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return lines of a table whose columns stand below each other."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != LAST]
    names += [LAST] * any(LAST in row for row in rows)
    texts = [names, *([row.get(name, "") for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in texts
    ]


def is_search() -> bool:
    """Return whether this job is a trial of Optuna's sweeper."""
    return "optuna" in str(HydraConfig.get().sweeper.get("_target_")).lower()


def score(cfg: DictConfig, words: Sequence[str]) -> float:
    """Return a trial's score on held-out training examples."""
    config = plain(cfg, words)
    require_named(config)

    from dpexp.cli import search

    config, parts = search.prepared(config)
    _require_direction(parts.task.metric)
    found = search.score(config, parts)
    print(f"{' '.join(words)}: {found:.4g} on held-out training examples", file=sys.stderr)
    return found


def _require_direction(metric: str) -> None:
    """Refuse to search for the worst score; Optuna minimises unless it is told otherwise."""
    from dpexp.cli.search import is_error

    wanted = "minimize" if is_error(metric) else "maximize"
    given = str(HydraConfig.get().sweeper.direction).rpartition(".")[2]
    if given != wanted:
        raise ConfigError(
            f"Expected hydra.sweeper.direction={wanted}, since trials are judged by {metric}; got "
            f"{given}. Set hydra.sweeper.direction={wanted}."
        )
