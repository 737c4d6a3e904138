"""Audit every private method: is the measured leakage within the accounted epsilon?

make audit [ARGS="..."]
python -m scripts.audit methods=dpsgd,rgp eps=4

Each method is audited twice, at 95 % confidence (audit.confidence). <results>/<profile>/audit.md
and audit.csv show the lower bounds on epsilon beside the accountant's epsilon:

    one run     a run of `audit=one_run` on the embedded profile: coins decide which canaries join,
                and the audit guesses the coins (not for PATE, which has no step gradients). A
                finished run is looked up, and its data and weights must be those here
    two worlds  a distinguishing game: many short runs of the same pipeline, on a small model, with
                and without one canary

Its own words, each WORD=VALUE; any other is a Hydra override for every run:

    methods=A,B         audit only these; the files are then audit-A-B.md and .csv
    trials=1000         trials in each world
    steps=2             steps of each trial
    name=NAME           of the files; audit if left out, or audit-A-B

A page of other settings is not written over.

Exit code: 0 if no lower bound exceeds the accounted epsilon, 1 if one does, 2 for a user error.
Each bound fails once in twenty by chance; if one exceeds by little, try another seed.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from dpexp import records
from dpexp.attacks import distinguishing
from dpexp.attacks import trials as two_worlds
from dpexp.cli import idle, lookup, verify
from dpexp.cli.arguments import (
    changing,
    exit_code_of,
    file_name,
    listed,
    require_kept,
    split,
    whole,
)
from dpexp.cli.audited import FIRST, SIZES, Subject, subjects_of
from dpexp.cli.composition import compose
from dpexp.cli.execution import execute
from dpexp.cli.parts import build_parts, require_begin
from dpexp.distributed import ranks
from dpexp.records.rounded import at_least, at_most
from dpexp.types import ConfigError, require_word

COMMON = ("task=digits", "profile=embedded")


@dataclass(frozen=True)
class Row:
    """The results of one method's audits; None if there was no such audit or bound.

    Attributes:
        method: its name.
        accounted: epsilon of the run; without a run, of a trial in the distinguishing game.
        one_run: lower bound from one run.
        one_run_curve: the same by the mechanism's trade-off curve.
        canaries, guesses, right: the counts behind these bounds.
        two_worlds: lower bound from two worlds.
        two_worlds_gaussian: the same by Gaussian differential privacy.
        accounted_worlds: epsilon of a trial.
        false_positives, false_negatives: the errors behind these bounds.
        judged: trials judged in each world.
        run: the one run's directory.
    """

    method: str
    accounted: float
    one_run: float | None
    one_run_curve: float | None
    canaries: int | None
    guesses: int | None
    right: int | None
    two_worlds: float
    two_worlds_gaussian: float | None
    accounted_worlds: float
    false_positives: int
    false_negatives: int
    judged: int
    run: str | None

    @property
    def broken(self) -> bool:
        """Whether a lower bound exceeds the accounted epsilon."""
        pairs = [(self.one_run, self.accounted), (self.one_run_curve, self.accounted)]
        pairs += [(self.two_worlds, self.accounted_worlds)]
        pairs += [(self.two_worlds_gaussian, self.accounted_worlds)]
        return any(lower is not None and lower > most for lower, most in pairs)


def _words(subject: Subject) -> list[str]:
    """Return the words common to a method's runs."""
    return [*COMMON, f"seed={subject.seed}", *subject.method]


def of_one_run(subject: Subject, user: Sequence[str]) -> dict[str, Any] | None:
    """Return the config of a method's one run; None if it has none."""
    if subject.one_run is None:
        return None
    return compose([*_words(subject), "audit=one_run", *subject.one_run, *user])


def of_distinguishing_game(subject: Subject, user: Sequence[str]) -> dict[str, Any]:
    """Return the config of the small run for a method's distinguishing game."""
    overrides = [word for word in user if not word.startswith("audit")]
    has_own = any(word.partition("=")[0] == "model" for word in user)  # then it is no cnn
    words = [*_words(subject), *(() if has_own else subject.small)]
    settings = compose([*words, *overrides])["method"]
    smaller = [f"method.{key}={value}" for key, value in SIZES.items() if key in settings]
    return compose([*words, *smaller, *overrides])


