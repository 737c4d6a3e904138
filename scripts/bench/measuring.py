"""Times and weighs the steps and runs that a command line of the bench asks for."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import pandas as pd
import torch

from dpexp.distributed import memory
from dpexp.distributed.ranks import choose_device
from dpexp.kernels import compiled
from dpexp.models.precision import resolve
from dpexp.records import describe_device, git_commit, versions, write_atomically
from dpexp.types import ConfigError
from scripts.bench import convolutions, gep, language, recipes, runs, vision
from scripts.bench.steps import UNIT, Case, Run
from scripts.bench.words import STEPS, whole

WEIGHINGS = 3

RESTRICTING = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "CC")
"""Variables that keep libraries from a CPU's newer instructions: a page says which are set."""

_CASES = vision.CASE, language.CASE, recipes.IMAGES, recipes.TEXTS, recipes.TUNED
CASES = dict(zip(STEPS, _CASES, strict=True))


def seconds(run: Run, device: torch.device) -> float:
    """Time one run."""
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def in_turns(steps: Mapping[str, Run], rounds: int, device: torch.device) -> pd.DataFrame:
    """Time every step once a round, each round beginning with the next one: [rounds, steps]."""
    names = list(steps)
    times = []
    for turn in range(rounds):
        first = turn % len(names)
        order = names[first:] + names[:first]
        times.append({name: seconds(steps[name], device) for name in order})
    return pd.DataFrame(times, columns=names)


def weigh(case: Case, name: str, batch: int, device: torch.device) -> float:
    """Return what taking steps adds to the memory in use before the first, in MB.

    The suite's steps keep freed pages, as its runs do. Others do not: their memory would be more.
    """
    step = case.build(batch, device)[name]()
    if step.once is not None:
        memory.keep_pages()
    memory.collect()
    memory.reset_peak(device)
    before = memory.peak_mb(device)
    for _ in range(3):
        step.run()
    return memory.peak_mb(device) - before


