"""Composed configs, kept between commands: composing one takes Hydra an eighth of a second.

An entry is named by all that decides it: the words, every file of conf but the artifacts', the
environment that conf asks for, and the versions of what composes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import hydra
import omegaconf

import run
from dpexp.caches import cache_dir
from dpexp.records import RecordError, write_atomically
from scripts import settings

KEPT = 4
"""Trees of conf whose entries stay: those of a few checkouts or branches."""


class Configs:
    """Composes configs as `run.compose` does, each once."""

    def __init__(self, conf: Path = run.CONF) -> None:
        """Take the folder of config groups."""
        self._conf = conf

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Give the plain config that these overrides compose to; raises as `run.compose` does."""
        name = hashlib.sha256(os.fsencode("\0".join(map(_meant, words)))).hexdigest()[:32]
        entry = self._folder / f"{name}.json"
        with suppress(OSError, ValueError):
            return json.loads(entry.read_text(encoding="utf-8"))
        config = run.compose(words)
        text = json.dumps(config)
        if json.loads(text) == config:
            # A folder that cannot be written costs time, not the run.
            with suppress(OSError, RecordError):
                entry.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(entry, text)
        return config

    @cached_property
    def _folder(self) -> Path:
        digest = hashlib.sha256(f"{hydra.__version__} {omegaconf.__version__}".encode())
        for module in (run, settings):
            digest.update(Path(module.__file__).read_bytes())
        for path in sorted(self._conf.rglob("*.yaml")):
            place = path.relative_to(self._conf)
            if place.parts[0] == "artifact":
                continue
            content = path.read_bytes()
            digest.update(f"\0{place.as_posix()}\0{len(content)}\0".encode() + content)
            for variable in re.findall(r"oc\.env:\s*(\w+)", content.decode()):
                found = _meant(f"{variable}={os.environ.get(variable)}")
                digest.update(os.fsencode(f"\0{found}"))
        folder = cache_dir() / "configs" / digest.hexdigest()[:16]
        if not folder.is_dir():
            _forget(folder.parent)
        return folder


def _meant(word: str) -> str:
    """Name the folder that a word means in this environment, beside what it says."""
    value = word.partition("=")[2].strip("'\"")
    known = os.path.expanduser(os.path.expandvars(value))
    return word if known == value else f"{word}\0{known}"


def _forget(root: Path) -> None:
    """Leave the entries of the trees of conf that were used last."""
    folders = [path for path in root.glob("*") if path.is_dir()]
    for folder in sorted(folders, key=lambda path: path.stat().st_mtime)[: -KEPT + 1]:
        shutil.rmtree(folder, ignore_errors=True)
