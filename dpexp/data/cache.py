"""Decoded examples, kept between runs under the hash of the files they were decoded from."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from dpexp.data.task import fingerprint
from dpexp.records import RecordError, replace_file
from dpexp.records.caches import cache_dir
from dpexp.types import ConfigError

log = logging.getLogger(__name__)


def decoded(
    files: Sequence[Path], recipe: str, decode: Callable[[], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Decode files once, and afterwards read back what came out.

    A damaged entry is decoded anew; a folder that cannot be written costs time, not the run. What
    is kept may be private, so it is for its owner alone.

    Args:
        files: what is decoded; their bytes name the entry.
        recipe: how they are decoded; names the entry too.
        decode: gives tensors, the targets last.

    Returns:
        What decode gives or gave.

    Raises:
        ConfigError: a file cannot be read, or is replaced while it is.
    """
    hashes = [_hash(path) for path in files]
    name = hashlib.sha256(b"".join([recipe.encode(), *hashes])).hexdigest()[:32]
    entry = cache_dir() / "decoded" / f"{name}.pt"
    kept = _read(entry)
    if kept is None:
        kept = decode()
        for path, before in zip(files, hashes, strict=True):
            if _hash(path) != before:
                raise ConfigError(
                    f"Expected {path} to stay as it is while it is read; it has changed. Run again "
                    "once it is written."
                )
        _write(entry, kept)
    return kept


def _hash(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise ConfigError(
            f"Expected a file that can be read at {path}; {error.strerror}. Fetch it again."
        ) from None


def _read(entry: Path) -> tuple[Tensor, ...] | None:
    """Read an entry back; None where it is absent or not what was written."""
    try:
        kept = torch.load(entry, weights_only=True)
        if fingerprint(*kept["tensors"]) == kept["fingerprint"]:
            return tuple(kept["tensors"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # a damaged archive fails in as many ways as it can be damaged
        log.warning("Cannot read %s (%s): decoding again.", entry, error)
        return None
    log.warning("%s is not what was written to it: decoding again.", entry)
    return None


def _write(entry: Path, kept: tuple[Tensor, ...]) -> None:
    """Write an entry, whole or not at all, for nobody else to read."""
    content = {"tensors": kept, "fingerprint": fingerprint(*kept)}

    def write(file: IO[bytes]) -> None:
        os.chmod(file.name, 0o600)
        torch.save(content, file)

    try:
        entry.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry.parent.mkdir(mode=0o700, exist_ok=True)
        if entry.parent.stat().st_mode & 0o077:  # made by former code, or by others
            entry.parent.chmod(0o700)
        replace_file(entry, write)
    except (OSError, RecordError, RuntimeError) as error:  # torch: RuntimeError on a full disk
        log.warning(
            "Cannot keep decoded examples in %s (%s); DPEXP_CACHE names another folder.",
            entry.parent,
            error.__cause__ or error,
        )
