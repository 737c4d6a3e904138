"""One process at a time does a run; whoever else wants it is told who does."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from dpexp.records.files import RecordError
from dpexp.records.record import locate

ATTEMPTS = 100
"""How often a folder may vanish as it is made before it is taken for one that cannot be."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system that cannot lock answers."""


class Busy(RecordError):
    """The run is being done elsewhere; one line says by whom."""


def path_of(root: str | Path, config: Mapping[str, Any]) -> Path:
    """Say where a run's lock is: results/<profile>/locks/<id>."""
    directory = locate(root, config)
    return directory.parent.with_name("locks") / directory.name


@contextmanager
def held(root: str | Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Hold a run's lock.

    The system releases it when its holder ends, however it ends, so that none is ever stale; on a
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
    file = _locked(path)
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    try:
        try:
            json.dump(holder, file)
            file.flush()
        except OSError as error:
            raise RecordError(f"Cannot write {path}: {error.strerror}.") from error
        yield
    finally:
        with suppress(OSError):  # a run refused before it began leaves nothing behind
            path.unlink()
            for folder in made:
                folder.rmdir()
        with suppress(OSError):  # of what could not be written; it is closed all the same
            file.close()


def _locked(path: Path) -> IO[str]:
    """Open and lock a file, again where its last holder has removed it or its folder."""
    for attempt in count():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < ATTEMPTS:
                continue
            raise RecordError(f"Cannot make {path}: {error.strerror}.") from error
        try:
            _lock(file, path)
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                file.truncate(0)
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: IO[str], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(f"Run {path.name} is being done {_holder(file)}.") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RecordError(f"Cannot lock {path}: {error.strerror}.") from error
        warnings.warn(
            f"The file system of {path} has no locks ({error.strerror}): start no run twice.",
            stacklevel=4,
        )


def is_held(root: str | Path, config: Mapping[str, Any]) -> bool:
    """Tell whether a run is being done."""
    try:
        with path_of(root, config).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or no locks
        return False
    return False


def _holder(file: IO[str]) -> str:
    """Word who holds a lock; its holder may be just about to write that down."""
    file.seek(0)
    try:
        who = json.load(file)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(who["since"]))
        return f"by process {who['pid']} on {who['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "by another process"
