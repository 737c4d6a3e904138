"""Train a run for its score alone; one that was interrupted goes on when it is asked for again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.distributed.ranks import Ranks, choose_device
from dpexp.privacy import PrivacyError
from dpexp.records.caches import cache_dir
from dpexp.training.parts import Parts
from dpexp.training.train import train
from dpexp.types import ConfigError

LONGEST = 30 * 24 * 3600
"""Seconds after which what an interrupted trial left is deleted (ours)."""


def result_of(
    config: dict[str, Any], parts: Parts, again: Callable[[], Parts], kind: str
) -> Mapping[str, Any]:
    """Train a run, keep nothing of it, and return its result.json.

    A trial that was interrupted left a checkpoint in the cache's folder. The next one of the same
    config and kind goes on from it, to the same result. Where it cannot, since the data or the code
    are others, or a killed process had lost a step, it begins anew.

    Args:
        config: of the run; `results` is changed.
        parts: built from it, and changed as `kind` says; they are trained.
        again: builds the like from nothing.
        kind: what sets this trial apart from a run of the same config, as a folder's name.

    Raises:
        ConfigError, PrivacyError, RecordError: as `train`.
    """
    with _folder(config, kind) as (folder, began):
        config["results"] = folder
        record = None
        try:
            record = _finished(config, parts)
        except (ConfigError, PrivacyError, records.RecordError):
            if not began:
                raise
        if record is None or (began and record.privacy.get("lost_steps")):
            shutil.rmtree(records.locate(folder, config), ignore_errors=True)
            record = _finished(config, again())
        shutil.rmtree(records.locate(folder, config), ignore_errors=True)
    result: dict[str, Any] = record.result
    return result


def _finished(config: dict[str, Any], parts: Parts) -> records.Record:
    """Train a run, or look it up if a process was stopped between its end and its score."""
    if (record := records.find(config["results"], config)) is None:
        train(config, parts, Ranks(0, 1, choose_device(config["device"])))
        record = records.find(config["results"], config)
    assert record is not None
    return record


@contextmanager
def _folder(config: Mapping[str, Any], kind: str) -> Iterator[tuple[str, bool]]:
    """Give a folder of results for this process alone, and whether the run was begun there.

    Where the cache cannot be written, or another process tries the same, it is a temporary one.
    """
    kept, began = cache_dir() / "trials" / kind, False
    _forget(kept)
    with ExitStack() as stack:
        try:
            stack.enter_context(records.held(kept, config))
            folder, began = str(kept), records.locate(kept, config).exists()
        except records.RecordError:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        yield folder, began


def _forget(folder: Path) -> None:
    """Delete what trials that nobody went on with left long ago."""
    with suppress(OSError):  # another process may be deleting them
        for run in folder.glob("*/runs/*"):
            if time.time() - max(path.stat().st_mtime for path in (run, *run.iterdir())) > LONGEST:
                shutil.rmtree(run, ignore_errors=True)
