"""Run the likelihood ratio attack on membership (LiRA), and plot its results.

    python -m scripts.lira task=digits methods=nonprivate,dpsgd,rgp shadows=16 eps=8
    python -m scripts.lira task=sentiment methods=nonprivate,rgp shadows=32 eps=2 epochs=6

Trains `shadows` models per method, each on its own random half of the training set (seeds 0, 1,
...), then attacks each with the others as its shadows. Finished runs are looked up; their data and
weights must be those here. Its own words, each WORD=VALUE:

    methods=A,B       of conf/method; nonprivate,rgp if left out
    shadows=16        models per method, including the target
    eps=8             for the methods with noise
    profile=embedded  embedded, quick, short or paper
    name=NAME         of the files; the task's if left out
    workers=2         models trained side by side; without it one a core, or one on a GPU

Any other word is a Hydra override for every run. Writes
results/<profile>/lira/<name>.{md,csv,png,svg}: a summary, the curves, the figure. Files of other
models are not written over.
Exit code: 0; 2 for a user error.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

from dpexp import records
from dpexp.cli import idle, lookup, many, validate
from dpexp.cli.arguments import exit_code_of, require_kept
from dpexp.cli.execution import execute
from dpexp.cli.lira_request import Request, compose, files, is_of, of_seeds, parse
from dpexp.cli.parts import require_begin
from dpexp.distributed.pool import Ended
from dpexp.privacy.budget import check_privacy
from dpexp.reporting.collect import build
from dpexp.warned import warn_caller


def train(configs: Sequence[dict[str, Any]], workers: int | None) -> None:
    """Train the models that are not there, side by side; wait for those of another process."""

    def take(run: str, ended: Ended, say: many.Say) -> None:
        if ended.error is not None and not isinstance(ended.error, records.Busy):
            raise many.named(f"run {run}", ended.error)

    def missing() -> dict[str, dict[str, Any]]:
        return {records.run_id(config): config for config in configs
                if not records.find(config["results"], config)}  # fmt: skip

    while to_do := missing():
        many.each(execute, to_do, many.number([*to_do.values()], workers), take)
        if any(records.is_held(config["results"], config) for config in configs):
            time.sleep(build.PAUSE)


def _is_done(config: dict[str, Any], num: int) -> bool:
    """Return whether all of a method's models have been trained."""
    return all(records.find(one["results"], one) for one in of_seeds(config, num))


def _warn_of_idle(request: Request, configs: Sequence[dict[str, Any]]) -> None:
    """Warn of words that no method's runs read."""
    if request.eps and not any(config["privacy"]["noise"] for config in configs):
        methods = ",".join(request.methods)
        warn_caller(f"eps={request.eps} has no effect: methods={methods} has no noise, and so no "
                    "privacy. Leave it out.")  # fmt: skip
    idle.warn_of_all(configs, request.overrides)


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2)


def _main(words: Sequence[str]) -> int:
    request = parse(words)
    configs = [compose(request, method) for method in request.methods]
    for config in configs:
        validate.check_values(config)
        if config["privacy"]["noise"]:  # before hours are spent on the first method
            with warnings.catch_warnings(action="ignore"):  # each run repeats them
                check_privacy(config["privacy"], config["task"]["dataset_size"])
    _warn_of_idle(request, configs)
    require_begin(config for config in configs if not _is_done(config, request.shadows))
    runs = [run for config in configs for run in of_seeds(config, request.shadows)]
    lookup.require_here(runs)
    page = files(request, configs[0])[0]
    require_kept(page, is_of(page, request, configs))
    train(runs, request.workers)
    from dpexp.cli.lira_page import shadows, write

    attacked = [shadows(config, request.shadows) for config in configs]
    print(*write(request, configs, attacked), sep="\n")
    return 0