def audit(
    subject: Subject,
    one_run: dict[str, Any] | None,
    game: dict[str, Any],
    trials: int,
    steps: int,
    confidence: float,
) -> Row:
    """Audit one method both ways.

    Args:
        subject: the method.
        one_run: the config of its one run; None if it has none.
        game: the config of its distinguishing game.
        trials: in each world.
        steps: of each trial.
        confidence: of each bound, in (0, 1).
    """
    result: dict[str, Any] = {}
    directory = None
    if one_run is not None:
        directory = execute(one_run)
        result = verify.require(directory).result
    played = _play(game, trials, steps)
    assert played.epsilon is not None  # noise and clipping are on
    verdict = distinguishing.judge(
        played.without,
        played.within,
        delta=played.delta,
        confidence=confidence,
        is_gaussian=played.is_gaussian,
    )
    return Row(
        method=subject.name,
        accounted=result.get("audit_epsilon_accounted", played.epsilon),
        one_run=result.get("audit_epsilon_lower"),
        one_run_curve=result.get("audit_epsilon_lower_curve"),
        canaries=result.get("audit_canaries"),
        guesses=result.get("audit_guesses"),
        right=result.get("audit_right"),
        two_worlds=verdict.epsilon_lower,
        two_worlds_gaussian=verdict.epsilon_lower_gaussian,
        accounted_worlds=played.epsilon,
        false_positives=int(verdict.errors.false_positives),
        false_negatives=int(verdict.errors.false_negatives),
        judged=verdict.errors.without,
        run=directory.name if directory else None,
    )


def _play(config: dict[str, Any], trials: int, steps: int) -> two_worlds.Trials:
    if "loop" in config:
        return two_worlds.of_votes(config, trials)
    config = two_worlds.small(config)
    parts = build_parts(config, ranks.choose_device(config["device"]))
    return two_worlds.of_steps(config, parts, trials, steps)


COLUMNS = {
    "method": "method",
    "accounted": "ε accounted",
    "one_run": "one run: ε ≥",
    "one_run_curve": "by its trade-off curve",
    "canaries": "canaries",
    "guesses": "guesses",
    "right": "right",
    "accounted_worlds": "ε accounted, a trial",
    "two_worlds": "two worlds: ε ≥",
    "two_worlds_gaussian": "as Gaussian",
    "false_positives": "false positives",
    "false_negatives": "false negatives",
    "judged": "trials judged, each world",
    "run": "run",
}


def opening(trials: int, steps: int, confidence: float, user: Sequence[str]) -> list[str]:
    """Return the lines above the table: what was done, and with which overrides."""
    return [
        "# What leaks, beside what is accounted for",
        "",
        f"Lower bounds on ε at {100 * confidence:g}% confidence each, δ the task's (0 under "
        "Laplace noise). One run: canaries in a run of the embedded profile. Two worlds: "
        f"{trials} trials of {steps} steps with one canary, as many without, on a small model, the "
        "canary in every step; half of them choose the threshold, the other half are judged. The "
        "bounds by trade-off curve suppose the mechanism to be of the kind it says; the others "
        "suppose nothing. compressive_unmeasured is without Psi; PATE has no one run.",
        *(["", f"Overrides: {', '.join(sorted(user))}."] if user else []),
        "",
        "| " + " | ".join(COLUMNS.values()) + " |",
        "| --- |" + " ---: |" * (len(COLUMNS) - 1),
    ]


def markdown(rows: Sequence[Row], above: Sequence[str]) -> str:
    """Return the page: the table below the lines of `opening`."""
    lines = [*above]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row, key) for key in COLUMNS) + " |")
    broken = [row.method for row in rows if row.broken]
    lines += ["", f"Above what is accounted for: {', '.join(broken) or 'none'}.", ""]
    return "\n".join(lines)


def _line(row: Row) -> str:
    shown = {key: _cell(row, key) for key in COLUMNS}
    return (
        f"{shown['method']}: of ε {shown['accounted']}, one run shows {shown['one_run']} "
        f"({shown['one_run_curve']} by its curve), two worlds {shown['two_worlds']} "
        f"({shown['two_worlds_gaussian']} as Gaussian)"
    )


