"""Build a table or figure of a paper: run what is missing, write it beside the published values.

    python -m scripts.artifact table3                        # paper=rgp profile=embedded
    python -m scripts.artifact table3 profile=paper plan=true
    python -m scripts.artifact table2 rows=rgp,dpsgd seeds=0 epochs=3 results=mine
    python -m scripts.artifact figure4 paper=lsg profile=quick columns=sst2-*
    python -m scripts.artifact table3 profile=paper launcher=submitit_local

Its own words, each WORD=VALUE:

    paper=rgp           which paper's: a folder of conf/artifact
    profile=embedded    embedded (no network, minutes), quick (real data, small), short (as
                        published, but few epochs) or paper
    plan=true           print each cell's cost on this machine; run and write nothing. With
                        profile=paper or short it is estimated from a few examples and their FLOPs
    flops=40e12         with plan=true without a GPU: the FLOP/s that one sustains, for GPU-hours
    run=false           run nothing; write the table or figure from the runs that are there
    rows=A,B columns=C  run these cells only; the others are shown if they are there. Patterns
                        such as cifar10-* work. A figure's rows are its lines, its columns its
                        points
    seeds=0,1,2         in place of the profile's seeds; never fewer than a table has that is there
    workers=2           runs side by side; without it one a core, or one a machine with GPUs
    launcher=NAME       hand the missing runs to a Hydra launcher (basic, joblib, submitit_slurm)
    --config-dir DIR    a folder of your own like conf, with papers, methods, models; docs/extend.md

Any other word is a Hydra override and goes to every cell, after the cell's own. One that changes
numbers wants results=FOLDER beside it, and none may contradict what a row or column says.
Exit code: 0 if all went well, or if data are missing or a method is not built (the table says so),
or if the table or figure has no such profile (a line says so);
1 if a run failed or its certificate does not hold; 2 for a user's mistake.
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.cli import folders, groups, idle, lookup, many, sent_tables
from dpexp.cli.arguments import (
    Reader,
    changing,
    exit_code_of,
    listed,
    may_mistake,
    positive,
    require_apart,
    seeds,
    split,
    text,
    truth,
    whole,
)
from dpexp.cli.config_cache import Configs
from dpexp.cli.execution import execute
from dpexp.cli.instantiate import admit
from dpexp.cli.launchers import check, launch
from dpexp.cli.picking import is_picked, none_run
from dpexp.cli.suite import lacks
from dpexp.reporting import collect
from dpexp.reporting.collect import build, cells, costs
from dpexp.reporting.collect.named import require_named
from dpexp.reporting.render import exports, table
from dpexp.reporting.render.terminal import terminal
from dpexp.reporting.schema import spec, tuned
from dpexp.types import ConfigError, counted

CALLED = "python -m scripts.artifact"

AS_PUBLISHED = ("paper", "short")
"""Profiles of the papers' networks: too long to time, and the data may not be there."""

FAILURES = (collect.FAILED, collect.NOT_RUN, collect.REFUSED)


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    artifact: str
    paper: str = "rgp"
    profile: str = "embedded"
    is_plan: bool = False
    flops: float | None = None
    runs: bool = True
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    workers: int | None = None
    launcher: str = ""
    overrides: tuple[str, ...] = ()
    own: tuple[Path, ...] = ()


SHARED: dict[str, Reader] = {
    **dict.fromkeys(("profile", "launcher"), text),
    **dict.fromkeys(("plan", "run"), truth),
    **dict.fromkeys(("seed", "seeds"), seeds),
    "flops": positive,
    "workers": whole(1),
}
"""Words that `dpexp.cli.all` takes too."""

NAMES = {"plan": "is_plan", "run": "runs", "seed": "seeds"}
READERS: dict[str, Reader] = {**SHARED, "paper": text, "rows": listed, "columns": listed}


def parse(words: Sequence[str]) -> Request:
    """Parse the command line: the artifact, this script's own words and overrides.

    Raises:
        ConfigError: no artifact named, or a value that can't be read.
    """
    name = next((word for word in words if "=" not in word and word[:1] not in "-~"), "")
    own, overrides = split([word for word in words if word != name], READERS, NAMES)
    if not name:
        raise ConfigError("Expected an artifact, such as table3. See --help.")
    asked = tuple(word for word in overrides if not folders.is_searchpath(word))
    theirs = tuple(folders.folders_of(overrides))
    return Request(name, overrides=asked, own=theirs, **own)


