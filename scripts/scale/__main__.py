"""Print what a private step costs on paper, from counted products, bytes and numbers sent.

    python -m scripts.scale                                  # the tables of docs/scale.md
    python -m scripts.scale network=12.5e9 single_peak=156e12
    python -m scripts.scale measure                          # prediction beside 1, 2, 3 CPU ranks

Words, each WORD=VALUE, are the fields of `scripts.scale.machine.Machine`, whose units and defaults
stand there. A step is: the passes and carriers of this GPU's micro-batches, what every GPU does
once a step, the optimizer, and what is sent, which waits for the sums and overlaps with nothing.
Exit code: 0; 2 for a mistake in what was asked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from dpexp.cli.arguments import exit_code_of
from scripts.scale.counts import (
    LLAMA,
    METHODS,
    ROBERTA,
    fixed_bytes,
    held_bytes,
    of_micro_batch,
)
from scripts.scale.machine import PARTS, Machine, parse, sent, step

NETWORKS = (ROBERTA, LLAMA)
GPUS = (1, 8, 64)
ETHERNET = 12.5e9  # bytes/s of a node, each way: one link of 100 Gbit/s


def tables(machine: Machine) -> str:
    """Return all tables in markdown."""
    return f"{counted()}\n\n{timed(machine)}\n\n{sending(machine)}"


def counted() -> str:
    """Return what is counted, whatever the machine."""
    rows = []
    for net in NETWORKS:
        for method in METHODS:
            works = [*of_micro_batch(net, method, 1)]
            passes = sum(work.flops for work in works if work.kind == "bfloat16")
            carriers = sum(work.flops for work in works) - passes
            released = sum(net.released(method))
            rows.append(
                [
                    net.name,
                    method,
                    f"{net.trained(method) / 1e6:,.0f} M",
                    f"{released / 1e6:,.1f} M",
                    f"{sum(net.shared(method)) / 1e6:,.1f} M",
                    f"{4e-6 * sent(net, method).numbers:,.0f} MB",
                    f"{passes / 1e12:.3g} TFLOP",
                    f"{carriers / 1e12:.3g} TFLOP",
                    f"{held_bytes(net, method) / 1e6:,.0f} MB",
                    f"{fixed_bytes(net, method) / 1e9:,.0f} GB",
                ]
            )
    return markdown(
        ["network", "method", "trained", "released", "prepared", "sent", "passes of an example",
         "its carriers and sums", "held an example", "held always"], rows, words=2,
    )  # fmt: skip


def timed(machine: Machine) -> str:
    """Return a step's seconds, and what they go to."""
    rows = []
    for net in NETWORKS:
        for method in METHODS:
            for gpus in GPUS:
                parts = step(net, method, gpus, machine)
                whole = sum(parts.values())
                shares = [f"{100 * parts[part] / whole:.0f} %" for part in PARTS]
                bound = max(PARTS, key=lambda part: parts[part])
                rows.append([net.name, method, bound, f"{gpus}", f"{whole:.3g} s", *shares])
    return markdown(["network", "method", "bound by", "GPUs", "step", *PARTS], rows, words=3)


def sending(machine: Machine) -> str:
    """Return the milliseconds of sending alone at the most GPUs, on two networks."""
    rows, slow = [], replace(machine, network=ETHERNET)
    for net in NETWORKS:
        for method in METHODS:
            told, gpus = sent(net, method), GPUS[-1]
            numbers = [
                machine.sending(told.numbers, gpus),
                slow.sending(told.numbers, gpus),
                machine.hopping(told.calls, gpus),
                machine.hopping(told.calls_by_block, gpus),
            ]
            rows.append([net.name, method, *(f"{1e3 * number:,.1f} ms" for number in numbers)])
    fast = f"bytes at {8e-9 * machine.network:,.0f} Gbit/s a node"
    head = ["network", "method", fast, f"at {8e-9 * ETHERNET:,.0f} Gbit/s",
            "hops", "hops, were it a call a block"]  # fmt: skip
    return markdown(head, rows, words=2)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """Lay a table out; its first columns are words, the rest numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def main(words: Sequence[str]) -> int:
    """Run the command; give its exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    if words[:1] == ["measure"]:
        from scripts.scale.measure import table  # takes torch's processes and minutes

        print(table())
    else:
        print(tables(parse(words)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
