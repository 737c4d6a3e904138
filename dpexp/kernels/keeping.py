"""Keep compiled kernels between processes, in the folder of caches.

A library is kept by its sources, the compiler's command and version, and the processor, which
`-march=native` compiles for. It is loaded only from a file and folder that nobody else can write,
and whose content has the SHA-256 that its name says.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from dpexp.records import RecordError, replace_file
from dpexp.records.caches import cache_dir
from dpexp.types import ConfigError

OTHERS = 0o022
"""Modes by which others could write."""

PROCESSOR = ("flags", "Features", "model name", "CPU ")
"""How lines of /proc/cpuinfo begin that tell one processor from another."""


def key_of(command: Sequence[str], sources: Sequence[Path]) -> str:
    """Return what a library is kept by; "" if it cannot be told.

    Args:
        command: the compiler, with its flags.
        sources: files that it compiles.
    """
    program = shutil.which(command[0])
    if program is None or not hasattr(os, "getuid"):
        return ""
    try:
        asked = [*command, "--version"]
        told = subprocess.run(asked, check=True, capture_output=True, timeout=10).stdout
        state = os.stat(program)
        parts = [source.read_bytes() for source in sources]
    except (OSError, subprocess.SubprocessError):
        return ""
    place = (os.path.realpath(program), state.st_size, state.st_mtime_ns, *command[1:])
    parts += [repr(place).encode(), told, processor().encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def find(key: str) -> Path | None:
    """Return the library that is kept by this key; None if there is none that can be trusted."""
    with suppress(OSError, ConfigError):
        for path in sorted(_folder().glob(f"{key}-*.so")):
            is_safe = all(_is_ours_alone(each) for each in (path, path.parent))
            if is_safe and path.stem == f"{key}-{_sha256(path.read_bytes())}":
                return path
    return None


def keep(key: str, library: bytes) -> None:
    """Keep a library, if its folder can be written."""

    def fill(file: IO[bytes]) -> None:
        os.fchmod(file.fileno(), 0o700)
        file.write(library)

    with suppress(OSError, RecordError, ConfigError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        replace_file(folder / f"{key}-{_sha256(library)}.so", fill)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _folder() -> Path:
    return cache_dir() / "kernels"


def _is_ours_alone(path: Path) -> bool:
    state = path.stat()
    return state.st_uid == os.getuid() and not state.st_mode & OTHERS


def processor() -> str:
    """Return what tells this machine's processor from another's."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return repr(platform.uname())
    return "\n".join(sorted({line for line in lines if line.startswith(PROCESSOR)}))
