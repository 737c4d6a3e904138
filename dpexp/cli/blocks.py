"""Files of conf that hold many options of a group, one a block, so that they are read side by side.

`conf/recipe/minilm.yaml` has a block for each method whose runs of MiniLM differ. The one that
starts with `rgp:` is what Hydra knows as `recipe: minilm/rgp`, as if it were a file of its own; one
that starts with `gep, bgep:` is two options.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from dpexp.cli.groups import CONF

GROUPS = {"recipe": "recipe=minilm/rgp", "scale": "scale=quick/gep"}
"""Groups of which a file holds blocks, with an example of one."""


def files() -> list[Path]:
    """List the files, whose names are those of models and of profiles."""
    return sorted(path for group in GROUPS for path in (CONF / group).glob("*.yaml"))


def of(path: Path) -> Iterator[tuple[str, DictConfig]]:
    """Return the options of a file with their settings, which are of the whole config."""
    for names, settings in OmegaConf.load(path).items():
        for name in str(names).split(", "):
            yield name, settings


def store() -> None:
    """Tell Hydra of every option."""
    for path in files():
        for name, settings in of(path):
            group = f"{path.parent.name}/{path.stem}"
            ConfigStore.instance().store(name, settings, group, "_global_", f"conf/{group}.yaml")
