"""Run jobs through a Hydra launcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir

# Hydra has no public way to get a launcher; pyproject.toml keeps it below 1.4 for these two.
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode

from dpexp import records
from dpexp.cli import groups
from dpexp.cli.composition import plain
from dpexp.cli.errors import unstarted
from dpexp.cli.execution import execute, saying
from dpexp.cli.folders import searchpath
from dpexp.reporting.collect import build
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError


def run_cell(config: Any) -> str:
    """Do one run as a Hydra job; log a failure, so that the other jobs go on.

    Args:
        config: the composed DictConfig.

    Returns:
        "", or the first line of the error.
    """
    cell = plain(config, HydraConfig.get().overrides.task)
    do = partial(saying, execute)
    return build.attempt(cell, records.run_id(cell), do, Path(cell["results"]))


@contextmanager
def _hydra() -> Iterator[Hydra]:
    with initialize_config_dir(str(groups.CONF), job_name="artifact", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        yield hydra


def check(name: str, workers: int | None) -> None:
    """Raise ConfigError if there is no launcher of this name; do not start it.

    Args:
        name: of the launcher.
        workers: the runs that the user wants side by side here, which a launcher decides.
    """
    if workers is not None:
        raise ConfigError(
            f"Expected launcher= or workers=, not both; got launcher={name} and workers={workers}. "
            "Leave out one: a launcher has settings of its own."
        )
    with _hydra() as hydra:
        valid = hydra.config_loader.get_group_options("hydra/launcher")
    if name not in valid:
        raise spec.unknown("launcher", name, valid)


def launch(name: str, jobs: list[list[str]], own: Sequence[Path] = ()) -> None:
    """Run jobs through the Hydra launcher of this name.

    Args:
        name: of the launcher.
        jobs: each job's overrides.
        own: the user's folders of config groups.

    Raises:
        ConfigError: if its plugin is not installed, or it finds no cluster.
    """
    with _hydra() as hydra:
        config = hydra.compose_config(
            config_name="config",
            overrides=[
                *searchpath(own),
                f"hydra/launcher={name}",
                *jobs[0],
            ],  # a config must be complete to compose
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )
        try:
            launcher = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(hydra.config_loader, Callbacks(config)),
                task_function=run_cell,
                config=config,
            )
            launcher.launch(jobs, initial_job_idx=0)
        except RuntimeError as error:  # no plugin, no srun: the launcher's own error
            raise ConfigError(unstarted(name, error)) from error
