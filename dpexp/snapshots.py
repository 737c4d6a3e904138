"""Finding data sets and models: a folder laid out like hub snapshots first, then the hub."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants

from dpexp.types import ConfigError, MissingData, one_line

PROBE_SECONDS = 5.0
"""How long the hub may take to answer (ours): a missing file is to be reported within 10 s."""


def parquet_files(
    data_root: str | Path, repo: str, config: str, splits: Sequence[str]
) -> dict[str, list[Path]]:
    """Find every shard of every split.

    Args:
        data_root: the folder that holds `<repo>/<config>/<split>-00000-of-00001.parquet`.
        repo: the data set's name on the hub, `owner/name`; without an owner it is on no hub.
        config: its configuration, a folder of the repository.
        splits: what to look for; those not in data_root are taken from the hub or its cache.

    Returns:
        The shards in order, by split.

    Raises:
        MissingData: a split is in neither place; said within seconds where there is no network.
        ConfigError: a split in data_root lacks some of its shards.
    """
    folder = (Path(data_root).expanduser() / repo / config).absolute()
    found = {split: _shards(folder, split, strict=True) for split in splits}
    missing = [split for split in splits if not found[split]]
    if not missing:
        return found
    patterns = [f"{config}/{split}-*.parquet" for split in missing]
    snapshot, reason = None, "no hub has it, and README says how to make it"
    if "/" in repo:
        snapshot, reason = _fetch(repo, "dataset", patterns)
        reason = f"the hub could not supply it: {reason}"
    for split in missing:
        found[split] = _shards(snapshot / config, split, strict=False) if snapshot else []
    missing = [split for split in missing if not found[split]]
    if missing:
        names = " and ".join(f"{split}-00000-of-00001.parquet" for split in missing)
        raise MissingData(
            f"Expected {names} (or more shards) of {repo} in {folder}; found none, and {reason}. "
            f"Put the parquet files there, set data_root to the folder that holds {repo}/{config}, "
            f"or {'run once with a network' if '/' in repo else 'choose another set'}."
        )
    return found


def model_folder(model_root: str | Path, repo: str) -> Path:
    """Find a pretrained model's folder.

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
    """List a split's shards in order; where some lack, raise if strict, else find none."""
    shape = re.compile(re.escape(split) + r"-(\d{5})-of-(\d{5})\.parquet")
    named = {path: shape.fullmatch(path.name) for path in sorted(folder.glob(f"{split}-*.parquet"))}
    paths = [path for path, match in named.items() if match]
    total = max((int(match[2]) for match in named.values() if match), default=0)
    wanted = [f"{split}-{index:05d}-of-{total:05d}.parquet" for index in range(total)]
    if [path.name for path in paths] == wanted:
        return paths
    if strict:
        lacking = sorted(set(wanted) - {path.name for path in paths})
        what = f"lacks {', '.join(lacking)}" if lacking else "mixes shards of two versions"
        raise ConfigError(f"Expected {total} shards of {split} in {folder}; the folder {what}.")
    return []


def _fetch(repo: str, kind: str, patterns: list[str]) -> tuple[Path | None, str]:
    """Bring files from the hub, or its cache where it cannot be reached; say why if neither."""
    reason = why_unreachable(f"{huggingface_hub.constants.ENDPOINT}/api/{kind}s/{repo}")
    try:
        folder = huggingface_hub.snapshot_download(
            repo, repo_type=kind, allow_patterns=patterns, local_files_only=reason is not None
        )
    except Exception as error:  # whatever the client raises, the remedy is the same
        return None, reason or one_line(error)
    return Path(folder), reason or "it has no such file"


def why_unreachable(url: str) -> str | None:
    """Ask a server once, in seconds, where its client would go on trying for minutes."""
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

    # A name look-up heeds no timeout, so the whole question gets one.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1.0)
    return outcome[0] if outcome else f"{url} did not answer within {PROBE_SECONDS:g} s"
