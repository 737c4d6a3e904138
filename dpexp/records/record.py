"""What a finished run left: how it is named, where it lies, and reading it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RESULT_NEUTRAL = frozenset(
    {"device", "ranks", "micro_batch", "data_root", "model_root", "results", "wandb", "checkpoint"}
)
"""Top-level settings that change how a run goes, never what comes out."""

PLACES = frozenset({"data_root", "model_root", "channels_last", "checkpointing"})
"""Folders, and what models do with memory, as tasks and models name them; neutral at any depth."""


def run_id(config: Mapping[str, Any]) -> str:
    """Name a run by what decides its result.

    Args:
        config: resolved, of plain dicts, lists and scalars; the order of keys is of no account,
            and 8 and 8.0 are the same.

    Returns:
        12 hexadecimal digits.
    """
    deciding = {key: value for key, value in config.items() if key not in RESULT_NEUTRAL}
    text = json.dumps(_canonical(deciding), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items() if key not in PLACES}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(frozen=True)
class Record:
    """What a finished run left.

    Attributes:
        directory: where it lies.
        config: as it was run.
        result: of result.json.
        privacy: of privacy.json.
        metrics: one dict per evaluation.
    """

    directory: Path
    config: dict[str, Any]
    result: dict[str, Any]
    privacy: dict[str, Any]
    metrics: list[dict[str, Any]]


def load(path: Path, parse: Callable[[str], Any]) -> dict[str, Any] | None:
    """Read a file that holds a dict; None if it cannot be read, or holds something else."""
    try:
        value = parse(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return value if isinstance(value, dict) else None


def read(directory: str | Path) -> Record | None:
    """Read a finished run; None if it is not finished, or any of its files is damaged."""
    directory = Path(directory)
    config = load(directory / "config.yaml", yaml.safe_load)
    result = load(directory / "result.json", json.loads)
    privacy = load(directory / "privacy.json", json.loads)
    if config is None or not result or not privacy:
        return None
    lines = lines_of(directory / "metrics.jsonl")
    metrics = [line for line in lines if line is not None]
    if not metrics or len(metrics) < len(lines):
        return None
    return Record(directory, config, result, privacy, metrics)


def lines_of(path: Path) -> list[dict[str, Any] | None]:
    """Parse each line; None stands for one that a killed process left torn."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        lines.append(value if isinstance(value, dict) else None)
    return lines


def locate(root: str | Path, config: Mapping[str, Any]) -> Path:
    """Say where a run's directory is, or would be."""
    return Path(root) / str(config["profile"]["name"]) / "runs" / run_id(config)


def find(root: str | Path, config: Mapping[str, Any]) -> Record | None:
    """Look a finished run up, touching nothing."""
    record = read(locate(root, config))
    return record if record is not None and run_id(record.config) == run_id(config) else None
