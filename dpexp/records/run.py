"""A run's directory: looked up, resumed or started."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpexp.records.files import TEMPORARY, RecordError, replace_file, unmade, write_atomically
from dpexp.records.ledger import LEDGER
from dpexp.records.predictions import PREDICTIONS, packed
from dpexp.records.record import METRICS, contents, lines_of, load, locate, read, run_id
from dpexp.warned import warn_caller

SCORES = "scores.npz"
"""The attack's scores of an attacked run, one per example."""


class Run:
    """A run's directory during the run.

    Attributes:
        directory: results/<profile>/runs/<id>.
        config: of this run.
        status: "finished" (look it up), "resume" (from a checkpoint) or "fresh".
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], status: str) -> None:
        self.directory = directory
        self.config = dict(config)
        self.status = status

    @classmethod
    def open(cls, root: str | Path, config: Mapping[str, Any]) -> Run:
        """Open a run's directory, and create it if necessary.

        A directory that is neither finished nor resumable is moved aside to <id>.broken-1, -2, ...,
        never overwritten.

        Args:
            root: the results folder.
            config: resolved.

        Raises:
            RecordError: if the directory cannot be written.
        """
        run = cls(locate(root, config), config, "fresh")
        run.status = run._judge()
        if run.status == "broken":
            run.restart()
        elif run.status == "fresh":
            run._begin()
        return run

    @property
    def id(self) -> str:
        """The directory's name."""
        return self.directory.name

    @property
    def checkpoint_path(self) -> Path:
        """Path of the saved state."""
        return self.directory / "checkpoint.pt"

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was saved."""
        return any(self._checkpoints())

    @property
    def metrics_path(self) -> Path:
        """Path of the evaluations, one line each."""
        return self.directory / METRICS

    def _checkpoints(self) -> Iterable[Path]:
        return self.directory.glob("checkpoint*.pt")

    def _judge(self) -> str:
        if not self.directory.exists():
            return "fresh"
        if not self.directory.is_dir():
            return "broken"
        for leftover in self.directory.glob(f"{TEMPORARY}*"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
                continue
            leftover.unlink()  # written by a killed process; the file it would replace is whole
        present = {*os.listdir(self.directory)} - {LEDGER}
        if not present:
            return "fresh"
        config = load(self.directory / "config.yaml")
        if config is None or run_id(config) != self.id:
            return "broken"
        if present == {"config.yaml"}:
            return "fresh"  # killed before its first line: starting again loses nothing
        if (self.directory / "result.json").exists():
            return "finished" if read(self.directory) else "broken"
        return "resume" if self.has_checkpoint else "broken"

    def _begin(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unmade(self.directory, error) from error
        text = yaml.safe_dump(self.config, sort_keys=False)
        write_atomically(self.directory / "config.yaml", text)
        self.status = "fresh"

    def restart(self) -> None:
        """Move the directory aside and start afresh, e.g. when no checkpoint can be read.

        The ledger stays in place throughout, because releases cannot be undone.

        Raises:
            RecordError: if the directory cannot be moved.
        """
        number = 1
        while (aside := self.directory.with_name(f"{self.id}.broken-{number}")).exists():
            number += 1
        try:
            if (self.directory / LEDGER).exists():
                aside.mkdir()
                for path in self.directory.iterdir():
                    if path.name != LEDGER:
                        path.rename(aside / path.name)
            else:
                self.directory.rename(aside)
        except OSError as error:
            raise RecordError(
                f"Cannot move {self.directory} aside to {aside.name}: {error.strerror}."
            ) from error
        warn_caller(
            f"{self.directory} is damaged, or was killed before its first checkpoint; "
            f"moved aside to {aside.name}."
        )
        self._begin()

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one evaluation to metrics.jsonl and wait for the disk."""
        text = json.dumps(_plain(line), allow_nan=False) + "\n"
        try:
            with self.metrics_path.open("a") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(f"Cannot write {self.metrics_path}: {error.strerror}.") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Read the evaluations so far."""
        return [line for line in lines_of(self.metrics_path) if line is not None]

    def restore_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace the contents of metrics.jsonl."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.metrics_path, text)

    def finish(
        self,
        result: Mapping[str, Any],
        privacy: Mapping[str, Any],
        arrays: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        right: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write privacy.json, then result.json, whose presence means that the run is finished.

        Both hold the run's id, and result.json the hashes of the other files, so that files of two
        runs cannot be mixed.

        Args:
            result: contents of result.json.
            privacy: the certificate.
            arrays: written before both, by file and name; a file without arrays is not written.
            right: whether each test prediction is correct, [n] bool, by metric; without any, no
                predictions.npz is written.
        """
        files: dict[str, Mapping[str, Any]] = {
            **(arrays or {}),
            PREDICTIONS: packed(self.id, right or {}),
        }
        written = [name for name, content in files.items() if content]
        for name in written:
            replace_file(self.directory / name, partial(np.savez, **files[name]))
        self._write("privacy.json", {**privacy, "run": self.id})
        if self.metrics_path.exists():
            written.append(METRICS)
        hashes = {name: contents(self.directory, name) for name in ("privacy.json", *written)}
        self._write("result.json", {**result, "run": self.id, "files": hashes})
        for checkpoint in self._checkpoints():
            checkpoint.unlink()
        self.status = "finished"

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(_plain(content), indent=2, allow_nan=False)
        write_atomically(self.directory / name, text + "\n")


def _plain(value: Any) -> Any:
    """Replace infinity and NaN, which JSON lacks, by null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
