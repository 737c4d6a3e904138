"""Records of finished runs: their ids, their directories, and reading them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.records.kinds import wrong_kind_of_certificate
from dpexp.records.moved import first_names, present_names
from dpexp.records.predictions import digest
from dpexp.records.safely import Damaged, arrays_of, dict_of, parse_json, text_of
from dpexp.types import ConfigError

NONFINITE = "nonfinite_outputs"
"""Entry of result.json and metrics.jsonl: number of test examples with a non-finite output."""

METRICS = "metrics.jsonl"

PAPERS, OWN = "paper", "own"
"""Folders of results: of runs in the papers' settings, and of runs on the user's own data."""

HOME = "dpexp."
OWN_DATA = ("dpexp.data.own_", "dpexp.data.given.")
"""Where what reads the user's own data is; a task that is not of dpexp reads them too."""

RESULT_NEUTRAL = frozenset(
    {
        "device",
        "ranks",
        "micro_batch",
        "data_root",
        "model_root",
        "results",
        "weights",
        "tracking",
        "wandb",
        "checkpoint",
    }
)
"""Top-level settings that change how a run is executed, never its result."""

PLACES = frozenset({"data_root", "model_root", "channels_last", "checkpointing"})
"""Settings of tasks and models for folders and memory; they change no result, at any depth."""


def run_id(config: Mapping[str, Any]) -> str:
    """Return a run's id, a hash of the settings that decide its result.

    Args:
        config: resolved, of plain dicts, lists and scalars. The order of keys does not matter; 8
            equals 8.0, and a moved name equals its first one (`MOVED`).

    Returns:
        12 hexadecimal digits.
    """
    deciding = {key: value for key, value in config.items() if key not in RESULT_NEUTRAL}
    text = json.dumps(_canonical(first_names(deciding)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_neutral(override: str) -> bool:
    """Return whether a command-line word, such as device=cpu, decides no result."""
    return re.split("[.=]", override.lstrip("+~"))[0] in RESULT_NEUTRAL


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
    """A finished run's files.

    Attributes:
        directory: the run's.
        config: as it was run, with moved names replaced by present ones.
        result: contents of result.json.
        privacy: contents of privacy.json.
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
    """Return why a run with a result cannot be read, in a few words; "" if it can."""
    directory = Path(directory)
    try:
        if (directory / "result.json").exists():
            _read(directory)
    except Damaged as error:
        return str(error)
    except OSError as error:
        return f"{directory.name} cannot be read ({error.strerror})"
    return ""


def finished(directory: Path) -> Record:
    """Read a finished run.

    Raises:
        ConfigError: if the folder holds none, or a damaged one; it says why.
    """
    record = read(directory)
    if record is None:
        why = damage(directory) or "it holds no finished run"
        raise ConfigError(f"Expected a finished run in {directory}; {why}. Set another folder.")
    return record


def _read(directory: Path) -> Record:
    files: dict[str, Any] = {}
    for name in ("config.yaml", "result.json", "privacy.json"):
        try:
            files[name] = dict_of(directory / name)
        except Damaged as error:
            raise Damaged(f"{name} {error}") from error
        if not files[name] and name != "config.yaml":
            raise Damaged(f"{name} is empty")
    if wrong := wrong_kind_of_certificate(files["privacy.json"]):
        raise Damaged(f"privacy.json {wrong}")
    files["config.yaml"] = present_names(files["config.yaml"])
    metrics = lines_of(directory / METRICS)
    if not metrics or None in metrics:
        raise Damaged(f"{METRICS} {'has a line that is torn' if metrics else 'has no line'}")
    return Record(
        directory,
        files["config.yaml"],
        files["result.json"],
        files["privacy.json"],
        [line for line in metrics if line is not None],
    )


def lines_of(path: Path) -> list[dict[str, Any] | None]:
    """Parse each line; None stands for a line that a killed process left torn."""
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
    """Return the path of a run's directory, whether or not it exists.

    It is below the profile's name. A run on data of the user's own under the profile that stands
    for the papers' settings is below `OWN`, unless its directory has been made below `PAPERS`.
    """
    profile, name = str(config["profile"]["name"]), run_id(config)
    directory = Path(root) / profile / "runs" / name
    if (other := profile_of(config)) != profile and not os.path.isdir(directory):
        return Path(root) / other / "runs" / name
    return directory


def profile_of(config: Mapping[str, Any]) -> str:
    """Return a run's profile: `OWN` for the user's own data in place of `PAPERS`."""
    profile = str(config["profile"]["name"])
    return OWN if profile == PAPERS and _is_of_own_data(config) else profile


def _is_of_own_data(config: Mapping[str, Any]) -> bool:
    """Return whether a run's task is read from files or arrays that dpexp does not name."""
    target = str((config.get("task") or {}).get("_target_", HOME))
    return target.startswith(OWN_DATA) or not target.startswith(HOME)


def find(root: str | Path, config: Mapping[str, Any]) -> Record | None:
    """Return a finished run's record without writing anything; None if there is none."""
    record = read(locate(root, config))
    return record if record is not None and run_id(record.config) == run_id(config) else None


def contents(directory: Path, name: str) -> str:
    """Hash the contents of one of a run's files, independent of their formatting.

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
    """Hash plain JSON content, as `contents` does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
