"""One process at a time does a run; whoever else wants it is told who does."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, lock_descriptor

from dpexp.records.files import RecordError
from dpexp.records.record import locate

ATTEMPTS = 100
"""How often a folder may vanish as it is made before it is taken for one that cannot be."""

MOMENT = 0.2
"""Seconds (ours) that a lock is waited for: `is_held` takes it for an instant, and who has just
ended its run removes the file that others wait at."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system that cannot lock answers."""


class Busy(RecordError):
    """The run is being done elsewhere; one line says by whom."""


def path_of(root: str | Path, config: Mapping[str, Any]) -> Path:
    """Return where a run's lock is: results/<profile>/locks/<id>."""
    directory = locate(root, config)
    return directory.parent.with_name("locks") / directory.name


@contextmanager
def held(root: str | Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Hold a run's lock.

    The system releases it when its holder ends, however it ends, so that none is ever stale. On a
    file system shared by machines it does so once it has given the holder's machine up.

    Args:
        root: the results folder.
        config: of the run.

    Raises:
        Busy: another process holds it.
        RecordError: the file cannot be written.
    """
    path = path_of(root, config)
    made = [folder for folder in path.parents if not os.path.exists(folder)]  # no name's too long
    # A file that stands for a lock where there is none would outlive a killed holder.
    lock = FileLock(path, timeout=MOMENT, poll_interval=MOMENT / 10, fallback_to_soft=False)
    _acquire(lock, path)
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    try:
        try:
            path.write_text(json.dumps(holder))
        except OSError as error:
            raise RecordError(f"Cannot write {path}: {error.strerror}.") from error
        yield
    finally:
        with suppress(OSError):  # a run refused before it began leaves nothing behind
            path.unlink()
            for folder in made:
                folder.rmdir()
        with suppress(OSError):  # the system releases it all the same when the process ends
            lock.release()


def is_held(root: str | Path, config: Mapping[str, Any]) -> bool:
    """Return whether a run is being done."""
    try:
        with path_of(root, config).open("r+") as file:  # network disks lock no file read only
            return not lock_descriptor(file.fileno(), blocking=False)
    except OSError:  # no lock file, or no locks
        return False


def _acquire(lock: FileLock, path: Path) -> None:
    """Take a lock, again where its last holder has removed its folder."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            lock.acquire()
            return
        except Timeout:
            raise Busy(f"Run {path.name} is being done {_holder(path)}.") from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < ATTEMPTS:
                continue
            if error.errno not in NO_LOCKS:
                raise RecordError(f"Cannot make {path}: {error.strerror}.") from error
            warnings.warn(
                f"The file system of {path} has no locks ({error.strerror}): start no run twice.",
                stacklevel=4,
            )
            return


def _holder(path: Path) -> str:
    """Word who holds a lock; its holder may be just about to write that down."""
    try:
        who = json.loads(path.read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(who["since"]))
        return f"by process {who['pid']} on {who['host']} since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "by another process"
