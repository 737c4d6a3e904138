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

from dpexp.cli import errors
from dpexp.cli.composition import plain
from dpexp.cli.execution import execute, with_weights
from dpexp.cli.groups import CONF


def job(cfg: DictConfig) -> None:
    """Run one job; its directory is the last line printed."""
    try:
        from dpexp.cli import validate
        from dpexp.cli.lookup import done_before

        config = with_weights(plain(cfg, HydraConfig.get().overrides.task))
        is_first = os.environ.get("RANK", "0") == "0"
        if is_first:
            validate.warn_of_idle(config, HydraConfig.get().overrides.task)
        if is_first and (line := done_before(config)):
            print(line, file=sys.stderr)
        directory = execute(config)
        if is_first:
            print(directory, flush=True)
    except Exception as error:
        line = errors.mistake(error)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            # Hydra runs the other jobs and reports only the first failure; report each.
            words = " ".join(HydraConfig.get().overrides.task)
            raise errors.job_failed(words, line) from error
        if line is None:
            raise
        sys.exit(errors.fail(line))


hydra_program = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(job)
"""Composes the command line's config, or those of a sweep, and runs each job."""


def main() -> None:
    """Run the command line, in one process or as one of torchrun's ranks."""
    if "WORLD_SIZE" in os.environ:
        from dpexp.distributed.processes import leave_after

        leave_after(lambda: errors.guarded(hydra_program))
    errors.guarded(hydra_program)
