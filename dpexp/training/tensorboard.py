"""Write a run's metrics for TensorBoard, an optional extra."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Event files of a run, for `tensorboard --logdir results`.

    Args:
        folder: for the event files.
        name: of the run, shown as a text.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._writer: SummaryWriter | None = None

    def _opened(self, step: int) -> SummaryWriter:
        if self._writer is None:
            # A resumed run draws over what a killed one had drawn from this step on.
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
            self._writer.add_text("run", self._name, step)
        return self._writer

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Write numbers, those that are not by themselves the step."""
        writer = self._opened(step)
        for name, value in values.items():
            if name != "step":
                writer.add_scalar(name, value, step)
        writer.flush()

    def conclude(self, result: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
        """Write the certificate as a text."""
        text = json.dumps(certificate, indent=2, default=str)
        code = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown's form of code
        self._opened(result["steps"]).add_text("certificate", code, result["steps"])

    def finish(self, exit_code: int) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
