"""Decoded examples, kept between runs under the hash of the files they were decoded from."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dpexp.records import RecordError, at_home, replace_file
from dpexp.tasks.task import fingerprint

log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Give the folder: DPEXP_CACHE, else dpexp in XDG_CACHE_HOME, else ~/.cache/dpexp.

    Raises:
        ConfigError: it is to lie in a home, and there is none.
    """
    if chosen := os.environ.get("DPEXP_CACHE"):
        return Path(at_home("DPEXP_CACHE", chosen))
    cache = os.environ.get("XDG_CACHE_HOME") or at_home("DPEXP_CACHE", "~/.cache")
    return Path(cache) / "dpexp"


def decoded(
    files: Sequence[Path], recipe: str, decode: Callable[[], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Decode files once, and afterwards read back what came out.

    A damaged entry is decoded anew; a folder that cannot be written costs time, not the run.

    Args:
        files: what is decoded; their bytes name the entry.
        recipe: how they are decoded; names the entry too.
        decode: gives tensors, the targets last.

    Returns:
        What decode gives or gave.
    """
    digest = hashlib.sha256(recipe.encode())
    for path in files:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    entry = cache_dir() / "decoded" / f"{digest.hexdigest()[:32]}.pt"
    kept = _read(entry)
    if kept is None:
        kept = decode()
        _write(entry, kept)
    return kept


def _read(entry: Path) -> tuple[Tensor, ...] | None:
    """Read an entry back; None where it is absent or not what was written."""
    try:
        kept = torch.load(entry, weights_only=True)
        if fingerprint(*kept["tensors"]) == kept["fingerprint"]:
            return tuple(kept["tensors"])
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged archive fails in as many ways as it can be damaged
        log.warning("Cannot read %s (%s): decoding again.", entry, error)
        return None
    log.warning("%s is not what was written to it: decoding again.", entry)
    return None


def _write(entry: Path, kept: tuple[Tensor, ...]) -> None:
    """Write an entry, whole or not at all."""
    content = {"tensors": kept, "fingerprint": fingerprint(*kept)}
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        replace_file(entry, lambda file: torch.save(content, file))
    except (OSError, RecordError, RuntimeError) as error:  # torch: RuntimeError on a full disk
        log.warning(
            "Cannot keep decoded examples in %s (%s).", entry.parent, error.__cause__ or error
        )
