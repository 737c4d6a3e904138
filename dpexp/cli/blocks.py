"""Config files that hold several options of a group, one per block.

`conf/recipe/minilm.yaml` has a block for each method whose runs of MiniLM differ. The block
`rgp:` is the option `recipe: minilm/rgp`, as if it were a file of its own; the block `gep, bgep:`
is two options.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from dpexp.cli.groups import CONF

GROUPS = {"recipe": "recipe=minilm/rgp", "scale": "scale=quick/gep"}
"""Groups whose files hold blocks, each with an example."""


def files() -> list[Path]:
    """Return the files; they are named after models and profiles."""
    return sorted(path for group in GROUPS for path in (CONF / group).glob("*.yaml"))


def of(path: Path) -> Iterator[tuple[str, DictConfig]]:
    """Return a file's options with their settings; keys are relative to the whole config."""
    for names, settings in OmegaConf.load(path).items():
        for name in str(names).split(", "):
            yield name, settings


def store() -> None:
    """Register every option with Hydra."""
    for path in files():
        for name, settings in of(path):
            group = f"{path.parent.name}/{path.stem}"
            ConfigStore.instance().store(name, settings, group, "_global_", f"conf/{group}.yaml")