def main(words: Sequence[str], called: str = CALLED) -> int:
    """Do what the command line asks; return the exit code.

    Args:
        words: of the command line.
        called: how the program is called in its help.
    """
    return exit_code_of(_main, words, (__doc__ or "").replace(CALLED, called))


def _main(words: Sequence[str]) -> int:
    request = parse(words)
    if request.launcher:
        check(request.launcher, request.workers)
    artifact = spec.load(groups.CONF, request.paper, request.artifact, request.own)
    if lacking := lacks(artifact, request.profile):
        print(lacking)
        return 0
    cells.profile_of(artifact, request.profile)
    tags = (f"wandb.paper={request.paper}", f"wandb.group={request.artifact}")
    user = (*tags, *request.overrides)
    compose = Configs(own=request.own).compose
    jobs = cells.expand(
        artifact, request.profile, compose, groups.CONF, user, request.seeds, request.own
    )
    configs = [job.config for job in jobs if job.config is not None]
    for target in {config["method"]["_target_"] for config in configs}:
        admit(target)
    results = Path(configs[0]["results"] if configs else "results")
    outcomes = [collect.outcome(job, results) for job in jobs]
    picked = [o for o in outcomes if is_picked(request, artifact, o.job.cell)]
    if not picked:
        raise none_run(request, artifact)
    require_named(artifact, jobs)
    for wrong in (o.job.contradicts for o in picked if o.job.contradicts):
        raise ConfigError(wrong)
    if words := changing(request.overrides):
        idle.warn_of_all([o.job.config for o in picked if o.job.config is not None], words)
    to_do = build.missing(picked) if request.runs else []
    for line in (
        *cells.not_built([o.job for o in picked], (*request.own, groups.CONF)),
        *cells.untried(artifact, request.profile, to_do),
    ):
        print(f"note: {line}", file=sys.stderr)
    if artifact.alone and request.workers not in (None, 1):
        line = f"workers={request.workers} has no effect: {artifact.name} measures time, run by run"
        print(f"note: {line}", file=sys.stderr)
    if request.is_plan:
        _print_plan(request, artifact, picked, results)
        return 0
    numbers = results / request.profile / artifact.paper / f"{artifact.name}.csv"
    require_seeds(request.seeds, numbers)
    require_apart(request.overrides, results)
    if not request.runs and not any(outcome.result for outcome in outcomes) and _holds(numbers):
        raise ConfigError(
            "Expected some run of this table or figure to be there, since run=false runs none: "
            f"{numbers} would lose its numbers. Leave out run=false, or what asks for other runs."
        )
    print(_opening(request, artifact, picked, to_do), flush=True)
    _compare(outcomes, to_do)
    _require_tuned_here(artifact, request.profile, to_do)
    stopped = _run(request, to_do, results, artifact.alone)
    outcomes = [collect.outcome(job, results) for job in jobs]
    measured = costs.filled(artifact, results)
    shown = table.Table(
        measured,
        request.profile,
        collect.collect(measured, outcomes),
        table.settings([o.job.config for o in outcomes if o.job.config and o.result]),
        changing(request.overrides),
        tuned.notes(artifact, request.profile, cells.choices_of(jobs)),
    )
    written = exports.write(shown, results)
    if not artifact.figure:
        print(f"\n{terminal(shown)}")
    print(*written, sep="\n")
    sent_tables.send(artifact, request.profile, configs, written, results)
    attempted = {job.run_id for job in to_do}
    judged = [o for o in outcomes if o.job.run_id in attempted or o.status == collect.REFUSED]
    return 130 if stopped else exit_code(judged)


def _compare(outcomes: Sequence[collect.Outcome], to_do: Sequence[cells.Job]) -> None:
    """Print which finished runs read other bytes than are here, or could not be compared.

    Raises:
        ConfigError: if runs of one task would share a table although they read different bytes.
    """
    said: dict[str, dict[str, str]] = {}
    others: dict[str, str] = {}
    for one in outcomes:
        if one.job.config is None or not one.result:
            continue
        found = lookup.compare(one.job.config, one.result)
        for word in filter(None, found):
            said.setdefault(word, {})[one.job.run_id] = ""
        if found.other:
            others[one.job.config["task"]["name"]] = found.other
    for job in to_do:
        task = (job.config or {}).get("task", {}).get("name")
        if task in others:
            raise ConfigError(
                f"Expected all runs of a table to read the same bytes; of those that are done "
                f"{others[task]}. Set results=FOLDER to run all of them "
                "anew, or run=false to show those that are done."
            )
    for word, runs in said.items():
        print(f"note: {len(runs)} finished runs: {word}", file=sys.stderr)


