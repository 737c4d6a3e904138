"""Where one step of GEP spends its time, beside the authors' arithmetic (gep, Table 4).

One step of ResNet20 at the published size: 1,000 private and m = 2,000 public images, k = 1,000
basis vectors over g = 5 groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from dpexp.distributed.ranks import Ranks
from dpexp.methods.gep import GEP
from dpexp.models.resnet import ResNet
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.types import PublicGradients, State
from scripts.bench.vision import random_images

BATCH, M, K, MICRO_BATCH = 1000, 2000, 1000, 125
BILLION = 1e9


@dataclass
class Stopwatch:
    """Seconds since it was last asked, once the device is done."""

    device: torch.device
    began: float = 0.0

    def lap(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        began, self.began = self.began, time.perf_counter()
        return self.began - began


class Timed(GEP):
    """GEP that notes how long its bases take, and the anchor gradients in them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(
            m=M,
            k=K,
            groups="stages",
            power_iterations=1,
            basis="anchor",
            public_labels="random",
            residual=True,
            residual_clip=2.0,
            head="head",
        )
        self.gradients = self.bases = 0.0
        self._watch = Stopwatch(device)

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        self.gradients = 0.0
        self._watch.lap()
        prepared = super().prepare(model, state, _Heard(public, self), gen)
        self.bases = self._watch.lap()
        return prepared


@dataclass(frozen=True)
class _Heard:
    """Public gradients whose last micro-batch ends the first lap."""

    public: PublicGradients
    method: Timed

    def __len__(self) -> int:
        return len(self.public)

    def micro_batches(
        self, indices: Tensor, targets: Tensor | None
    ) -> Iterator[Mapping[str, Tensor]]:
        yield from self.public.micro_batches(indices, targets)
        self.method.gradients = self.method._watch.lap()


def measure(device: torch.device, rounds: int) -> pd.DataFrame:
    """Take some steps; give the medians of their parts, in seconds, and what they multiply."""
    torch.manual_seed(0)
    model = ResNet(depth=20, channels_last="auto", in_channels=3, num_classes=10).to(device)
    method, private = Timed(device), random_images(BATCH, device, 0)
    state = method.start(model)
    mechanism = whole_batch(BATCH, method.releases(state, 10.0), noise_multiplier=1.0)
    public, ranks, watch = random_images(M, device, 1), Ranks(0, 1, device), Stopwatch(device)
    laps = []
    with PrivateGradient(model, method, mechanism, ranks, MICRO_BATCH, public) as gradient:
        for _ in range(rounds):
            watch.lap()
            gradient(state, private, 0)
            laps.append((method.gradients, method.bases, watch.lap()))
    gradients, bases, whole = pd.DataFrame(laps).median()
    sizes = {
        group: sum(model.get_parameter(name).numel() for name in names)
        for group, names in state["groups"].items()
    }
    return pd.DataFrame(
        [
            {"part": "anchor gradients", "seconds": gradients},
            {"part": "basis", "seconds": bases, "operations": operations(sizes, state["shares"])},
            {"part": "private gradients", "seconds": whole - gradients - bases},
            {"part": "step", "seconds": whole},
            {"part": "matrix product", "seconds": product(device), "operations": K * M * 10_000},
            {
                "part": "even split",
                "operations": operations(*even(sum(sizes.values()), len(sizes))),
            },
        ]
    )


def operations(sizes: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """Count what the authors count: 2 m k p + p k^2 multiply-adds, summed over groups."""
    return sum(2 * M * shares[g] * p + p * shares[g] ** 2 for g, p in sizes.items())


def even(p: int, groups: int) -> tuple[dict[str, float], dict[str, float]]:
    """Split parameters and basis vectors evenly, as Table 4 does."""
    names = [str(index) for index in range(groups)]
    return dict.fromkeys(names, p / groups), dict.fromkeys(names, K / groups)


def product(device: torch.device) -> float:
    """Time the multiplication of [m, 10,000] by [10,000, k], what the machine does best."""
    a, b = torch.randn(M, 10_000, device=device), torch.randn(10_000, K, device=device)
    watch, laps = Stopwatch(device), []
    for _ in range(5):
        watch.lap()
        a @ b
        laps.append(watch.lap())
    return min(laps)


def markdown(table: pd.DataFrame) -> str:
    """Write the section for people."""
    rows = table.set_index("part")
    seconds, counted = rows["seconds"], rows["operations"] / BILLION
    subspace = seconds["anchor gradients"] + seconds["basis"]
    speed = {part: counted[part] / seconds[part] for part in ("basis", "matrix product")}
    lines = [
        "",
        f"# One step of GEP: ResNet20, batch {BATCH:,}, m = {M:,}, k = {K:,}, five groups",
        "",
        "| part | seconds | share |",
        "| --- | ---: | ---: |",
        *(
            f"| {says} | {value:.2f} | {100 * value / seconds['step']:.0f} % |"
            for says, value in (
                ("anchor gradients", seconds["anchor gradients"]),
                ("power iteration and orthonormal basis", seconds["basis"]),
                ("private gradients, projection, clipping, noise", seconds["private gradients"]),
                ("whole step", seconds["step"]),
            )
        ),
        "",
        f"The anchor subspace takes {100 * subspace / seconds['step']:.0f} % of the step. gep's "
        "Table 4 counts 2mkp/g + pk²/g² operations a power iteration: "
        f"{counted['even split']:.0f} billion for an even split, {counted['basis']:.0f} billion "
        "for shares by the square root of the groups' sizes, which give the largest group more "
        f"than a fifth of both. Here {speed['basis']:.0f} billion of them pass a second; in a "
        f"plain matrix product {speed['matrix product']:.0f} billion multiply-adds.",
    ]
    return "\n".join(lines) + "\n"
