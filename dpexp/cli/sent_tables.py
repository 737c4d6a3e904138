"""Send the tables and figures of runs that wandb hears of to wandb too."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpexp.reporting.schema import spec
from dpexp.training import tracking


def send(
    artifact: spec.Artifact,
    profile: str,
    configs: Sequence[Mapping[str, Any]],
    written: Sequence[Path],
    results: Path,
) -> None:
    """Send an artifact's files to wandb if its runs are sent there; a failure prints a note.

    Args:
        artifact: the table or figure.
        profile: under which it was built.
        configs: of its runs.
        written: its files.
        results: the folder for what wandb keeps.
    """
    settings = configs[0]["wandb"] if configs else {"mode": "disabled"}
    if settings["mode"] == "disabled":
        return
    name = f"{artifact.paper}-{artifact.name}-{profile}"
    folder = results / profile / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    if line := tracking.send_files(settings, name, "table", written, folder):
        print(f"note: {line}", file=sys.stderr)
