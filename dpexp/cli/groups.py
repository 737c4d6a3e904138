"""The folder of config groups, and each group's options."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else PACKAGE.parent / "conf"
"""In a wheel the folder is inside the package; in a checkout, next to it."""


def options_of(group: str) -> list[str]:
    """Return a config group's options; those in subfolders as FOLDER/NAME."""
    paths = [path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml")]
    return sorted(p.with_suffix("").as_posix() for p in paths if not p.parts[0].startswith("auto"))


def settings_of(group: str, option: str) -> list[str]:
    """Return the names of the settings that an option's own file has."""
    from omegaconf import OmegaConf

    return [*OmegaConf.load(CONF / group / f"{option}.yaml")]
