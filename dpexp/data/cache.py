"""A cache of decoded examples, keyed by the hash of their files."""

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
from dpexp.warned import told_if_long

log = logging.getLogger("dpexp")

_TOLD: set[Path] = set()
"""Folders that were said to be unwritable in this process."""


def decoded(
    files: Sequence[Path], recipe: str, decode: Callable[[], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Return the tensors decoded from files, from the cache where possible.

    A damaged entry is decoded again. A folder that cannot be written costs time, not the run.
    Cached examples may be private, so only their owner can read them.

    Args:
        files: to decode; their bytes are part of the key.
        recipe: describes the decoding; part of the key too.
        decode: returns tensors, the targets last.

    Returns:
        The tensors of `decode`.

    Raises:
        ConfigError: a file cannot be read, or changes while it is read.
    """
    hashes = [_hash(path) for path in files]
    name = hashlib.sha256(b"".join([recipe.encode(), *hashes])).hexdigest()[:32]
    entry = cache_dir() / "decoded" / f"{name}.pt"
    kept = _read(entry)
    if kept is None:
        with told_if_long("decoding the data, which later runs find decoded"):
            kept = decode()
        for path, before in zip(files, hashes, strict=True):
            if _hash(path) != before:
                raise ConfigError(
                    f"Expected {path} not to change while it is read; it has changed. Run again "
                    "once it is complete."
                )
        _write(entry, kept)
    return kept


def content_hashes(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file's bytes, in hexadecimal digits.

    Raises:
        ConfigError: a file cannot be read.
    """
    return [_hash(path).hex() for path in files]


def _hash(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise ConfigError(
            f"Expected a readable file at {path}; {error.strerror}. Fetch it again."
        ) from None


def _read(entry: Path) -> tuple[Tensor, ...] | None:
    """Return an entry; None if it is absent or damaged."""
    try:
        kept = torch.load(entry, weights_only=True)
        if fingerprint(*kept["tensors"]) == kept["fingerprint"]:
            return tuple(kept["tensors"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # damaged archives raise many kinds of errors
        log.warning("Cannot read %s (%s): decoding again.", entry, error)
        return None
    log.warning("%s is damaged (wrong fingerprint): decoding again.", entry)
    return None


def _write(entry: Path, kept: tuple[Tensor, ...]) -> None:
    """Write an entry atomically, readable by its owner only."""
    content = {"tensors": kept, "fingerprint": fingerprint(*kept)}

    def write(file: IO[bytes]) -> None:
        os.chmod(file.name, 0o600)
        torch.save(content, file)

    try:
        entry.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry.parent.mkdir(mode=0o700, exist_ok=True)
        if entry.parent.stat().st_mode & 0o077:  # made by an older version, or by others
            entry.parent.chmod(0o700)
        replace_file(entry, write)
    except (OSError, RecordError, RuntimeError) as error:  # torch: RuntimeError on a full disk
        if entry.parent not in _TOLD:  # once for all splits
            _TOLD.add(entry.parent)
            log.warning(
                "Cannot cache decoded examples in %s (%s). Set DPEXP_CACHE to another folder.",
                entry.parent,
                error.__cause__ or error,
            )
