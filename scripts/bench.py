"""Time and weigh one step of every method beside the non-private step and the peers.

python -m scripts.bench [--batch 32] [--rounds 12] [--device auto]

The unit is plain autograd's forward, backward and gradient. A private step is everything but the
optimizer: carriers, forward, backward, clipping, noise, reconstruction. What of it is paid once a
logical batch, however many micro-batches that has, is timed as a step on an empty draw. All steps
are timed side by side in one process, in turns; each one's memory is measured in a process of its
own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpexp import memory
from dpexp.gradient import PrivateGradient
from dpexp.mechanism import whole_batch
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.lsg import LSG
from dpexp.methods.powersgd import PowerSGD
from dpexp.methods.rgp import RGP
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.models.wrn import WideResNet
from dpexp.ranks import Ranks, choose_device
from dpexp.records import describe_device, git_commit, versions, write_atomically
from dpexp.tasks import Examples
from dpexp.types import Method
from scripts import bench_gep

Run = Callable[[], None]
UNIT = "non-private (autograd)"
TARGETS = {  # of the unit, on a CPU: time, memory
    "RGP, r = 16": (0.90, 1.1),
    "the same, channels last": (0.75, None),
    "DP-SGD": (1.6, 1.6),
    "DP-PowerSGD, r = 16": (1.68, None),  # 1.05 of DP-SGD's
}


@dataclass(frozen=True)
class Step:
    """One way to get a gradient.

    Attributes:
        run: takes the whole step.
        once: takes what of it is paid once a logical batch; None for peers.
    """

    run: Run
    once: Run | None = None


def new_model(device: torch.device, channels_last: bool = False) -> nn.Module:
    """Build WRN28-4 for CIFAR10."""
    torch.manual_seed(0)
    return WideResNet(
        depth=28,
        width=4,
        stem_stride=1,
        channels_last=channels_last,
        in_channels=3,
        num_classes=10,
    ).to(device)


def private_step(
    method: Method, examples: Examples, device: torch.device, channels_last: bool = False
) -> Step:
    """Make the suite's own private step: q = 1, so that every step sees the whole batch."""
    model, num = new_model(device, channels_last), len(examples.targets)
    state = method.start(model)
    mechanism = whole_batch(num, method.releases(state, 1.0), noise_multiplier=1.0)
    ranks = Ranks(0, 1, device)
    gradient = PrivateGradient(model, method, mechanism, ranks, micro_batch=num)
    nobody = replace(mechanism, batch_size=1e-12)  # a draw that is always empty
    twin = new_model(device, channels_last)
    empty = PrivateGradient(twin, method, nobody, ranks, micro_batch=num)
    return Step(lambda: gradient(state, examples, 0), lambda: empty(state, examples, 0))


def nonprivate_step(examples: Examples, device: torch.device, channels_last: bool = False) -> Step:
    """Make plain autograd's step."""
    model = new_model(device, channels_last)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(examples.inputs), examples.targets).backward()

    return Step(step)


def opacus_step(examples: Examples, device: torch.device, is_ghost: bool) -> Step:
    """Make Opacus's step: hooks that hold per-example gradients, or ghost clipping."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    if not is_ghost:
        model = GradSampleModule(new_model(device), loss_reduction="sum")

        def step() -> None:
            model.zero_grad()
            logits = model(examples.inputs)
            F.cross_entropy(logits, examples.targets, reduction="sum").backward()
            clip_and_noise([p.grad_sample for p in model.parameters()])

        return Step(step)

    ghost = GradSampleModuleFastGradientClipping(
        new_model(device), loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
    )

    def ghost_step() -> None:
        ghost.zero_grad()
        losses = F.cross_entropy(ghost(examples.inputs), examples.targets, reduction="none")
        losses.sum().backward(retain_graph=True)
        ghost.zero_grad()
        weights = ghost.get_clipping_coef()
        ghost.disable_hooks()
        (weights * losses).sum().backward()
        ghost.enable_hooks()
        for parameter in ghost.parameters():
            parameter.grad += torch.randn_like(parameter)

    return Step(ghost_step)


def vmap_step(examples: Examples, device: torch.device) -> Step:
    """Make torch.func's step: vmap over grad."""
    model = new_model(device)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        each = per_example(parameters, examples.inputs, examples.targets)
        clip_and_noise(list(each.values()))

    return Step(step)


@torch.no_grad()
def clip_and_noise(each: list[Tensor]) -> list[Tensor]:
    """Finish a peer's step from its per-example gradients, each [n, ...]."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)
    weights = (1.0 / norms).clamp(max=1.0)
    sums = [torch.tensordot(weights, g, dims=1) for g in each]
    return [total + torch.randn_like(total) for total in sums]


def rgp(carriers: str) -> RGP:
    """Give RGP as in Table 3's setting."""
    return RGP(
        rank=16,
        carriers=carriers,
        power_iterations=1,
        warm_up_steps=0,
        residual=True,
        head_scale=0.01,
        head="head",
    )


def lsg() -> LSG:
    """Give LSG at RGP's rank, half of it frozen."""
    return LSG(
        rank=16,
        p=0.5,
        mask="importance",
        start_epoch=0,
        power_iterations=1,
        head_scale=0.01,
        head="head",
        dataset_size=1,
        batch_size=1,
    )


