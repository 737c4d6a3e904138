"""What artifacts will cost on this machine, as lines to print before anything is run."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from dpexp import records
from dpexp.cli.cost_model import Cost, CostModel, total
from dpexp.reporting.collect.build import duration
from dpexp.reporting.collect.outcomes import DONE, NOT_BUILT, Outcome
from dpexp.reporting.schema.artifact import Key
from dpexp.types import counted

if TYPE_CHECKING:
    import torch

SUSTAINED = 5e12
"""FLOP/s of a GPU under private training in float32: about a quarter of an A100's 19.5e12."""


def hours(
    what: str,
    wanted: Mapping[str, Sequence[dict[str, Any]]],
    costs: CostModel,
    device: torch.device,
    pace: float | None,
) -> Iterator[str]:
    """Return a table in Markdown, line by line: hours that the runs of each take, and the total.

    A run that several share counts for the first of them.

    Args:
        what: the names are of, "Artifact" or "Cell".
        wanted: name -> configs of the runs to do.
        costs: estimates runs.
        device: at hand.
        pace: FLOP/s that a GPU sustains, to turn FLOPs into GPU-hours on a CPU; None: `SUSTAINED`.
    """
    is_gpu, pace = device.type == "cuda", pace or SUSTAINED
    yield f"| {what} | Runs | {'GPU' if is_gpu else 'Core'}-hours here | PFLOP |" + (
        "" if is_gpu else " GPU-hours |"
    )
    yield "| --- | ---: | ---: | ---: |" + ("" if is_gpu else " ---: |")

    def line(name: str, some: Sequence[Cost]) -> str:
        cost = total(some)
        gpu = cost.on_gpu(pace)
        more = "" if is_gpu else f" {'–' if gpu is None else _short(gpu / 3600)} |"
        numbers = f"{_short((cost.seconds or 0.0) / 3600)} | {_short((cost.flops or 0.0) / 1e15)}"
        return f"| {name} | {len(some)} | {numbers} |{more}"

    below = [f"Device: {records.describe_device(device)}{'' if is_gpu else ', one core of it'}."]
    if not is_gpu:
        below.append(
            f"No GPU is here: GPU-hours are FLOPs at {pace:.3g} FLOP/s; flops= sets another pace. "
            "–: torch counts no FLOPs of most of the work."
        )
    yield from _lines(wanted, costs, line, below)


def times(
    wanted: Mapping[str, Sequence[dict[str, Any]]], costs: CostModel, device: torch.device
) -> Iterator[str]:
    """Return a table in Markdown, line by line: the time of each artifact's runs, and the total.

    A run that several share counts for the first of them.

    Args:
        wanted: artifact's name -> configs of the runs to do.
        costs: estimates runs, by records of like ones or steps that are timed.
        device: at hand.
    """
    yield "| Artifact | Runs | One after another | Memory |"
    yield "| --- | ---: | ---: | ---: |"

    def line(name: str, some: Sequence[Cost]) -> str:
        seconds = sum(cost.seconds or 0.0 for cost in some)
        most = max((cost.megabytes or 0.0 for cost in some), default=0.0)
        return f"| {name} | {len(some)} | {duration(seconds)} | {most:,.0f} MB |"

    below = f"Device: {records.describe_device(device)}, all of it. Runs side by side take less."
    yield from _lines(wanted, costs, line, [below])


