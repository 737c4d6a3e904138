"""A case's page for people."""

from __future__ import annotations

import pandas as pd
import torch

from dpexp.records.rounded import at_most
from scripts.bench.runs.cases import DELTA, EPS, Case, Sizes
from scripts.bench.runs.measure import against_peers

HEAD = (
    "| run | time | middle half | start-up | loop | goal | peak memory | steps | trained | "
    "accuracy | ε |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)


def page(table: pd.DataFrame, case: Case, sizes: Sizes, data: str, rounds: int, where: str) -> str:
    """Return the page of what `measure` returned.

    Args:
        table: of `measure`.
        case: which.
        sizes: of every run.
        data: what the examples are.
        rounds: that were run.
        where: on and with what it was measured.
    """
    unit = table["seconds"].iloc[0]
    lines = [
        f"{where} Medians of {rounds} rounds in turns, with the range of the middle half of them. "
        "A run is a process from its start to its exit: imports, data, calibration, training, one "
        "evaluation at the end, checkpoint and record. dpexp's cache begins empty, but in a second "
        "run, which finds a first one's compiled kernels, decoded data and noise. The unit is "
        f"the run in plain PyTorch without privacy: {unit:.1f} s. Start-up is all that is outside "
        "of the loop, which is training and evaluation by a run's own clock; so a longer run takes "
        "the same start-up and more of the loop.",
        "",
        f"# Whole runs of {case.title}",
        "",
        f"{data[0].upper()}{data[1:]}. {sizes.steps} steps of {sizes.batch} examples (expected, "
        "where sampling is by Poisson); epochs: "
        f"{sizes.epochs}; float32; private runs at ε = {EPS:g}, δ = {DELTA:g}; threads: "
        f"{torch.get_num_threads()}. {case.notes}",
        "",
        *HEAD,
        *(_row(row) for row in table.to_dict("records")),
    ]
    if found := against_peers(table):
        ratio, peer = found
        lines += ["", f"DP-SGD takes {ratio:.2f} of {peer}, the fastest private peer; goal ≤ 0.50."]
    return "\n".join(lines) + "\n"


def _row(row: dict) -> str:
    known = {key: value for key, value in row.items() if not pd.isna(value)}
    if "time" not in known:
        return f"| {row['contender']} | {row['note']} |" + " |" * 9
    has_range = known["low"] != known["high"]
    cells = [
        f"{known['time']:.2f}",
        f"{known['low']:.2f} – {known['high']:.2f}" if has_range else "",
        f"{known['start']:.2f}",
        f"{known['loop']:.2f}",
        f"≤ {known['goal']:.2f}" if "goal" in known else "",
        f"{known['memory']:.2f}",
        f"{known['steps']:.0f}",
        f"{known['trained_parameters']:,.0f}",
        f"{known['accuracy']:.1f}",
        at_most(known["epsilon"], 2) if "epsilon" in known else "",
    ]
    return f"| {row['contender']} | {' | '.join(cells)} |"
