"""What may not change of conf: the runs that artifacts and default choices stand for.

    make pin-configs

writes tests/pinned_configs.txt anew, after a change of runs that is meant; `git diff` then names
them. A line is a run's artifact and cell, or its method, task and profile; its id; and a hash of
all that its config resolves to, by the names of things that ids are of.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path

from dpexp import records
from dpexp.cli.config_cache import Configs
from dpexp.cli.groups import CONF, options_of
from dpexp.records.moved import first_names
from dpexp.records.record import hash_of
from dpexp.reporting.collect import cells
from dpexp.reporting.collect.cells import Compose
from dpexp.reporting.schema import spec
from tests.contract.cases import OWN

ROOTS = ("DPEXP_DATA_ROOT", "DPEXP_MODEL_ROOT")
"""Variables that say where a machine has its data, which a run is not of."""

PINNED = Path(__file__).with_suffix(".txt")
GROUPS = ("method", "task", "profile")


def of_artifact(
    compose: Compose, path: Path, profiles: Collection[str] | None = None
) -> Iterator[str]:
    """Return a line for every cell of an artifact in some profiles (None: in all), of one seed."""
    artifact = spec.load(CONF, path.parent.name, path.stem)
    for profile in artifact.profiles:
        if profiles is not None and profile not in profiles:
            continue
        for job in cells.expand(artifact, profile, compose, CONF, seeds=(0,)):
            if job.config is not None:
                yield line(f"{path.parent.name}/{path.stem}", profile, *job.cell, config=job.config)


def of_choice(compose: Compose, *options: str) -> str:
    """Return the line of a method, a task and a profile, all else being default."""
    words = [f"{group}={option}" for group, option in zip(GROUPS, options, strict=True)]
    return line(*words, config=compose(words))


def line(*names: str, config: dict) -> str:
    """Name a config, and say what it is."""
    return f"{' '.join(names)}: {records.run_id(config)} {content(config)}"


def content(config: dict) -> str:
    """Hash all that a config says, by the names of things that ids are of."""
    return hash_of(first_names(config))[:12]


def lines(compose: Compose) -> list[str]:
    """Return all lines, sorted."""
    artifacts = (CONF / "artifact").glob("*/*.yaml")
    found = [one for path in artifacts for one in of_artifact(compose, path)]
    choices = [c for c in product(*map(options_of, GROUPS)) if c[1] not in OWN]
    return sorted([*found, *(of_choice(compose, *options) for options in choices)])


if __name__ == "__main__":
    for root in ROOTS:
        os.environ.pop(root, None)
    PINNED.write_text("\n".join(lines(Configs().compose)) + "\n", encoding="utf-8")
