"""Find data sets and models in a folder laid out like hub snapshots, then on the hub."""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from dpexp.records.caches import cache_dir
from dpexp.types import ConfigError, MissingData, one_line

PREPROCESSOR = "preprocessor_config.json"
"""Where transformers keeps the mean and std of an image model's inputs."""

PROBE_SECONDS = 5.0
"""Timeout of a request to the hub (ours): a missing file is reported within 10 s."""


def parquet_files(
    data_root: str | Path, repo: str, config: str, splits: Sequence[str]
) -> dict[str, list[Path]]:
    """Return the paths of every split's shards.

    Args:
        data_root: the folder that holds `<repo>/<config>/<split>-00000-of-00001.parquet`; a hash
            may follow the numbers, as in older data sets of the hub.
        repo: the data set's name on the hub, `owner/name`; without an owner it is not on the hub.
        config: its configuration, a folder of the repository.
        splits: to look for; those not in data_root come from the hub or its cache.

    Returns:
        The shards in order, by split.

    Raises:
        MissingData: a split is in neither place; raised within seconds if there is no network.
        ConfigError: a split in data_root lacks shards, or mixes two versions.
    """
    folder = (Path(data_root).expanduser() / repo / config).absolute()
    shards = {split: _shards(folder, split, strict=True) for split in splits}
    missing = [split for split in splits if not shards[split]]
    if not missing:
        return shards
    patterns = [f"{config}/{split}-*.parquet" for split in missing]
    snapshot, reason = None, "no hub has it, and docs/data.md says how to make it"
    if "/" in repo:
        snapshot, reason = _fetch(repo, "dataset", patterns)
        reason = f"the hub could not supply it: {reason}"
    for split in missing:
        shards[split] = _shards(snapshot / config, split, strict=False) if snapshot else []
    missing = [split for split in missing if not shards[split]]
    if missing:
        names = " and ".join(f"{split}-00000-of-00001.parquet" for split in missing)
        others = ", ".join(path.name for path in _parquets(folder)[:4])
        held = f"it holds {others}" if others else "found none"
        raise MissingData(
            f"Expected {names} (or more shards) of {repo} in {folder}; {held}, and {reason}. "
            f"Put the parquet files there, set data_root to the folder that holds {repo}/{config}, "
            f"or {'run once with a network' if '/' in repo else 'choose another set'}."
        )
    return shards


def dataset_folder(repo: str, patterns: list[str]) -> tuple[Path | None, str]:
    """Return the folder of a data set's files from the hub, or None; and why it has none.

    Args:
        repo: the data set's name on the hub, `owner/name`.
        patterns: of the files to fetch.
    """
    return _fetch(repo, "dataset", patterns)


def model_folder(model_root: str | Path, repo: str) -> Path:
    """Return the path of a pretrained model's folder.

    Args:
        model_root: the folder that holds `<repo>/config.json`.
        repo: the model's name on the hub, `owner/name`.

    Raises:
        MissingData: it is neither in model_root nor on the hub or in its cache.
    """
    folder = (Path(model_root).expanduser() / repo).absolute()
    if (folder / "config.json").is_file():
        return folder
    snapshot, reason = _fetch(repo, "model", ["*.json", "*.safetensors", "*.txt", "*.model"])
    if snapshot is None or not (snapshot / "config.json").is_file():
        raise MissingData(
            f"Expected the model {repo} in {folder}, with config.json and model.safetensors; found "
            f"none, and the hub could not supply it: {reason}. Put its files there, set model_root "
            f"to the folder that holds {repo}, or run once with a network."
        )
    return snapshot


def _shards(folder: Path, split: str, *, strict: bool) -> list[Path]:
    """Return a split's shards in order; if any is missing, raise if strict, else return none."""
    shape = re.compile(re.escape(split) + r"-(\d{5})-of-(\d{5})(-[0-9a-f]+)?\.parquet")
    named = {path: shape.fullmatch(path.name) for path in _parquets(folder)}
    present = sorted((int(m[1]), int(m[2]), path) for path, m in named.items() if m)
    total = max((of for _, of, _ in present), default=0)
    if [(index, of) for index, of, _ in present] == [(index, total) for index in range(total)]:
        return [path for _, _, path in present]
    if strict:
        numbers = {index for index, of, _ in present if of == total}
        lacking = [f"{split}-{i:05d}-of-{total:05d}.parquet" for i in range(total)]
        lacking = [name for index, name in enumerate(lacking) if index not in numbers]
        held = ", ".join(path.name for _, _, path in present[:6])
        what = f"lacks {', '.join(lacking[:6])}" if lacking else f"mixes two versions: {held}"
        raise ConfigError(
            f"Expected {total} shards of {split} in {folder}; the folder {what}. Put in all of one "
            "version, and no others."
        )
    return []


def _parquets(folder: Path) -> list[Path]:
    """Return a folder's parquet files; none if it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".parquet")
    except OSError:
        return []


def _fetch(repo: str, kind: str, patterns: list[str]) -> tuple[Path | None, str]:
    """Fetch files from the hub, or from its cache if it cannot be reached.

    If the client's cache (`HF_HOME`) cannot be written, the files go into ours.

    Returns:
        The folder, or None if neither has them; and the reason.
    """
    import huggingface_hub.constants  # which reads the environment as it is imported

    reason = why_unreachable(f"{huggingface_hub.constants.ENDPOINT}/api/{kind}s/{repo}")
    for cache in (None, cache_dir() / "hub"):  # the client's own, else ours
        try:
            folder = huggingface_hub.snapshot_download(
                repo,
                repo_type=kind,
                allow_patterns=patterns,
                local_files_only=reason is not None,
                cache_dir=cache,
            )
        except Exception as error:  # whatever the client raises, the remedy is the same
            failure = one_line(error)
        else:
            return Path(folder), reason or "it has no such file"
        if cache is None and _is_writable(Path(huggingface_hub.constants.HF_HUB_CACHE)):
            break
    return None, reason or failure


def _is_writable(folder: Path) -> bool:
    """Return whether a folder is writable; create it if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def why_unreachable(url: str) -> str | None:
    """Return why a server cannot be reached, or None; its client would retry for minutes."""
    import huggingface_hub.constants

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    outcome: list[str | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=PROBE_SECONDS):
                outcome.append(None)
        except urllib.error.HTTPError as error:
            outcome.append(f"{url} answered {error.code} {error.reason}")
        except (OSError, ValueError) as error:
            outcome.append(f"{url} cannot be reached ({getattr(error, 'reason', error)})")

    # The timeout does not cover name resolution, so a thread bounds the whole request.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1.0)
    return outcome[0] if outcome else f"{url} did not answer within {PROBE_SECONDS:g} s"
