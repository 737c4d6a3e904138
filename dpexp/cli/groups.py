"""The config groups: where their folder is, and what each can be set to."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "conf"
CONF = INSTALLED if INSTALLED.is_dir() else PACKAGE.parent / "conf"
"""A wheel brings the folder inside the package; in a checkout it stands beside it."""


def options_of(group: str) -> list[str]:
    """List what a config group can be set to; options in folders are named with them."""
    paths = [path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml")]
    return sorted(p.with_suffix("").as_posix() for p in paths if not p.parts[0].startswith("auto"))
