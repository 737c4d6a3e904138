"""Do the runs of tables and figures side by side, with one bar for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dpexp.reporting.collect import build, workers
from dpexp.reporting.collect.cells import Job

MEMORY_MB = 4000
"""Megabytes that a run may take (ours): the tables' runs of real data take up to that on a CPU."""


def number(jobs: Sequence[Job], asked: int | None) -> int:
    """Return how many of some runs to do side by side.

    One a core, as far as memory goes; one where there is a GPU or where a run has several ranks.

    Args:
        jobs: the runs.
        asked: by the user, >= 1; None if they leave it open.
    """
    import torch  # only where runs are missing

    from dpexp.distributed import memory
    from dpexp.distributed.cores import cores

    if asked is None:
        room = memory.room_mb(torch.device("cpu"), 1)
        fitting = cores() if room is None else int(room // MEMORY_MB)
        configs = [job.config or {} for job in jobs]
        has_gpu = torch.cuda.is_available() and any(c.get("device") != "cpu" for c in configs)
        shares = not has_gpu and all(c.get("ranks", 1) in (1, "auto") for c in configs)
        asked = max(1, min(cores(), fitting)) if shares else 1
    return min(asked, len(jobs))


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
    from dpexp.cli.execution import execute_saying
    from dpexp.distributed.cores import cores
    from dpexp.training.overview import Overview

    total = sum(len(jobs) for jobs, _ in parts)
    with closing(Overview(total)) as overview:
        report = build.Report(total, results, overview.report, stop_at_mistake)
        for jobs, asked in parts:
            if jobs:
                num = number(jobs, asked)
                threads = max(1, cores() // num)
                workers.side_by_side(jobs, execute_saying, results, report, overview, num, threads)
