"""A lock per run, so that only one process executes it."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, lock_descriptor

from dpexp.records.files import RecordError, unmade
from dpexp.records.record import locate
from dpexp.warned import warn_caller

ATTEMPTS = 100
"""Attempts to create the lock file while other processes keep removing its folder."""

MOMENT = 0.2
"""Seconds (ours) to wait for a lock: `is_held` takes it for an instant, and a process that has
just finished removes the file others wait for."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Error codes of a file system without locks."""


class Busy(RecordError):
    """Another process is executing the run; the message names it."""


def path_of(root: str | Path, config: Mapping[str, Any]) -> Path:
    """Return the path of a run's lock: locks/<id> beside the folder of runs."""
    directory = locate(root, config)
    return directory.parent.with_name("locks") / directory.name


@contextmanager
def held(root: str | Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Hold a run's lock.

    The operating system releases it when the process ends, in whatever way, so no lock is stale.
    A file system shared by machines releases it once it considers the holder's machine lost.

    Args:
        root: the results folder.
        config: of the run.

    Raises:
        Busy: another process holds it.
        RecordError: the file cannot be written.
    """
    path = path_of(root, config)
    # os.path.exists, unlike Path.exists, raises nothing for a name that is too long.
    made = [folder for folder in path.parents if not os.path.exists(folder)]
    # No soft lock: its file would outlive a killed holder.
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
        with suppress(OSError):  # leave no empty folders behind
            path.unlink()
            for folder in made:
                folder.rmdir()
        with suppress(OSError):  # the operating system releases it anyway when the process ends
            lock.release()


def is_held(root: str | Path, config: Mapping[str, Any]) -> bool:
    """Return whether a process is executing the run."""
    try:
        with path_of(root, config).open("r+") as file:  # network disks cannot lock read-only files
            return not lock_descriptor(file.fileno(), blocking=False)
    except OSError:  # no lock file, or no locks
        return False


def _acquire(lock: FileLock, path: Path) -> None:
    """Take a lock; try again if its last holder removed the folder."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            lock.acquire()
            return
        except Timeout:
            raise Busy(
                f"Run {path.name} is being executed {_holder(path)}. Wait for it: the same command "
                "then looks it up."
            ) from None
        except OSError as error:
            # mkdir says of a folder that was there, and is gone when it looks again, that it exists
            is_gone = isinstance(error, FileNotFoundError | FileExistsError)
            if is_gone and attempt < ATTEMPTS:
                continue
            if error.errno not in NO_LOCKS:
                raise unmade(path, error) from error
            warn_caller(
                f"The file system of {path} has no locks ({error.strerror}): do not start a run "
                "twice at the same time."
            )
            return


def _holder(path: Path) -> str:
    """Describe a lock's holder, which may not have written its details yet."""
    try:
        who = json.loads(path.read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(who["since"]))
        return f"by process {who['pid']} on {who['host']} since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "by another process"