def _require_tuned_here(artifact: spec.Artifact, profile: str, to_do: Sequence[cells.Job]) -> None:
    """Refuse runs at points that were chosen on other data than they are about to read."""
    for job in to_do:
        if job.choice and job.choice.data and job.config is not None:
            here = lookup.examples_here(job.config)
            tuned.check_data(job.choice, here, job.cell, groups.CONF, artifact, profile)


def require_seeds(seeds: Sequence[int] | None, numbers: Path) -> None:
    """Refuse to write fewer seeds over a table or figure that is there.

    Args:
        seeds: in place of the profile's; None if these stay.
        numbers: of the table or figure as it is, if it is there.

    Raises:
        ConfigError: if one of its cells has more.
    """
    if seeds is None or not numbers.is_file():
        return
    with numbers.open(encoding="utf-8") as lines:
        counts = [str(line.get("n")) for line in csv.DictReader(lines)]
    most = max((int(count) for count in counts if count.isdecimal()), default=0)
    if most > len(seeds):
        raise ConfigError(
            f"Expected {counted(most, 'seed')} or more in seeds=, as {numbers} has, or results= "
            "beside it: their numbers would be lost there. Add results=mine, or seeds."
        )


def _holds(numbers: Path) -> bool:
    """Return whether an existing table or figure holds a value of ours."""
    if not numbers.is_file():
        return False
    with numbers.open(encoding="utf-8") as lines:
        return any(line["status"] == collect.DONE for line in csv.DictReader(lines))


def _opening(
    request: Request,
    artifact: spec.Artifact,
    picked: Sequence[collect.Outcome],
    to_do: Sequence[cells.Job],
) -> str:
    done, not_built = (sum(o.status == s for o in picked) for s in ("done", collect.NOT_BUILT))
    parts = [f"{done} of {counted(len(picked), 'run')} done"]
    parts += [f"{not_built} not built"] if not_built else []
    return f"{artifact.place}, profile {request.profile}: {', '.join(parts)}, {len(to_do)} to do"


def _run(
    request: Request,
    to_do: Sequence[cells.Job],
    results: Path,
    is_alone: bool,
) -> bool:
    """Run what is missing; return whether the user stopped it."""
    try:
        if to_do and request.launcher:
            # What measures time is handed over one by one, so that no run slows another.
            for jobs in [[job] for job in to_do] if is_alone else [to_do]:
                build.launch_missing(
                    jobs, lambda words: launch(request.launcher, words, request.own), results
                )
        elif to_do:
            is_mistake = may_mistake(request.overrides)
            if (num := many.of_jobs(to_do, 1 if is_alone else request.workers)) > 1:
                many.run([(to_do, num)], results, is_mistake)
            else:
                build.run_missing(to_do, execute, results, stop_at_mistake=is_mistake)
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return True
    return False


def exit_code(outcomes: Sequence[collect.Outcome]) -> int:
    """Print what failed; return 2 if only the user's overrides are wrong, 1 otherwise, or 0."""
    failed = [o for o in outcomes if o.status in FAILURES]
    mistakes = [build.mistake(item) for item in failed]
    if failed and all(mistakes):
        print(*(f"error: {m}" for m in dict.fromkeys(mistakes)), sep="\n", file=sys.stderr)
        return 2
    for item in failed:
        why = f"see {item.detail}" if item.detail else "it left no record and no log"
        print(f"failed: {item.job.name}, seed {item.job.seed}: {why}", file=sys.stderr)
    return 1 if failed else 0


def _print_plan(
    request: Request,
    artifact: spec.Artifact,
    outcomes: Sequence[collect.Outcome],
    results: Path,
) -> None:
    from dpexp.cli import plan  # which times steps, and imports all that trains
    from dpexp.cli.cost_model import CostModel
    from dpexp.distributed import ranks

    print(f"{artifact.place}, profile {request.profile}\n")
    configs = [o.job.config for o in outcomes if o.job.config is not None]
    device = ranks.choose_device(configs[0]["device"] if configs else "auto")
    costs = CostModel(results, request.profile, device, request.profile in AS_PUBLISHED)
    if request.profile not in AS_PUBLISHED:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(*plan.cells(outcomes, costs, width), sep="\n")
        return
    wanted: dict[str, list[dict[str, Any]]] = {o.job.name: [] for o in outcomes}
    for job in build.missing(outcomes):
        wanted[job.name].append(job.config or {})
    print(*plan.hours("Cell", wanted, costs, device, request.flops), sep="\n")
