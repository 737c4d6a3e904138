"""Build every table and figure of the papers, and one page that shows them side by side.

    python -m scripts.all                                    # profile=embedded
    python -m scripts.all profile=quick only=rgp/table*,lsg/*
    python -m scripts.all profile=paper plan=true            # hours an artifact, and in total

First the missing runs of all artifacts are done, each config once, several at a time. Artifacts
that measure time follow, one run at a time. Then every artifact is written, and last the page,
results/<profile>/index.html.

Its own words, each WORD=VALUE:

    paper=rgp,gep       these papers' artifacts; without it rgp, lsg, gep and compressive
    only=PAPER/NAME,... these artifacts; patterns such as rgp/table* work
    profile=embedded    embedded (no network, minutes), quick (real data, small), short (as
                        published, but few epochs) or paper
    plan=true           print the time that each artifact takes on this machine, estimated from
                        a few steps timed here; run and write nothing. With profile=paper or short
                        it is in hours, from a few examples and their FLOPs
    flops=40e12         with plan=true on a machine without a GPU: the FLOP/s that a GPU sustains,
                        to turn FLOPs into GPU-hours
    run=false           run nothing; write what there is
    seeds=0,1,2         in place of the profile's seeds; never fewer than a table has that is there
    workers=2           runs side by side; without it one a core, or one a machine with GPUs
    launcher=NAME       hand the missing runs to a Hydra launcher in place of workers
    --config-dir DIR    a folder of your own like conf; its papers come last. See docs/extend.md

Any other word is a Hydra override and goes to every cell, after the cell's own. One that changes
numbers wants results=FOLDER beside it, and none may contradict what a row or column says.
The page also shows artifacts that an earlier command wrote.
Exit code: 0 if all went well or data are missing; 1 if a run failed or its certificate does not
hold; 2 for a user's mistake; 130 if stopped by Ctrl-C, after writing what is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.cli import folders, groups, idle, many, plan, sent_tables
from dpexp.cli.arguments import (
    changing,
    exit_code_of,
    listed,
    may_mistake,
    require_apart,
    split,
)
from dpexp.cli.artifact import AS_PUBLISHED, NAMES, SHARED, exit_code, require_seeds
from dpexp.cli.cost_model import CostModel, examples
from dpexp.cli.launchers import check, launch
from dpexp.cli.suite import OWN, PAPERS, Suite, choose, lacks, natural
from dpexp.reporting import collect
from dpexp.reporting.collect import build, cells
from dpexp.reporting.render import exports, page
from dpexp.reporting.schema import spec
from dpexp.types import counted

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    papers: tuple[str, ...]
    only: tuple[str, ...] = ()
    profile: str = "embedded"
    is_plan: bool = False
    flops: float | None = None
    runs: bool = True
    seeds: tuple[int, ...] | None = None
    workers: int | None = None
    launcher: str = ""
    overrides: tuple[str, ...] = ()
    own: tuple[Path, ...] = ()


READERS = {
    **SHARED,
    **dict.fromkeys(("paper", "papers", "only"), listed),
}


def parse(words: Sequence[str]) -> Request:
    """Parse the command line; words that are not this script's own are overrides.

    Raises:
        ConfigError: for a value that can't be read.
    """
    own, overrides = split(words, READERS, {**NAMES, "paper": "papers"})
    asked = tuple(word for word in overrides if not folders.is_searchpath(word))
    theirs = tuple(folders.folders_of(overrides))
    papers = own.pop("papers", tuple(dict.fromkeys((*PAPERS, *spec.papers(theirs)))))
    return Request(papers, overrides=asked, own=theirs, **own)


def main(words: Sequence[str]) -> int:
    """Do what the command line asks; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    request = parse(words)
    began = time.perf_counter()
    if request.launcher:
        check(request.launcher, request.workers)
    artifacts = choose(request.papers, request.only, groups.CONF, request.own)
    mine = [a for a in artifacts if request.profile in a.profiles]
    if not mine and (lacking := list(filter(None, (lacks(a, request.profile) for a in artifacts)))):
        print(*lacking, sep="\n")
        return 0
    if not mine:
        raise spec.unknown("profile", request.profile, {p for a in artifacts for p in a.profiles})
    suite = Suite(mine, request.profile, request.overrides, request.seeds, request.own)
    if words := changing(request.overrides):
        configs = [config for artifact in mine for config in suite.configs(artifact)]
        idle.warn_of_all(configs, words)
    first, alone = suite.missing() if request.runs else ([], [])
    to_do = {job.run_id for job in (*first, *alone)}
    for artifact in mine:
        jobs = [outcome.job for outcome in suite.outcomes(artifact)]
        lines = cells.not_built(jobs, (*request.own, groups.CONF))
        lines += cells.untried(artifact, request.profile, [j for j in jobs if j.run_id in to_do])
        for line in lines:
            print(f"note: {artifact.paper} {artifact.name}: {line}", file=sys.stderr)
    if request.is_plan:
        print(_opening(suite, artifacts, sum(map(len, suite.missing()))), end="\n\n", flush=True)
        device = _device(request)
        is_published = request.profile in AS_PUBLISHED
        costs = CostModel(suite.results, suite.profile, device, has_stand_ins=is_published)
        wanted = suite.wanted()
        hours = plan.hours("Artifact", wanted, costs, device, request.flops)
        for line in hours if is_published else plan.times(wanted, costs, device):
            print(line, flush=True)
        return 0
    require_apart(request.overrides, suite.results)
    for artifact in mine:
        numbers = suite.results / request.profile / artifact.paper / f"{artifact.name}.csv"
        require_seeds(request.seeds, numbers)
    before = _written_before(request, suite)  # read now: a mistake in one costs no run
    print(_opening(suite, artifacts, len(first) + len(alone)), flush=True)
    stopped = _run(request, suite, first, alone)
    entries = [suite.entry(artifact) for artifact in mine]
    for artifact, entry in zip(mine, entries, strict=True):
        written = exports.write(entry.table, suite.results)
        print(written[0])
        sent_tables.send(artifact, request.profile, suite.configs(artifact), written, suite.results)
    entries += [before.entry(artifact) for artifact in before.artifacts]
    entries = _in_order(entries, spec.papers(request.own))
    print(page.write(entries, suite.results, request.profile))
    attempted = {job.run_id for job in (*first, *alone)}
    outcomes = {i.job.run_id: i for artifact in mine for i in suite.outcomes(artifact)}
    judged = [i for i in outcomes.values() if i.job.run_id in attempted
              or i.status == collect.REFUSED]  # fmt: skip
    print(f"done in {build.duration(time.perf_counter() - began)}")
    return 130 if stopped else exit_code(judged)


