"""Hold the prediction to steps measured on 1, 2 and 3 ranks of this machine's cores.

What is calibrated: on one rank the rate of products, from DP-SGD alone, the speed of memory, of
noise and of a QR; on two, Gloo's speed and its hop. Every other number is predicted.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpexp.data.text import Encoded, Texts
from dpexp.distributed.processes import launch
from dpexp.distributed.ranks import Ranks
from dpexp.linalg import orthonormal_columns
from dpexp.methods.dpsgd import DPSGD
from dpexp.models.language import TextClassifier, from_scratch
from dpexp.privacy import whole_batch
from dpexp.privacy.privatize import add_noise_
from dpexp.training.gradient import PrivateGradient
from dpexp.types import Key, Method, Release
from scripts.bench.steps import lsg, rgp
from scripts.scale.__main__ import markdown
from scripts.scale.counts import METHODS, Network, of_micro_batch
from scripts.scale.machine import Machine, step

SMALL = Network("small", 2, 512, 2048, False, (1000, 34, 1), ((512, 512), (2, 512)), tokens=32,
                batch=24, micro_batch=4)  # fmt: skip
SIZES = (1, 2, 3)
FEW, MANY = 2**10, 2**22  # numbers: what Gloo waits for, what it sends


def model_of(net: Network) -> TextClassifier:
    """Build a network of these shapes with random weights."""
    torch.manual_seed(0)
    return from_scratch(
        architecture="roberta",
        layers=net.layers,
        width=net.width,
        attention_heads=net.width // 64,
        feed_forward=net.feed_forward,
        vocabulary=net.tables[0],
        pooling="first",
        feature_norm=1.0,
        head_std=0.02,
        head_layers=len(net.head),
        dropout=0.0,
        precision="float32",
        checkpointing=False,
        num_classes=net.head[-1][0],
        max_length=net.tables[1] - 2,
    )


def texts_of(net: Network) -> Texts:
    """Draw a batch of texts that fill all their tokens."""
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(3, net.tables[0], (net.batch, net.tokens), generator=gen, dtype=torch.int32)
    full = torch.full((net.batch,), net.tokens, dtype=torch.int32)
    return Texts(Encoded(ids, full, full), torch.arange(net.batch) % 2, net.tokens)


def method_of(name: str, net: Network) -> Method:
    """Build a method at the network's rank."""
    if name == "DP-SGD":
        return DPSGD("all", "head")
    return rgp("both", net.rank, 0.1) if name == "RGP" else lsg(net.rank, 0.1)


def gradient_of(name: str, net: Network, ranks: Ranks) -> Callable[[], Any]:
    """Make a step on the whole batch, all of it but the optimizer."""
    model, method = model_of(net), method_of(name, net)
    state = method.start(model)
    mechanism = whole_batch(net.batch, method.releases(state, 1.0), noise_multiplier=1.0)
    gradient = PrivateGradient(model, method, mechanism, ranks, net.micro_batch)
    texts = texts_of(net)
    return lambda: gradient(state, texts, 0)


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the least time, for what else runs here only adds; one repeat more warms up.

    Ranks begin together.
    """
    taken = []
    for _ in range(repeats + 1):
        if dist.is_initialized():
            dist.barrier()
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def of_rank(ranks: Ranks, config: dict[str, Any]) -> None:
    """Measure on one rank; the first writes what it saw."""
    torch.set_num_threads(1)
    net, repeats = config["net"], config["repeats"]
    seen = {name: seconds(gradient_of(name, net, ranks), repeats) for name in METHODS}
    numbers = torch.zeros(MANY)
    if ranks.size == 1:
        release = Release("all", MANY, 1.0)
        gen = torch.Generator().manual_seed(0)
        other, tall = torch.ones(MANY), torch.randn(net.width, net.rank)
        seen["read and written"] = seconds(lambda: numbers.add_(other), repeats)
        blocks = {Key("all", "all"): numbers}
        seen["noise"] = seconds(lambda: add_noise_(blocks, [release], 1.0, gen), repeats)
        seen["qr"] = seconds(lambda: [orthonormal_columns(tall) for _ in range(100)], repeats) / 100
    else:
        few = [torch.zeros(FEW) for _ in range(100)]
        seen["few"] = seconds(lambda: [ranks.broadcast([n]) for n in few], repeats) / len(few)
        seen["many"] = seconds(lambda: ranks.broadcast([numbers]), repeats)
    if ranks.is_first:
        Path(config["out"]).write_text(json.dumps(seen))


def measured(size: int, net: Network, repeats: int) -> dict[str, float]:
    """Return seconds by name on a number of ranks, each of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seen.json"
        config = {"device": "cpu", "ranks": size, "net": net, "repeats": repeats, "out": str(out)}
        launch(of_rank, config)
        return json.loads(out.read_text())