def _lines(
    wanted: Mapping[str, Sequence[dict[str, Any]]],
    costs: CostModel,
    line: Callable[[str, Sequence[Cost]], str],
    below: Iterable[str],
) -> Iterator[str]:
    """Yield a line a name, of its runs but for those of a name before it; total, and notes."""
    every: dict[str, list[Cost]] = {}
    known: set[str] = set()
    for name, configs in wanted.items():
        ids = {records.run_id(config): config for config in configs}
        every[name] = [costs.cost(config) for key, config in ids.items() if key not in known]
        known |= ids.keys()
        yield line(name, every[name])
    yield line("**total**", list(chain(*every.values())))
    yield ""
    yield from below
    unknown = {cost.why: name for name, some in every.items() for cost in some if cost.why}
    yield from (f"Not in it, {name}: {why}" for why, name in unknown.items())
    yield from _without(chain(*every.values()))


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def cells(outcomes: Sequence[Outcome], costs: CostModel, width: int | None = None) -> list[str]:
    """Return the plan's lines: for each cell what is done and what the rest takes, then totals.

    Args:
        outcomes: of every run.
        costs: estimates runs.
        width: columns of the terminal, where a cell's name breaks; None: it never does.
    """
    table = [("cell", "runs done", "a run takes", "memory", "as known from")]
    to_do: dict[str, Cost] = {}
    for items in _by_cell(outcomes):
        job = items[0].job
        done = sum(item.status == DONE for item in items)
        if items[0].status == NOT_BUILT:
            table.append((job.name, f"0 of {len(items)}", "", "", f"not built: {job.not_built}"))
            continue
        cost = _taken(items) if done == len(items) else costs.cost(job.config or {})
        fresh = {item.job.run_id for item in items if item.status != DONE} - to_do.keys()
        to_do |= dict.fromkeys(fresh, cost)
        time = "" if cost.seconds is None else duration(cost.seconds)
        memory = "" if cost.megabytes is None else f"{cost.megabytes:,.0f} MB"
        table.append((job.name, f"{done} of {len(items)}", time, memory, cost.source))
    return [*_columns(table, width), "", *_totals(outcomes, list(to_do.values()))]


def _taken(outcomes: Sequence[Outcome]) -> Cost:
    """Return what finished runs took on the machines where they ran."""
    results = [outcome.result for outcome in outcomes if outcome.result]
    seconds = statistics.median(result["wall_s"] for result in results)
    megabytes = max(result["peak_memory_mb"] for result in results)
    return Cost(seconds, None, megabytes, "its records")


def _by_cell(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    cells: dict[Key, list[Outcome]] = {}
    for item in outcomes:
        cells.setdefault(item.job.cell, []).append(item)
    return list(cells.values())


def _totals(outcomes: Sequence[Outcome], to_do: Sequence[Cost]) -> list[str]:
    done = sum(item.status == DONE for item in outcomes)
    known = [cost for cost in to_do if cost.seconds is not None]
    rest = len(outcomes) - done - len(to_do)
    other = f", {rest} not built or shared with another cell" if rest else ""
    lines = [f"{counted(len(outcomes), 'run')}: {done} done, {len(to_do)} to do{other}."]
    if known:
        total = duration(sum(cost.seconds or 0.0 for cost in known))
        most = max(cost.megabytes or 0.0 for cost in known)
        lines.append(f"To do, one after another: about {total}, at most {most:,.0f} MB.")
    if len(known) < len(to_do):
        lines.append(f"No estimate for {len(to_do) - len(known)} of them.")
    return lines + list(dict.fromkeys(cost.why for cost in to_do if cost.why)) + _without(to_do)


def _without(costs: Iterable[Cost]) -> list[str]:
    """Return a line that names what is not counted of these, or none."""
    named = dict.fromkeys(word for cost in costs for word in cost.without)
    return [f"Not counted: {', '.join(named)}."] if named else []


LEAST_NAME = 24
"""Columns of a cell's name at least (ours)."""


def _columns(table: Sequence[tuple[str, ...]], most: int | None) -> list[str]:
    """Return a table's lines; where they are longer than a terminal's, names go over several."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    over = 0 if most is None else sum(widths) + 2 * (len(widths) - 1) - most
    if over > 0:
        widths[0] = max(widths[0] - over, LEAST_NAME)
    lines = []
    for name, *rest in table:
        first, *more = textwrap.wrap(name, widths[0], break_long_words=False) or [""]
        words = zip((first, *rest), widths, strict=True)
        lines.append("  ".join(word.ljust(width) for word, width in words).rstrip())
        lines += [f"  {line}" for line in textwrap.wrap(" ".join(more), max(widths[0] - 2, 1))]
    return lines
