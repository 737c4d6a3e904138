"""Train one model with one method on one task within one privacy budget.

python run.py method=rgp task=cifar10 eps=8
"""

from __future__ import annotations

import os
import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from dpexp.cli import errors, sweeps, verbosity
from dpexp.cli.composition import resolved
from dpexp.cli.execution import execute, with_weights
from dpexp.cli.groups import CONF
from dpexp.cli.named_folders import require_named


def job(cfg: DictConfig) -> str | float:
    """Run one job; its directory is the last line printed.

    Returns:
        The directory, for a sweep's table; for Optuna the score on held-out training examples.
    """
    words = list(HydraConfig.get().overrides.task)
    try:
        if sweeps.is_search():
            return sweeps.score(cfg, words)
        return _run(cfg, words)
    except Exception as error:
        line = errors.mistake(error)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            # Hydra runs the other jobs and reports only the first failure; report each.
            raise errors.job_failed(" ".join(words), line) from error
        if line is None:
            raise
        sys.exit(errors.fail(line))


def _run(cfg: DictConfig, words: list[str]) -> str:
    from dpexp.cli import idle, validate
    from dpexp.training.progress import say  # imports no torch

    is_first = os.environ.get("RANK", "0") == "0"
    config = with_weights(resolved(cfg, words))
    require_named(config)
    validate.check_values(config)
    if is_first:
        from dpexp.training.tracking import run_name

        say(f"{run_name(config)}: starting")
    from dpexp import records
    from dpexp.cli import lookup

    known = lookup.done_before(config) if is_first else ""
    if known:
        say(known)
    if known and "WORLD_SIZE" not in os.environ:  # torchrun's other ranks ask the first
        idle.warn(config, words, with_method=False)
        directory = records.locate(config["results"], config)
    else:
        validate.check_taken(config)  # imports torch, which takes a second or more
        if is_first:
            idle.warn(config, words)
        directory = execute(config)
    if is_first:
        if not known:
            say(lookup.outcome(directory))
        print(directory, flush=True)
    return str(directory)


hydra_program = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(job)
"""Composes the command line's config, or those of a sweep, and runs each job."""


def main() -> None:
    """Run the command line, in one process or as one of torchrun's ranks."""
    if "WORLD_SIZE" in os.environ:
        from dpexp.distributed.processes import leave_after

        leave_after(lambda: errors.guarded(_program))
    errors.guarded(_program)


def _program() -> None:
    with sweeps.ending_with_table(verbosity.translated(sys.argv[1:])) as words:
        sys.argv[1:] = words
        hydra_program()
