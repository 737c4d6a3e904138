"""Execute runs of tables in parallel worker processes; if one dies, only its run is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpexp.distributed.pool import Board, Pool
from dpexp.reporting.collect import build
from dpexp.reporting.collect.cells import Job
from dpexp.reporting.collect.outcomes import log_path


def attempt(execute: build.Execute, results: Path, task: tuple[dict[str, Any], str]) -> str:
    """Return `build.attempt` of a config and its run's id."""
    return build.attempt(*task, execute, results)


def side_by_side(
    jobs: Sequence[Job],
    execute: build.Execute,
    results: Path,
    report: build.Report,
    board: Board,
    num_workers: int,
    num_threads: int,
) -> None:
    """Execute the runs that `build.missing` returned in worker processes, started in order.

    A run that another process is executing is left to it, and looked up once it has ended.

    Args:
        jobs: the runs.
        execute: see `build.Execute`; importable by name.
        results: the results folder.
        report: prints how each run ended.
        board: shows how far they are meanwhile.
        num_workers: >= 1.
        num_threads: see `Pool`.

    Raises:
        ConfigError: see `build.Report`.
    """
    do = partial(attempt, execute, results)
    queue, busy = list(reversed(jobs)), []
    running: dict[str, tuple[Job, float]] = {}
    with Pool(do, board, min(num_workers, len(jobs)), num_threads) as pool:
        while queue or pool.is_busy:
            while queue and not pool.is_full:
                job = queue.pop()
                if report.is_hopeless(job):
                    board.at(job.run_id, 1.0)
                else:
                    pool.begin(job.run_id, (job.config, job.run_id))
                    running[job.run_id] = job, time.perf_counter()
            for run, (reason, error) in pool.ended() if pool.is_busy else ():
                job, start = running.pop(run)
                if error is not None:
                    reason = str(error)
                    build.save(log_path(results, job.config or {}, run), reason + "\n")
                is_busy = reason.startswith(build.BUSY)
                board.at(run, 0.0 if is_busy else 1.0)
                if is_busy:
                    busy.append(job)
                else:
                    report.ended(job, reason, time.perf_counter() - start)
            if busy and not queue:
                time.sleep(build.PAUSE)
                queue, busy = busy, []
