"""Choose among the settings that a paper chose from, on training examples held out for it.

    python -m scripts.tune table3 paper=gep
    python -m scripts.tune table2 paper=rgp profile=quick rows=rgp columns=cifar10 seeds=0,1

Tries every point of the `grid` that a row of the artifact has, in each of its cells, and keeps the
scores in conf/tuned, from where the table takes the best. Each run trains on four fifths of the
training set and is judged on the rest (see scripts.search); the test set is never looked at, and
the choice is not covered by the privacy guarantee (docs/privacy.md). Its own words:

    paper=rgp profile=embedded   as of scripts.artifact
    rows=A,B columns=C           these cells only; the others keep what they have
    seeds=0                      a point's score is the mean over these seeds
    anew=true                    try again what has scores already

Other words are Hydra overrides that change no number, such as data_root. Exit code: 0; 2 for a
mistake in what was asked.
"""

from __future__ import annotations

import functools
import logging
import statistics
import sys
from collections.abc import Callable, Sequence

import run
from dpexp.artifacts import build, cells, spec, tuned
from dpexp.types import ConfigError
from scripts import search
from scripts.artifact import is_picked, parse
from scripts.words import changing, exit_code_of, split, truth

Attempt = Callable[[Sequence[str]], float]
"""Trains once by these overrides; gives the metric on what was held out."""


def main(words: Sequence[str], attempt: Attempt = search.attempt) -> int:
    """Do what the command line asks; give the exit code."""
    return exit_code_of(functools.partial(_main, attempt), words, __doc__, of_records=2)


def _main(attempt: Attempt, words: Sequence[str]) -> int:
    logging.getLogger("dpexp").setLevel(logging.WARNING)
    named = [word for word in words if "=" not in word]
    own, rest = split([word for word in words if "=" in word], {"anew": truth})
    request = parse([*named, *rest])
    if wrong := changing(request.overrides):
        raise ConfigError(f"Expected overrides that change no number; got {' '.join(wrong)}.")
    artifact = spec.load(run.CONF, request.paper, request.artifact)
    profile = cells.profile_of(artifact, request.profile)
    path = tuned.file_of(run.CONF, artifact, request.profile)
    known = {} if own.get("anew") else tuned.load(run.CONF, artifact, request.profile)
    scores = {cell: choice.scores for cell, choice in known.items()}
    todo = [
        (row, column)
        for row in artifact.rows
        for column in artifact.measured_columns
        if row.grid
        and column is artifact.run_column(row, column)
        and not cells.is_skipped(artifact, profile, row, column)
        and is_picked(request, artifact, (row.key, column.key))
    ]
    if not todo:
        raise ConfigError(f"{artifact.paper} {artifact.name} has no such row with a 'grid'.")
    command = f"{tuned.TUNE} {artifact.name} paper={artifact.paper} profile={request.profile}"
    if request.seeds:
        command += f" seeds={','.join(map(str, request.seeds))}"
    once = functools.cache(attempt)  # several cells may show one run
    for row, column in todo:
        if (row.key, column.key) in scores:
            continue
        said = [f"profile={request.profile}", *cells.said_of(row, column, profile)]
        said += profile.overrides
        found = {}
        for point in tuned.points(row, profile):
            given = [
                once((*said, *point, f"seed={seed}", *request.overrides))
                for seed in request.seeds or (0,)
            ]
            found[" ".join(point)] = statistics.fmean(given)
            print(cells.cell_name(row, column, profile), *point, f"{found[' '.join(point)]:.1f}",
                  flush=True)  # fmt: skip
        scores[row.key, column.key] = found
        build.save(path, tuned.text_of(scores, command))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
