"""Time and weigh one step of every method beside the non-private step and the peers.

python -m scripts.bench [--batch 32] [--rounds 12] [--device auto]

The unit is plain autograd's forward, backward and gradient. A private step is everything but the
optimizer: carriers, forward, backward, clipping, noise, reconstruction. All steps are timed side by
side in one process, in turns; each one's memory is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpexp import memory
from dpexp.gradient import PrivateGradient
from dpexp.mechanism import Mechanism
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.rgp import RGP
from dpexp.models.wrn import WideResNet
from dpexp.ranks import Ranks, choose_device
from dpexp.records import describe_device, git_commit, versions, write_atomically
from dpexp.types import Batch, Method

Step = Callable[[], None]
UNIT = "non-private (autograd)"
TARGETS = {  # of the unit, on a CPU: time, memory
    "RGP, r = 16": (0.90, 1.1),
    "RGP left only, r = 16": (0.75, None),
    "DP-SGD": (1.6, 1.6),
}


class Examples:
    """One batch of random images, as a training set."""

    def __init__(self, num: int, device: torch.device) -> None:
        """Draw images like CIFAR10's."""
        gen = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(num, 3, 32, 32, generator=gen).to(device)
        self.targets = torch.randint(10, (num,), generator=gen).to(device)

    def batch(self, indices: Tensor) -> Batch:
        """Give the examples at some indices."""
        indices = indices.to(self.inputs.device)
        return Batch(self.inputs[indices], self.targets[indices])


def new_model(device: torch.device) -> nn.Module:
    """Build WRN28-4 for CIFAR10."""
    torch.manual_seed(0)
    return WideResNet(depth=28, width=4, in_channels=3, num_classes=10).to(device)


def private_step(method: Method, examples: Examples, device: torch.device) -> Step:
    """Make the suite's own private step: q = 1, so that every step sees the whole batch."""
    model, num = new_model(device), len(examples.targets)
    state = method.start(model)
    mechanism = Mechanism(
        dataset_size=num,
        batch_size=num,
        num_steps=1,
        sampling="poisson",
        target_epsilon=None,
        delta=1e-5,
        noise=True,
        clip=True,
        noise_multiplier=1.0,
        releases=method.releases(state, 1.0),
        seed=0,
        calibrated_by="none",
    )
    gradient = PrivateGradient(model, method, mechanism, Ranks(0, 1, device), micro_batch=num)
    return lambda: gradient(state, examples, 0)


def nonprivate_step(examples: Examples, device: torch.device) -> Step:
    """Make plain autograd's step."""
    model = new_model(device)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(examples.inputs), examples.targets).backward()

    return step


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

        return step

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

    return ghost_step


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

    return step


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


def all_steps(examples: Examples, device: torch.device) -> dict[str, Callable[[], Step]]:
    """Name every step, with a function that builds it."""
    return {
        UNIT: lambda: nonprivate_step(examples, device),
        "RGP, r = 16": lambda: private_step(rgp("both"), examples, device),
        "RGP left only, r = 16": lambda: private_step(rgp("left"), examples, device),
        "RGP-random, r = 16": lambda: private_step(rgp("random"), examples, device),
        "DP-SGD": lambda: private_step(DPSGD("all", "head"), examples, device),
        "Opacus hooks": lambda: opacus_step(examples, device, is_ghost=False),
        "Opacus ghost": lambda: opacus_step(examples, device, is_ghost=True),
        "torch.func vmap": lambda: vmap_step(examples, device),
    }


def seconds(step: Step, device: torch.device) -> float:
    """Time one step."""
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def weigh(name: str, batch: int, device: torch.device) -> float:
    """Give what one warm step adds to the memory in use before it, in MB."""
    step = all_steps(Examples(batch, device), device)[name]()
    step()
    step()
    memory.reset_peak(device)
    before = memory.peak_mb(device)
    step()
    return memory.peak_mb(device) - before


def weigh_apart(name: str, arguments: argparse.Namespace) -> float:
    """Weigh a step in a process of its own."""
    command = [sys.executable, "-m", "scripts.bench", "--weigh", name]
    command += ["--batch", str(arguments.batch), "--device", arguments.device]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure(arguments: argparse.Namespace) -> pd.DataFrame:
    """Measure every step; one that this machine cannot run says why."""
    device = choose_device(arguments.device)
    builders = all_steps(Examples(arguments.batch, device), device)
    steps, errors = {}, {}
    for name, build in builders.items():
        try:
            step = build()
            step()
            steps[name] = step
        except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
            errors[name] = str(error).splitlines()[0]
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            times[name].append(seconds(step, device))
    weights = {name: weigh_apart(name, arguments) for name in steps}
    rows = []
    for name in builders:
        if name in errors:
            rows.append({"step": name, "note": f"does not run: {errors[name]}"})
            continue
        pairs = zip(times[name], times[UNIT], strict=True)
        goal = TARGETS.get(name, (None, None))
        rows.append(
            {
                "step": name,
                "time": median(mine / unit for mine, unit in pairs),
                "time goal": goal[0],
                "memory": weights[name] / weights[UNIT],
                "memory goal": goal[1],
                "seconds": median(times[name]),
                "megabytes": weights[name],
                "note": "",
            }
        )
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame, arguments: argparse.Namespace, device: torch.device) -> str:
    """Write the table for people."""
    place, known = describe_device(device), versions()
    lines = [
        f"# One step of WRN28-4, batch {arguments.batch}, float32",
        "",
        f"{place}; torch {known['torch']}, Opacus {known['opacus']}; commit {git_commit()}. "
        f"Medians of {arguments.rounds} rounds side by side; the unit is the non-private step "
        "(forward, backward, gradient). A private step is everything but the optimizer.",
        "",
        "| step | time | goal | peak memory | goal |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in table.to_dict("records"):
        if row["note"]:
            lines.append(f"| {row['step']} | {row['note']} | | | |")
            continue
        goals = ["" if pd.isna(row[key]) else f"≤ {row[key]:g}" for key in ("time goal", "memory goal")]
        lines.append(
            f"| {row['step']} | {row['time']:.2f} | {goals[0]} | {row['memory']:.2f} | {goals[1]} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write results/bench/<device>.{md,csv}."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--weigh", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    if arguments.weigh:
        print(weigh(arguments.weigh, arguments.batch, device))
        return
    table = measure(arguments)
    text = markdown(table, arguments, device)
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    stem = arguments.results / "bench" / name.lower().replace(" ", "-")
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(stem.with_suffix(".md"), text)
    write_atomically(stem.with_suffix(".csv"), table.assign(machine=platform.machine()).to_csv())
    print(text)


if __name__ == "__main__":
    main()
