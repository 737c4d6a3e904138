"""Do runs side by side, with one bar for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dpexp.distributed.pool import Died, Ended, Pool
from dpexp.reporting.collect import build, workers
from dpexp.reporting.collect.cells import Job
from dpexp.training import progress
from dpexp.types import one_line

MEMORY_MB, SMALL_MB = 4500, 1500
"""Megabytes that a run may take (ours). The tables' runs of real data, and those of several views
of an image, take up to the first on a CPU; others of the embedded profile's own models take up to
1,400."""

SMALL = ("bert_tiny", "cnn", "linear", "wrn10_1")
"""The embedded profile's models (conf/profile/embedded.yaml) that are this small."""

Key = TypeVar("Key")

Say = Callable[[str], None]
"""Prints a line to standard output, above a bar."""


def number(configs: Sequence[Mapping[str, Any]], asked: int | None) -> int:
    """Return how many of some runs to do side by side.

    One a core, as far as memory goes; one where there is a GPU or where a run has several ranks.

    Args:
        configs: the runs'.
        asked: by the user, >= 1; None if they leave it open.
    """
    import torch  # only where runs are missing

    from dpexp.distributed import memory
    from dpexp.distributed.cores import cores

    if asked is None:
        room = memory.room_mb(torch.device("cpu"), 1)
        most = max(map(_memory_mb, configs), default=0)
        fitting = cores() if room is None else int(room // most)
        has_gpu = torch.cuda.is_available() and any(c.get("device") != "cpu" for c in configs)
        shares = not has_gpu and all(c.get("ranks", 1) in (1, "auto") for c in configs)
        asked = max(1, min(cores(), fitting)) if shares else 1
    return min(asked, len(configs))


def _memory_mb(config: Mapping[str, Any]) -> int:
    profile, model = ((config.get(group) or {}).get("name") for group in ("profile", "model"))
    is_small = profile == "embedded" and model in SMALL and not config.get("augmentation")
    return SMALL_MB if is_small else MEMORY_MB


def of_jobs(jobs: Sequence[Job], asked: int | None) -> int:
    """Return `number` for the runs of a table."""
    return number([job.config or {} for job in jobs], asked)


def batches(jobs: Sequence[Job], asked: int | None) -> list[Sequence[Job]]:
    """Return runs in batches, those apart that memory lets go in more processes than all."""
    small = [job for job in jobs if _memory_mb(job.config or {}) == SMALL_MB]
    if not small or of_jobs(small, asked) <= of_jobs(jobs, asked):
        return [jobs] if jobs else []
    return [small, [job for job in jobs if _memory_mb(job.config or {}) != SMALL_MB]]


def run(
    parts: Sequence[tuple[Sequence[Job], int | None]], results: Path, stop_at_mistake: bool
) -> None:
    """Do the runs that `build.missing` returned, in processes that share the cores.

    Args:
        parts: runs and the processes to do them in, one part after the other; see `number`.
        results: the results folder.
        stop_at_mistake: see `build.Report`.

    Raises:
        ConfigError: see `build.Report`.
    """
    from dpexp.cli.errors import WARNED
    from dpexp.cli.execution import execute, saying
    from dpexp.distributed.cores import cores
    from dpexp.training.overview import Overview

    total, do = sum(len(jobs) for jobs, _ in parts), partial(saying, execute)
    with closing(Overview(total, said=WARNED)) as overview:
        report = build.Report(total, results, overview.report, stop_at_mistake)
        for some, asked in parts:
            for jobs in batches(some, asked):
                num = of_jobs(jobs, asked)
                threads = max(1, cores() // num)
                workers.side_by_side(jobs, do, results, report, overview, num, threads)


def each(
    do: Callable[[Any], Any],
    tasks: Mapping[Key, Any],
    num: int,
    take: Callable[[Key, Ended, Say], None],
    is_wanted: Callable[[Key], bool] = lambda key: True,
) -> None:
    """Do tasks side by side, begun in order.

    Args:
        do: does a task; importable by name where num > 1.
        tasks: by key, what `do` takes; it can be pickled where num > 1.
        num: of processes; 1 is this one.
        take: takes a task's key as soon as it has ended, its end, and what prints a line.
        is_wanted: whether a task that has not begun is still to be done.

    Raises:
        Exception: what `take` raises. A user's mistake ends all, as does an error in taking what
            a task gave. After any other error, such as that of a process that died, the other tasks
            are done first; each error is said at once.
    """
    from dpexp.cli.errors import WARNED
    from dpexp.cli.execution import saying
    from dpexp.distributed.cores import cores
    from dpexp.training.overview import Overview

    failed: list[Exception] = []
    if num == 1:
        for key, task in tasks.items():
            if is_wanted(key):
                _take(take, key, _attempt(do, task), _say, failed)
        _end(failed)
        return
    queue = list(reversed(list(enumerate(tasks))))
    keys = {str(place): key for place, key in queue}
    with (
        closing(Overview(len(tasks), said=WARNED)) as overview,
        Pool(partial(saying, do), overview, num, max(1, cores() // num)) as pool,
    ):
        while queue or pool.is_busy:
            while queue and not pool.is_full:
                place, key = queue.pop()
                if is_wanted(key):
                    pool.begin(str(place), tasks[key])
                else:
                    overview.at(str(place), 1.0)
            ends = pool.ended() if pool.is_busy else []
            for name, ended in sorted(ends, key=_is_error):  # last, as it may end all
                overview.at(name, 1.0)
                _take(take, keys[name], ended, overview.report, failed)
    _end(failed)


def _take(
    take: Callable[[Key, Ended, Say], None],
    key: Key,
    ended: Ended,
    say: Say,
    failed: list[Exception],
) -> None:
    """Take an end; put a task's error by that says nothing about other tasks, and was `named`.

    An error in taking what a task gave, as of a full disk, would meet the others, too.
    """
    from dpexp.cli.errors import mistake

    try:
        take(key, ended, say)
    except Exception as error:
        if ended.error is None or (mistake(error) is not None and not isinstance(error, Died)):
            raise
        failed.append(error)
        where = "" if isinstance(error, Died) else f" {error.__notes__[-1]}"  # see `named`
        progress.say(f"failed: {one_line(error)}{where}")


def _end(failed: Sequence[Exception]) -> None:
    if not failed:
        return
    if len(failed) > 1:
        failed[0].add_note(f"{len(failed) - 1} more failed, as said above.")
    raise failed[0]


def named(name: str, error: Exception) -> Exception:
    """Return a task's error to be raised; that its process died is said of its name."""
    if isinstance(error, Died):
        return Died(f"{name}: {error}")
    error.add_note(f"In {name}.")
    return error


def _is_error(end: tuple[str, Ended]) -> bool:
    return end[1].error is not None


def _attempt(do: Callable[[Any], Any], task: Any) -> Ended:
    try:
        return Ended(do(task))
    except Exception as error:
        return Ended(error=error)


def _say(line: str) -> None:
    print(line, flush=True)
