"""Config files that hold several options of a group, one per block.

`conf/recipe/minilm.yaml` has a block for each method whose runs of MiniLM differ. The block
`rgp:` is the option `recipe: minilm/rgp`, as if it were a file of its own; the block `gep, bgep:`
is two options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from dpexp.cli import folders
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


def require_known(overrides: Sequence[str]) -> None:
    """Refuse a block that does not exist: what is optional, Hydra leaves out without a word.

    Args:
        overrides: of the command line.

    Raises:
        ConfigError: naming the word, and the nearest block.
    """
    from dpexp.cli.errors import nearest
    from dpexp.types import ConfigError

    for word in overrides:
        place, equals, value = word.lstrip("+").partition("=")
        group, name = place.partition("@")[0], value.strip("'\"").removesuffix(".yaml")
        if group not in GROUPS or not equals or name == "null":
            continue
        known = _options(group, overrides)
        if name not in known:
            named = [option for option in known if "/" in option]
            raise ConfigError(
                f"Expected {group} to be one of {', '.join(named)}; got {word}."
                f"{nearest(name, named)}"
            )


def _options(group: str, overrides: Sequence[str]) -> list[str]:
    """Return a group's options: blocks, and files of folders that the command line names."""
    names = {
        f"{path.stem}/{name}" for path in (CONF / group).glob("*.yaml") for name, _ in of(path)
    }
    for root in (CONF / group, *(folder / group for folder in folders.folders_of(overrides))):
        paths = [path.relative_to(root).with_suffix("") for path in root.rglob("*.yaml")]
        names |= {path.as_posix() for path in paths}
    return sorted(names)