def _cell(row: Row, key: str) -> str:
    """Return a cell's text: what bounds epsilon from above is rounded up, from below down."""
    value = getattr(row, key)
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return at_most(value, 2) if key.startswith("accounted") else at_least(value, 2)


def write(rows: Sequence[Row], above: Sequence[str], stem: Path) -> list[Path]:
    """Write the table as .md and .csv; return their paths.

    Args:
        rows: one per method.
        above: the lines above the table.
        stem: path without suffix.
    """
    records.make_folder(stem.parent)
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    paths = _paths(stem)
    contents = markdown(rows, above), text.getvalue()
    for path, content in zip(paths, contents, strict=True):
        records.write_atomically(path, content)
    return paths


def _paths(stem: Path) -> list[Path]:
    return [stem.with_name(f"{stem.name}.{kind}") for kind in ("md", "csv")]


def _is_of(stem: Path, above: Sequence[str], runs: Mapping[str, str | None]) -> bool:
    """Return whether files that are there are of the same game, and of no other runs than these.

    Args:
        stem: path without suffix.
        above: the lines above the table of the page that is to be written.
        runs: id of every method's one run.
    """
    page, table = _paths(stem)
    try:
        lines = page.read_text(encoding="utf-8").splitlines()
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {row["method"]: row["run"] or None for row in rows}
    except (OSError, ValueError, KeyError):
        return False
    return lines[: len(above)] == [*above] and found.items() <= runs.items()


READERS = {"methods": listed, "trials": whole(4), "steps": whole(1), "name": file_name}
"""Four trials are the least: two choose the threshold, and two are judged."""


def parse(words: Sequence[str]) -> tuple[list[Subject], int, int, str, list[str]]:
    """Return the methods, trials, steps, files' name and overrides of the command line.

    Raises:
        ConfigError: for an invalid value.
    """
    own, overrides = split(words, READERS)
    every_subject = subjects_of(overrides)
    names = [subject.name for subject in every_subject]
    for name in own.get("methods", ()):
        require_word("methods", name, names)
    subjects = [subject for subject in every_subject if subject.name in own.get("methods", names)]
    some = [] if subjects == every_subject else [subject.name for subject in subjects]
    stem = own.get("name") or file_name(f"name={'-'.join(['audit', *some])}")
    return subjects, own.get("trials", 1000), own.get("steps", 2), stem, overrides


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2, is_quiet=True)


def _confidence(config: Mapping[str, Any]) -> float:
    found = config["audit"]["confidence"]
    if not (isinstance(found, float) and 0 < found < 1):
        raise ConfigError(
            f"Expected audit.confidence in (0, 1); got {found}. Set audit.confidence."
        )
    return found


def _main(words: Sequence[str]) -> int:
    torch.set_num_threads(1)
    subjects, trials, steps, name, user = parse(words)
    config = compose([*COMMON, f"method={FIRST[0]}", "audit=one_run", *user])
    if not (config["privacy"]["noise"] and config["privacy"]["clip"]):
        raise ConfigError("Expected an audit with noise and clipping. Leave them on.")
    confidence = _confidence(config)
    runs = [of_one_run(subject, user) for subject in subjects]
    games = [of_distinguishing_game(subject, user) for subject in subjects]
    idle.warn_of_all([*filter(None, runs), *games], user)
    stem = Path(config["results"]) / config["profile"]["name"] / name
    ids = {
        subject.name: None if run is None else records.run_id(run)
        for subject, run in zip(subjects, runs, strict=True)
    }
    above = opening(trials, steps, confidence, changing(user))
    require_kept(_paths(stem)[0], _is_of(stem, above, ids))
    asked = [run for run in runs if run is not None]
    lookup.require_here(asked)
    undone = [run for run in asked if records.find(run["results"], run) is None]
    require_begin(
        [*undone, *map(two_worlds.small, games)]
    )  # also the last method's, before the first
    rows = []
    for subject, one_run, game in zip(subjects, runs, games, strict=True):
        rows.append(audit(subject, one_run, game, trials, steps, confidence))
        print(_line(rows[-1]), flush=True)
    for path in write(rows, above, stem):
        print(path)
    broken = [row.method for row in rows if row.broken]
    if broken:
        print(f"leakage above the accounted epsilon: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0
