"""3 x 3 convolutions of channels-last images by Winograd's algorithm, beside torch's on a CPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dpexp.kernels import compiled
from dpexp.kernels.winograd import SAME, convolved, is_taken

DRAWN = 100
"""Random shapes, by whose medians one sees what the named ones do not show."""


COLUMNS = (
    "convolution",
    "shape",
    "direct, ms",
    "Winograd, ms",
    "ratio",
    "error, direct",
    "error, Winograd",
)


class Shape(NamedTuple):
    """A convolution's: images of some side and channels, and its outputs."""

    images: int
    side: int
    channels: int
    outputs: int

    def operands(self) -> tuple[Tensor, Tensor]:
        """Draw images, channels last, and a kernel."""
        gen = torch.Generator().manual_seed(0)
        x = torch.randn(self.images, self.channels, self.side, self.side, generator=gen)
        weight = torch.randn(self.outputs, self.channels, 3, 3, generator=gen)
        return x.contiguous(memory_format=torch.channels_last), weight

    def __str__(self) -> str:
        size = f"{self.side} × {self.side}"
        return f"{self.images} of {size}, {self.channels} to {self.outputs} channels"


NAMED = {
    "WRN28-4, stage 1": Shape(32, 32, 64, 64),
    "WRN28-4, stage 2": Shape(32, 16, 128, 128),
    "WRN28-4, stage 3": Shape(32, 8, 256, 256),
    "WRN28-4, stage 1, one image": Shape(1, 32, 64, 64),
    "WRN28-4, stage 3, one image": Shape(1, 8, 256, 256),
    "a left carrier of stage 1": Shape(32, 32, 64, 16),
    "WRN10-2, stage 1": Shape(125, 32, 32, 32),
    "WRN10-2, stage 3": Shape(125, 8, 128, 128),
    "ResNet18 at 224 pixels, stage 1": Shape(8, 56, 64, 64),
    "ResNet18 at 224 pixels, stage 4": Shape(8, 7, 512, 512),
}


def measure(rounds: int) -> pd.DataFrame:
    """Time the named shapes and the drawn ones; give milliseconds and errors of both ways.

    Args:
        rounds: calls of either way, in turns; the medians count.
    """
    shapes = {**NAMED, **{f"drawn {number}": shape for number, shape in enumerate(drawn())}}
    rows = [
        {"name": name, **shape._asdict(), **both(shape, rounds)} for name, shape in shapes.items()
    ]
    return pd.DataFrame(rows)


def drawn() -> Iterator[Shape]:
    """Draw shapes of those that are taken, of one million to two billion multiplications."""
    gen = random.Random(0)
    library = compiled()
    assert library is not None, "these are the kernels that are timed"
    found = 0
    while found < DRAWN:
        sides = (4, 6, 8, 12, 14, 16, 24, 28, 32, 56)
        channels, outputs = (library.lanes * gen.randint(1, 16) for _ in range(2))
        shape = Shape(gen.choice((1, 4, 16, 32, 64, 128)), gen.choice(sides), channels, outputs)
        products = 9 * shape.images * shape.side**2 * channels * outputs
        taken = is_taken(*shape._replace(images=1).operands(), outputs, SAME, 1)
        if taken and 10**6 < products < 2 * 10**9:
            found += 1
            yield shape


def both(shape: Shape, rounds: int) -> dict[str, float]:
    """Time one shape both ways, in turns, and compare both with float64."""
    x, weight = shape.operands()
    ways: dict[str, Callable[[], Tensor]] = {
        "direct": lambda: F.conv2d(x, weight, padding=1),
        "winograd": lambda: convolved(x, weight),
    }
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    errors = {
        f"{way} error": float((run() - exact).norm() / exact.norm()) for way, run in ways.items()
    }
    times = pd.DataFrame(
        [{way: 1e3 * _seconds(run) for way, run in ways.items()} for _ in range(rounds)]
    )
    return {**times.median().to_dict(), **errors}


def _seconds(run: Callable[[], Tensor]) -> float:
    run()  # the other way has just filled the caches
    began = perf_counter()
    run()
    return perf_counter() - began


def markdown(table: pd.DataFrame, rounds: int) -> str:
    """Write the page for people."""
    named, other = table[: len(NAMED)], table[len(NAMED) :]
    ratios = other["winograd"] / other["direct"]
    low, high = (ratios.quantile(share) for share in (0.1, 0.9))
    lines = [
        "# 3 × 3 convolutions of channels-last images, float32",
        "",
        f"Medians of {rounds} rounds, in turns. An error is the norm of the difference to float64 "
        "over the norm.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in named.itertuples(index=False):
        shape = Shape(row.images, row.side, row.channels, row.outputs)
        cells = [row.name, str(shape), f"{row.direct:.2f}", f"{row.winograd:.2f}"]
        cells += [f"{row.winograd / row.direct:.2f}"]
        cells += [f"{error:.1e}" for error in (row[-2], row[-1])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Of {len(other)} random shapes the median takes {ratios.median():.2f} of the direct "
        f"form's time, and four of five take {low:.2f} to {high:.2f}. Slower than the direct form: "
        f"{int((ratios > 1).sum())}.",
    ]
    return "\n".join(lines) + "\n"
