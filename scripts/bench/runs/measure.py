"""Measure a case: all contenders in turns, each run in a process of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from scripts.bench.runs import children
from scripts.bench.runs.cases import DP_SGD, PEERS, SECOND, UNIT, Contender, Sizes

TIMED = ("seconds", "cpu_seconds", "loop_seconds", "megabytes")
TOLD = ("steps", "parameters", "trained_parameters", "accuracy", "epsilon", "delta", "sampling")


def measure(
    contenders: Mapping[str, Contender], sizes: Sizes, rounds: int, folder: Path
) -> pd.DataFrame:
    """Run every contender once a round, each round beginning with the next one.

    A second run is preceded by a first, which is not measured. Later rounds go on from its cache.

    Args:
        contenders: by name, the unit among them.
        sizes: of every run.
        rounds: at least 1.
        folder: an empty one, for what the runs write; each run's is deleted after it.

    Returns:
        A row for every contender: see `summary`.

    Raises:
        ConfigError: if a contender failed, or did not do all of the work.
    """
    names = [name for name, contender in contenders.items() if contender.is_there]
    found = []
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            cache = folder / "cache" / name if name.endswith(SECOND) else None
            if cache and not cache.exists():
                _run(name, contenders[name], sizes, folder, cache)
            outcome = _run(name, contenders[name], sizes, folder, cache)
            print(f"round {turn + 1}: {name}: {outcome['seconds']:.1f} s", file=sys.stderr)
            found.append({"round": turn, "contender": name, **outcome})
    return summary(contenders, found)


def _run(
    name: str, contender: Contender, sizes: Sizes, folder: Path, cache: Path | None
) -> dict[str, Any]:
    """Run a contender in a folder of its own, which is deleted after it."""
    outcome = children.run(name, contender, sizes, folder / "run", cache)
    shutil.rmtree(folder / "run")
    return outcome


def summary(
    contenders: Mapping[str, Contender], found: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """Return medians over rounds, times and memory in multiples of the unit's of the same round.

    Args:
        contenders: by name; one that was not run has a note instead.
        found: every run: its round, contender, and what `children.run` returns.

    Returns:
        A row for every contender with time, low and high (the middle half of the rounds), start and
        loop (before the first step, and by its own clock), memory, goal, the medians of what was
        measured, and what the runs said of steps, parameters, accuracy and eps.
    """
    runs = pd.DataFrame(found)
    runs["start_seconds"] = runs["seconds"] - runs["loop_seconds"]
    units = runs[runs["contender"] == UNIT].set_index("round")
    of_unit = runs["round"].map(units["seconds"])
    for part, seconds in (
        ("time", "seconds"),
        ("start", "start_seconds"),
        ("loop", "loop_seconds"),
    ):
        runs[part] = runs[seconds] / of_unit
    runs["memory"] = runs["megabytes"] / runs["round"].map(units["megabytes"])
    by_name = dict(list(runs.groupby("contender")))
    rows = []
    for name, contender in contenders.items():
        row: dict[str, Any] = {"contender": name, "goal": contender.goal, "note": ""}
        if name not in by_name:
            rows.append(row | {"note": "not installed"})
            continue
        own = by_name[name]
        row |= {"low": own["time"].quantile(0.25), "high": own["time"].quantile(0.75)}
        medians = ("time", "start", "loop", "memory", "start_seconds", *TIMED)
        row |= {key: own[key].median() for key in medians}
        row |= {key: own[key].iloc[-1] for key in TOLD if key in own}
        rows.append(row | {"accuracy": own["accuracy"].median()})
    columns = ["contender", "time", "low", "high", "start", "loop", "goal", "memory"]
    columns += ["start_seconds", *TIMED, *TOLD, "note"]
    return pd.DataFrame(rows).reindex(columns=columns)


def against_peers(table: pd.DataFrame) -> tuple[float, str] | None:
    """Return DP-SGD's time over that of the fastest private peer, and its name; None without."""
    times = table.set_index("contender")["time"].dropna()
    peers = times.reindex(PEERS).dropna()
    if peers.empty or DP_SGD not in times:
        return None
    return times[DP_SGD] / peers.min(), str(peers.idxmin())
