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
    workers=2           methods audited side by side; without it one a core, or one on a GPU

A page of other settings is not written over.

Exit code: 0 if no lower bound exceeds the accounted epsilon, 1 if one does, 2 for a user error.
Each bound fails once in twenty by chance; if one exceeds by little, try another seed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp import records
from dpexp.cli import audit_page, idle, lookup, many, validate, verify
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
from dpexp.distributed.pool import Ended
from dpexp.types import ConfigError, require_word

if TYPE_CHECKING:
    from dpexp.attacks import trials as two_worlds

COMMON = ("task=digits", "profile=embedded")


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


@dataclass(frozen=True)
class Audit:
    """What one method's audits are to do.

    Attributes:
        method: its name.
        one_run: the config of its one run; None if it has none.
        game: the config of its distinguishing game.
        trials: in each world.
        steps: of each trial.
        confidence: of each bound, in (0, 1).
    """

    method: str
    one_run: dict[str, Any] | None
    game: dict[str, Any]
    trials: int
    steps: int
    confidence: float


def audit(asked: Audit) -> audit_page.Row:
    """Audit one method both ways, on one thread."""
    import torch

    from dpexp.attacks import distinguishing

    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    directory = None
    if asked.one_run is not None:
        directory = execute(asked.one_run)
        result = verify.require(directory).result
    played = _play(asked.game, asked.trials, asked.steps)
    assert played.epsilon is not None  # noise and clipping are on
    verdict = distinguishing.judge(
        played.without,
        played.within,
        delta=played.delta,
        confidence=asked.confidence,
        is_gaussian=played.is_gaussian,
    )
    return audit_page.Row(
        method=asked.method,
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
    from dpexp.attacks import trials as two_worlds
    from dpexp.distributed import ranks

    if "loop" in config:
        return two_worlds.of_votes(config, trials)
    config = two_worlds.small(config)
    parts = build_parts(config, ranks.choose_device(config["device"]))
    return two_worlds.of_steps(config, parts, trials, steps)


READERS = {
    "methods": listed,
    "trials": whole(4),
    "steps": whole(1),
    "name": file_name,
    "workers": whole(1),
}
"""Four trials are the least: two choose the threshold, and two are judged."""


@dataclass(frozen=True)
class Request:
    """The parsed command line.

    Attributes:
        subjects: the methods.
        name: of the files.
        trials, steps, workers: see the module.
        overrides: the other words.
    """

    subjects: tuple[Subject, ...]
    name: str
    overrides: tuple[str, ...]
    trials: int = 1000
    steps: int = 2
    workers: int | None = None


def parse(words: Sequence[str]) -> Request:
    """Parse the command line.

    Raises:
        ConfigError: for an invalid value.
    """
    own, overrides = split(words, READERS)
    every_subject = subjects_of(overrides)
    names = [subject.name for subject in every_subject]
    methods = own.pop("methods", names)
    for name in methods:
        require_word("methods", name, names)
    subjects = [subject for subject in every_subject if subject.name in methods]
    some = [] if subjects == every_subject else [subject.name for subject in subjects]
    name = own.pop("name", "") or file_name(f"name={'-'.join(['audit', *some])}")
    return Request(tuple(subjects), name, tuple(overrides), **own)


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
    request = parse(words)
    subjects, user = request.subjects, request.overrides
    config = compose([*COMMON, f"method={FIRST[0]}", "audit=one_run", *user])
    if not (config["privacy"]["noise"] and config["privacy"]["clip"]):
        raise ConfigError("Expected an audit with noise and clipping. Leave them on.")
    confidence = _confidence(config)
    runs = [of_one_run(subject, user) for subject in subjects]
    games = [of_distinguishing_game(subject, user) for subject in subjects]
    for asked_for in (*filter(None, runs), *games):
        validate.check_values(asked_for)
    idle.warn_of_all([*filter(None, runs), *games], user)
    stem = Path(config["results"]) / config["profile"]["name"] / request.name
    ids = {
        subject.name: None if run is None else records.run_id(run)
        for subject, run in zip(subjects, runs, strict=True)
    }
    above = audit_page.opening(request.trials, request.steps, confidence, changing(user))
    require_kept(audit_page.paths_of(stem)[0], audit_page.is_of(stem, above, ids))
    asked = [run for run in runs if run is not None]
    lookup.require_here(asked)
    from dpexp.attacks import trials as two_worlds

    undone = [run for run in asked if records.find(run["results"], run) is None]
    require_begin(
        [*undone, *map(two_worlds.small, games)]
    )  # also the last method's, before the first
    to_do = {
        subject.name: Audit(subject.name, run, game, request.trials, request.steps, confidence)
        for subject, run, game in zip(subjects, runs, games, strict=True)
    }
    found: dict[str, audit_page.Row] = {}

    def take(method: str, ended: Ended, say: many.Say) -> None:
        if ended.error is not None:
            raise many.named(method, ended.error)
        found[method] = ended.value
        say(audit_page.line(ended.value))

    many.each(audit, to_do, many.number(games, request.workers), take)
    rows = [found[method] for method in to_do]
    for path in audit_page.write(rows, above, stem):
        print(path)
    broken = [row.method for row in rows if row.broken]
    if broken:
        print(f"leakage above the accounted epsilon: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0