def _opening(suite: Suite, artifacts: Sequence[spec.Artifact], to_do: int) -> str:
    ids = {i.job.run_id: i.status for a in suite.artifacts for i in suite.outcomes(a)}
    done = sum(status == "done" for status in ids.values())
    without = [f"{a.paper}/{a.name}" for a in artifacts if a not in suite.artifacts]
    more = f"; without this profile: {', '.join(without)}" if without else ""
    return (
        f"{counted(len(suite.artifacts), 'artifact')}, profile {suite.profile}: {done} of "
        f"{counted(len(ids), 'run')} done, {to_do} to do{more}"
    )


def _run(
    request: Request, suite: Suite, first: Sequence[cells.Job], alone: Sequence[cells.Job]
) -> bool:
    """Run what is missing; return whether the user stopped it."""
    results = suite.results
    try:
        if request.launcher:
            for jobs in [first, *([job] for job in alone)]:
                if jobs:
                    build.launch_missing(
                        jobs, lambda some: launch(request.launcher, some, request.own), results
                    )
            return False
        parts = (_longest_first(first, suite), request.workers), (alone, 1)
        many.run(parts, results, may_mistake(request.overrides))
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return True
    return False


def _device(request: Request) -> torch.device:
    from dpexp.distributed import ranks

    chosen = [w.partition("=")[2] for w in request.overrides if w.startswith("device=")]
    return ranks.choose_device(chosen[-1] if chosen else "auto")


def _longest_first(jobs: Iterable[cells.Job], suite: Suite) -> list[cells.Job]:
    """Sort runs by their estimated time, longest first; those without an estimate come first."""
    costs = CostModel(suite.results, suite.profile, None)

    def key(job: cells.Job) -> tuple[bool, float]:
        seconds = costs.cost(job.config or {}).seconds
        size = examples(job.config or {})
        return (False, -size) if seconds is None else (True, -seconds)

    return sorted(jobs, key=key)


def _written_before(request: Request, suite: Suite) -> Suite:
    """Return the artifacts that only an earlier command wrote."""
    papers = dict.fromkeys((*PAPERS, OWN, *spec.papers(request.own)))
    every = choose(tuple(papers), (), groups.CONF, request.own)
    mine = {(a.paper, a.name) for a in suite.artifacts}
    rest = [
        a for a in every
        if (a.paper, a.name) not in mine and request.profile in a.profiles
        and (suite.results / request.profile / a.paper / f"{a.name}.md").is_file()
    ]  # fmt: skip
    neutral = tuple(w for w in request.overrides if not changing([w]))
    return Suite(rest, request.profile, neutral, own=request.own)


def _in_order(entries: Iterable[page.Entry], own: Sequence[str]) -> list[page.Entry]:
    papers = list(dict.fromkeys((*PAPERS, OWN, *own)))

    def place(entry: page.Entry) -> tuple[int, str, int]:
        artifact = entry.table.artifact
        return papers.index(artifact.paper), *natural(Path(artifact.name))

    return sorted(entries, key=place)