def calibrated(net: Network, alone: dict[str, float], two: dict[str, float]) -> Machine:
    """Fit the machine: products to DP-SGD on one rank, the rest to what was measured by itself."""
    bandwidth = 12 * MANY / alone["read and written"]
    sent = two["many"] - two["few"]
    machine = Machine(
        half_peak=1e30, half_reached=1, single_peak=1e30, single_reached=1,
        memory_peak=bandwidth, memory_reached=1, node=max(SIZES),
        nvlink=4 * MANY / sent, link_reached=1, hop=two["few"], qr=alone["qr"],
        noise_passes=alone["noise"] / MANY * bandwidth / 4, half_bytes=4,
    )  # fmt: skip
    rate = _rate(net, machine, alone["DP-SGD"])
    return replace(machine, half_peak=rate, single_peak=rate)


def _rate(net: Network, machine: Machine, wanted: float) -> float:
    """Find the rate of products at which DP-SGD's step takes the seconds it took, by bisection."""
    batches = net.batch / net.micro_batch
    flops = batches * sum(work.flops for work in of_micro_batch(net, "DP-SGD", net.micro_batch, 4))
    low, high = flops / wanted, 1e3 * flops / wanted
    for _ in range(60):
        rate = (low * high) ** 0.5
        guess = step(net, "DP-SGD", 1, replace(machine, half_peak=rate, single_peak=rate), False)
        low, high = (rate, high) if sum(guess.values()) > wanted else (low, rate)
    return rate


def predicted(net: Network, name: str, size: int, machine: Machine, cores: int) -> float:
    """Predict a step's seconds; more ranks than cores take turns."""
    return sum(step(net, name, size, machine, False).values()) * max(1, size / cores)


def table(net: Network = SMALL, repeats: int = 15) -> str:
    """Measure, and give the prediction beside it in markdown."""
    cores = os.cpu_count() or 1
    seen = {size: measured(size, net, repeats) for size in SIZES}
    machine = calibrated(net, seen[1], seen[2])
    rows = []
    for name in METHODS:
        for size in SIZES:
            told, took = predicted(net, name, size, machine, cores), seen[size][name]
            role = (
                "calibrates"
                if (name, size) == ("DP-SGD", 1)
                else f"{100 * (told / took - 1):+.0f} %"
            )
            rows.append([name, f"{size}", f"{1e3 * told:.0f} ms", f"{1e3 * took:.0f} ms", role])
    said = (
        f"{cores} cores, load {os.getloadavg()[0]:.1f}. Calibrated: "
        f"{machine.single_peak / 1e9:.0f} GFLOP/s, memory {machine.memory_peak / 1e9:.1f} GB/s, "
        f"noise as {machine.noise_passes:.0f} passes, a QR {1e6 * machine.qr:.0f} µs, Gloo "
        f"{machine.nvlink / 1e9:.2f} GB/s and {1e6 * machine.hop:.0f} µs a hop."
    )
    head = ["method", "ranks", "predicted", "measured", "predicted is off by"]
    return f"{said}\n\n{markdown(head, rows, words=1)}"