def weigh_apart(case: str, name: str, batch: int, device: torch.device) -> float:
    """Weigh a step in a process of its own."""
    command = [sys.executable, "-m", "scripts.bench", "--only", case, "--weigh", name]
    command += ["--batch", str(batch), "--device", str(device)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        complaint = (done.stderr.strip() or "no words").split("\n")[-1]
        raise ConfigError(
            f"Expected {name} to run by itself; got exit code {done.returncode}, and "
            f"{complaint!r}. Set a smaller --batch, or make room."
        )
    return float(done.stdout.split()[-1])


def measure(name: str, batch: int, rounds: int, device: torch.device) -> pd.DataFrame:
    """Measure every step of a case; one that this machine cannot run says why."""
    case = CASES[name]
    builders = case.build(batch, device)
    steps, notes = {}, dict.fromkeys(builders, "")
    for step, build in builders.items():
        try:
            steps[step] = build()
            steps[step].run()
        except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
            notes[step] = f"does not run: {str(error).splitlines()[0]}"
            steps.pop(step, None)
    times = in_turns({name: step.run for name, step in steps.items()}, rounds, device)
    once = {
        name: median(seconds(step.once, device) for _ in range(rounds))
        for name, step in steps.items()
        if step.once is not None
    }
    ratios = times.div(times[UNIT], axis=0)
    low, middle, high = (ratios.quantile(share) for share in (0.25, 0.5, 0.75))
    known = [*steps]
    if device.type == "cuda":
        steps.clear()  # their models need not lie beside the one that is weighed
        megabytes = pd.Series({step: weigh(case, step, batch, device) for step in known})
    else:
        weighed = [
            {step: weigh_apart(name, step, batch, device) for step in known}
            for _ in range(WEIGHINGS)
        ]
        megabytes = pd.DataFrame(weighed).median()
    goals = case.goals if device.type == "cpu" else {}
    rows = [
        {
            "step": step,
            "time": middle.get(step),
            "low": low.get(step),
            "high": high.get(step),
            "of which once a batch": once[step] / times[UNIT].median() if step in once else None,
            "time goal": goals.get(step, (None, None))[0],
            "memory": megabytes[step] / megabytes[UNIT] if step in megabytes else None,
            "memory goal": goals.get(step, (None, None))[1],
            "seconds": times[step].median() if step in times else None,
            "megabytes": megabytes.get(step),
            "note": notes[step],
        }
        for step in builders
    ]
    return pd.DataFrame(rows)


def place(device: torch.device) -> str:
    """Say on what and with what it was measured."""
    known, own = versions(), ""
    if device.type == "cpu":
        told = [f"{key}={os.environ[key]}" for key in RESTRICTING if key in os.environ]
        own = f"; {', '.join([torch.backends.cpu.get_cpu_capability(), *told])}"
        own += f"; {'with' if compiled() else 'without'} kernels of our own"
    return (
        f"{describe_device(device)}; torch {known['torch']}, Opacus {known['opacus']}{own}; "
        f"commit {git_commit()}."
    )


def preface(rounds: int, device: torch.device) -> str:
    """Say what was measured, on what and how."""
    weighed = f"for memory, of {WEIGHINGS} processes a step"
    if device.type == "cuda":
        weighed = "memory is what torch's allocator counts"
    return (
        f"{place(device)} Medians of {rounds} rounds side by side, with the range of the "
        f"middle half of them; {weighed}. The unit is the "
        "non-private step: forward, backward, gradient. A private step is everything but the "
        "optimizer; what of it is paid once a logical batch, however many micro-batches that has, "
        "stands beside it.\n"
    )


def markdown(table: pd.DataFrame, case: Case, batch: int, device: torch.device) -> str:
    """Write a case's table for people."""
    precision = resolve(case.precision, device)
    lines = [f"# One step of {case.title}, batch {batch}, {precision}", ""]
    lines += [case.notes, ""] if case.notes else []
    lines += [
        "| step | time | middle half | of which once a batch | goal | peak memory | goal |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table.to_dict("records"):
        cells = [
            _number(row["time"]) or row["note"],
            _range(row["low"], row["high"]),
            _number(row["of which once a batch"]),
            _number(row["time goal"], "≤ "),
            _number(row["memory"]),
            _number(row["memory goal"], "≤ "),
        ]
        lines.append(f"| {row['step']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _range(low: float | None, high: float | None) -> str:
    known = not (low is None or pd.isna(low) or low == high)
    return f"{low:.2f} – {high:.2f}" if known else ""


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None or pd.isna(value) else f"{sign}{value:.2f}"


def stem_of(device: torch.device, results: Path) -> Path:
    """Return how the paths of a device's pages begin, and make their folder.

    Raises:
        ConfigError: if that cannot be made.
    """
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    stem = results / "bench" / name.lower().replace(" ", "-")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Expected a folder for --results; got {error}.") from None
    return stem


def whole_runs(
    chosen: Sequence[str], arguments: argparse.Namespace, rounds: int, where: str
) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Measure whole runs; what every case reads is written first, so that none fails late."""
    with tempfile.TemporaryDirectory() as folder:
        root, prepared = Path(folder), []
        for kind in chosen:
            case = runs.CASES[kind]
            default = case.sizes
            sizes = runs.Sizes(
                train=arguments.examples or default.train,
                test=arguments.test or min(default.test, case.most_tested),
                batch=arguments.batch or default.batch,
            )
            told = case.write(root / kind, sizes.train, sizes.test)
            prepared.append((kind, case, sizes, told))
        for kind, case, sizes, data in prepared:
            contenders = case.contenders(sizes, root / kind)
            table = runs.measure(contenders, sizes, rounds, root)
            yield kind, table, runs.page(table, case, sizes, data, rounds, where)


@memory.in_one_line("the bench", "Set a smaller --batch.")
def run(arguments: argparse.Namespace) -> None:
    """Measure, print and write results/bench/<device>-<case>.md and .csv.

    Args:
        arguments: as `scripts.bench.words.read` returns them.
    """
    only, of_runs = arguments.only, whole(arguments.only)
    is_of_cpus = of_runs or only == "convolutions"
    device = torch.device("cpu") if is_of_cpus else choose_device(arguments.device)
    rounds = arguments.rounds or (5 if of_runs else 12)
    if arguments.weigh:
        print(weigh(CASES[only], arguments.weigh, arguments.batch, device))
        return
    memory.keep_pages()
    warnings.filterwarnings("ignore", message="Full backward hook")  # Opacus, on image inputs
    stem = stem_of(device, arguments.results)

    def write(kind: str, table: pd.DataFrame, text: str) -> None:
        write_atomically(f"{stem}-{kind}.csv", table.to_csv(index=False))
        write_atomically(f"{stem}-{kind}.md", text)
        print(text, flush=True)

    for kind, table, text in whole_runs(of_runs, arguments, rounds, place(device)):
        write(kind, table, text)
    for kind, case in CASES.items():
        if only in (None, kind):
            batch = arguments.batch or case.batch
            table = measure(kind, batch, rounds, device)
            text = f"{preface(rounds, device)}\n{markdown(table, case, batch, device)}"
            write(kind, table, text)
    if only in (None, "gep"):
        table = gep.measure(device, rounds=3)
        write("gep", table, f"{place(device)}\n{gep.markdown(table)}")
    if only == "convolutions" or (only is None and device.type == "cpu" and compiled()):
        table = convolutions.measure(rounds)
        write("convolutions", table, f"{place(device)}\n\n{convolutions.markdown(table, rounds)}")
