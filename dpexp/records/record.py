"""What a finished run left: how it is named, where it lies, and reading it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.records.moved import first_names, present_names
from dpexp.records.predictions import digest
from dpexp.records.safely import Damaged, arrays_of, dict_of, parse_json, text_of

NONFINITE = "nonfinite_outputs"
"""How many test examples' outputs were not finite, as result.json and metrics.jsonl name it."""

METRICS = "metrics.jsonl"

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
            8 and 8.0 are the same, and so are a moved name and its first one (`MOVED`).

    Returns:
        12 hexadecimal digits.
    """
    deciding = {key: value for key, value in config.items() if key not in RESULT_NEUTRAL}
    text = json.dumps(_canonical(first_names(deciding)), sort_keys=True, separators=(",", ":"))
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
        config: as it was run; what has moved since is named as it is now.
        result: of result.json.
        privacy: of privacy.json.
        metrics: one dict per evaluation.
    """

    directory: Path
    config: dict[str, Any]
    result: dict[str, Any]
    privacy: dict[str, Any]
    metrics: list[dict[str, Any]]


def load(path: Path) -> dict[str, Any] | None:
    """Read a file that holds a dict; None if it cannot be read, or holds something else."""
    try:
        return dict_of(path)
    except Damaged:
        return None


def read(directory: str | Path) -> Record | None:
    """Read a finished run; None if it is not finished, or any of its files is damaged."""
    try:
        return _read(Path(directory))
    except Damaged:
        return None


def damage(directory: str | Path) -> str:
    """Say in a few words what keeps a run that has a result from being read; "" if nothing does."""
    directory = Path(directory)
    try:
        if (directory / "result.json").exists():
            _read(directory)
    except Damaged as error:
        return str(error)
    except OSError as error:
        return f"{directory.name} cannot be read ({error.strerror})"
    return ""


def _read(directory: Path) -> Record:
    found: dict[str, Any] = {}
    for name in ("config.yaml", "result.json", "privacy.json"):
        try:
            found[name] = dict_of(directory / name)
        except Damaged as error:
            raise Damaged(f"{name} {error}") from error
        if not found[name] and name != "config.yaml":
            raise Damaged(f"{name} is empty")
    found["config.yaml"] = present_names(found["config.yaml"])
    metrics = lines_of(directory / METRICS)
    if not metrics or None in metrics:
        raise Damaged(f"{METRICS} {'has a line that is torn' if metrics else 'has no line'}")
    return Record(directory, *found.values(), metrics)


def lines_of(path: Path) -> list[dict[str, Any] | None]:
    """Parse each line; None stands for one that a killed process left torn."""
    try:
        with suppress(OSError):
            if not path.exists():
                return []
        texts = text_of(path).splitlines()
    except Damaged:
        return [None]
    lines = []
    for text in texts:
        try:
            value = parse_json(text)
        except Damaged:
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


def contents(directory: Path, name: str) -> str:
    """Hash what one of a run's files says, however it is written down.

    Raises:
        Damaged: it cannot be read.
    """
    path = directory / name
    if path.suffix == ".npz":
        return digest(arrays_of(path))
    if path.suffix == ".jsonl":
        lines = [parse_json(line) for line in text_of(path).splitlines()]
        return hash_of(lines)
    return hash_of(dict_of(path))


def hash_of(value: Any) -> str:
    """Hash plain content, as `contents` does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
