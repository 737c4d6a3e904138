"""What stands for a run's data in its name: a hash that nobody can compute without a key.

A run's id is a hash of its config, which is to be published. A plain hash of the data in it would
let whoever knows all examples but one confirm a guess at that one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from dpexp.types import ConfigError, one_line

KEY = ".data_key"
"""File of a results folder, drawn once and at random; not to be published."""


def keyed(results: str | Path, fingerprint: str) -> str:
    """Return a fingerprint's HMAC-SHA-256, in hex, by the key of a results folder.

    Args:
        results: the folder; it and its key are made where they are missing.
        fingerprint: of the data, in hex.

    Raises:
        ConfigError: the key can neither be read nor made.
    """
    path = Path(results) / KEY
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path)
        key = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Expected results to be a folder of one's own; {path} cannot be read or made "
            f"({one_line(error)[:200]}). Set results."
        ) from error
    return hmac.new(key, fingerprint.encode(), hashlib.sha256).hexdigest()


def _make(path: Path) -> None:
    """Write a key, whole, for its owner alone to read; where another was first, that stays."""
    mine = path.with_name(f"{KEY}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(mine, path)
    finally:
        mine.unlink(missing_ok=True)