def all_steps(examples: Examples, device: torch.device) -> dict[str, Callable[[], Step]]:
    """Name every step, with a function that builds it."""
    return {
        UNIT: lambda: nonprivate_step(examples, device),
        "non-private, channels last": lambda: nonprivate_step(examples, device, channels_last=True),
        "RGP, r = 16": lambda: private_step(rgp("both"), examples, device),
        "RGP left only, r = 16": lambda: private_step(rgp("left"), examples, device),
        "the same, channels last": lambda: private_step(
            rgp("left"), examples, device, channels_last=True
        ),
        "RGP-random, r = 16": lambda: private_step(rgp("random"), examples, device),
        "LSG, r = 16, p = 0.5": lambda: private_step(lsg(), examples, device),
        "DP-SGD": lambda: private_step(DPSGD("all", "head"), examples, device),
        "DP-PowerSGD, r = 16": lambda: private_step(
            PowerSGD(16, warm_start=True, error_feedback=False, head="head"), examples, device
        ),
        "Sparse DP-SGD, p = 0.5": lambda: private_step(
            SparseDPSGD(0.5, "importance", "head"), examples, device
        ),
        "Opacus hooks": lambda: opacus_step(examples, device, is_ghost=False),
        "Opacus ghost": lambda: opacus_step(examples, device, is_ghost=True),
        "torch.func vmap": lambda: vmap_step(examples, device),
    }


def seconds(run: Run, device: torch.device) -> float:
    """Time one run."""
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def weigh(name: str, batch: int, device: torch.device) -> float:
    """Give what taking steps adds to the memory in use before the first, in MB."""
    step = all_steps(bench_gep.random_images(batch, device, 0), device)[name]()
    memory.reset_peak(device)
    before = memory.peak_mb(device)
    for _ in range(3):
        step.run()
    return memory.peak_mb(device) - before


def weigh_apart(name: str, arguments: argparse.Namespace) -> float:
    """Weigh a step in a process of its own."""
    command = [sys.executable, "-m", "scripts.bench", "--weigh", name]
    command += ["--batch", str(arguments.batch), "--device", arguments.device]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure(arguments: argparse.Namespace, device: torch.device) -> pd.DataFrame:
    """Measure every step; one that this machine cannot run says why."""
    builders = all_steps(bench_gep.random_images(arguments.batch, device, 0), device)
    steps, notes = {}, dict.fromkeys(builders, "")
    for name, build in builders.items():
        try:
            steps[name] = build()
            steps[name].run()
        except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
            notes[name] = f"does not run: {str(error).splitlines()[0]}"
            steps.pop(name, None)
    times = pd.DataFrame(
        [
            {name: seconds(step.run, device) for name, step in steps.items()}
            for _ in range(arguments.rounds)
        ]
    )
    once = {
        name: median(seconds(step.once, device) for _ in range(arguments.rounds))
        for name, step in steps.items()
        if step.once is not None
    }
    ratios = times.div(times[UNIT], axis=0).median()
    megabytes = {name: weigh_apart(name, arguments) for name in steps}
    rows = [
        {
            "step": name,
            "time": ratios.get(name),
            "of it once a batch": once[name] / times[UNIT].median() if name in once else None,
            "time goal": TARGETS.get(name, (None, None))[0],
            "memory": megabytes[name] / megabytes[UNIT] if name in megabytes else None,
            "memory goal": TARGETS.get(name, (None, None))[1],
            "seconds": times[name].median() if name in times else None,
            "megabytes": megabytes.get(name),
            "note": notes[name],
        }
        for name in builders
    ]
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame, arguments: argparse.Namespace, device: torch.device) -> str:
    """Write the table for people."""
    known = versions()
    lines = [
        f"# One step of WRN28-4, batch {arguments.batch}, float32",
        "",
        f"{describe_device(device)}; torch {known['torch']}, Opacus {known['opacus']}; "
        f"commit {git_commit()}. Medians of {arguments.rounds} rounds side by side. The unit is "
        "the non-private step: forward, backward, gradient. A private step is everything but the "
        "optimizer; what of it is paid once a logical batch, however many micro-batches that has, "
        "stands beside it.",
        "",
        "| step | time | of it once a batch | goal | peak memory | goal |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table.to_dict("records"):
        cells = [
            _number(row["time"]) or row["note"],
            _number(row["of it once a batch"]),
            _number(row["time goal"], "≤ "),
            _number(row["memory"]),
            _number(row["memory goal"], "≤ "),
        ]
        lines.append(f"| {row['step']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None or pd.isna(value) else f"{sign}{value:.2f}"


def main() -> None:
    """Measure, print and write results/bench/<device>.{md,csv} and <device>-gep.csv."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--weigh", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    memory.keep_pages()
    if arguments.weigh:
        print(weigh(arguments.weigh, arguments.batch, device))
        return
    warnings.filterwarnings("ignore", message="Full backward hook")  # Opacus, on image inputs
    table = measure(arguments, device)
    gep = bench_gep.measure(device, rounds=3)
    text = markdown(table, arguments, device) + bench_gep.markdown(gep)
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    stem = arguments.results / "bench" / name.lower().replace(" ", "-")
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(stem.with_suffix(".md"), text)
    write_atomically(stem.with_suffix(".csv"), table.to_csv(index=False))
    write_atomically(stem.with_name(f"{stem.name}-gep.csv"), gep.to_csv(index=False))
    print(text)


if __name__ == "__main__":
    main()
