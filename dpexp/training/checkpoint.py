"""Checkpoints: a kill, a torn file or a full disk costs a few steps at most."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from dpexp.records import RecordError, replace_file
from dpexp.warned import warn_caller

_MAGIC = b"dpexp\x00v1"
_DIGEST = hashlib.sha256().digest_size
_CHUNK = 1 << 22

OWN_CODE, PRETRAINED = "own_code", "pretrained"
"""Entries of a state's "of" that have hashes: of the user's code, of the pretrained models' files.
"""


class _Hashing:
    """A file that hashes what is written; torch writes sequentially and never seeks."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def previous(path: Path) -> Path:
    """Return the path of the previous checkpoint: checkpoint.prev.pt for checkpoint.pt."""
    return path.with_suffix(f".prev{path.suffix}")


def _next(path: Path) -> Path:
    return path.with_suffix(f".next{path.suffix}")


def save(path: str | Path, state: Any) -> None:
    """Save a state, and keep the previous one.

    Args:
        path: of the newest checkpoint.
        state: tensors, numbers, strings, and dicts and lists of them.

    Raises:
        RecordError: if it cannot be written; the earlier checkpoints are untouched.
    """
    path = Path(path)

    def write(file: IO[bytes]) -> None:
        hashing = _Hashing(file)
        try:
            torch.save(state, cast(IO[bytes], hashing))
        except RuntimeError:
            if hashing.error is not None:  # torch hides a full disk behind an error of its own
                raise hashing.error from None
            raise
        file.write(_MAGIC + hashing.digest.digest())

    new = _next(path)
    replace_file(new, write)
    # Between these two renames, too, the newest complete state has a name that `load` tries.
    if path.exists():
        os.replace(path, previous(path))
    os.replace(new, path)


def load(path: str | Path) -> Any | None:
    """Return the newest complete state, with its tensors on the CPU.

    Args:
        path: of the newest checkpoint.

    Returns:
        The state; the previous one, with a warning, if the newest is damaged; None if neither can
        be read.
    """
    path = Path(path)
    # A file that a kill left under the next one's name is complete, and newer than the others.
    for candidate in (_next(path), path, previous(path)):
        if not candidate.exists():
            continue
        with candidate.open("rb") as file:
            fault = _fault(file)
            if fault is None:
                file.seek(0)
                return torch.load(file, map_location="cpu", weights_only=True)
        warn_caller(f"Checkpoint {candidate} is damaged: {fault}; not used.")
    return None


def require(path: Path, state: Mapping[str, Any], of: Mapping[str, Any]) -> None:
    """Check that a state was saved by this run, under this mechanism.

    Args:
        path: of the checkpoint.
        state: from `load`.
        of: the required entry "of": the run's id, and its mechanism.

    Raises:
        RecordError: naming the first difference.
    """
    said = state.get("of")
    if not isinstance(said, Mapping):
        raise RecordError(
            f"Expected {path} to say whose it is; it is of former code. Go on with that code, or "
            "set results to another folder to begin anew."
        )
    for key in (*of, *said):
        if key not in of or key not in said or said[key] != of[key]:
            raise RecordError(
                f"Expected {path} to be this run's; its {key} is {said.get(key)}, this run's is "
                f"{of.get(key)}. Put the run's own checkpoint there, or set results to another "
                "folder to begin anew."
            )


def files_of(state: Mapping[str, Any], kind: str) -> Mapping[str, Mapping[str, str]]:
    """Return the hashes of files that a state was saved with; {} if it says none.

    Args:
        state: from `load`.
        kind: OWN_CODE: of the user's code. PRETRAINED: of pretrained models.
    """
    said = state.get("of")
    theirs = said.get(kind, {}) if isinstance(said, Mapping) else {}
    return theirs if isinstance(theirs, Mapping) else {}


def _fault(file: IO[bytes]) -> str | None:
    """Return what is wrong with a file, comparing its last bytes with the hash of the rest."""
    left = os.fstat(file.fileno()).st_size - len(_MAGIC) - _DIGEST
    digest = hashlib.sha256()
    while left > 0 and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return None if file.read() == _MAGIC + digest.digest() else "its checksum does not match"
