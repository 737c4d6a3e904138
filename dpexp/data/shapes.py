"""A generated image set: coloured shapes and textures that a small network can tell apart.

Ours. Generated from a fixed seed in about a second, so that everything runs without any data.
Position, size, rotation, both colours and noise vary from image to image, independently of the
class. A linear model, which relies on fixed pixels, stays far behind a convolutional one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dpexp.data.examples import Examples
from dpexp.data.preprocessing import Images
from dpexp.data.task import Task, assemble
from dpexp.types import ConfigError

# An outline maps coordinates [n, h, w], rotated with the shape and in units of its radius, to a
# distance-like value: negative inside, positive outside.
Outline = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _disk(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.hypot(u, v) - 1.0


def _ring(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.abs(np.hypot(u, v) - 0.8) - 0.25


def _square(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(u), np.abs(v)) - 0.85


def _frame(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.abs(np.maximum(np.abs(u), np.abs(v)) - 0.75) - 0.22


def _triangle(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(u) * np.sqrt(3.0) / 2.0 + v / 2.0, -v) - 0.6


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    across = np.maximum(np.abs(u) - 1.1, np.abs(v) - 0.3)
    along = np.maximum(np.abs(v) - 1.1, np.abs(u) - 0.3)
    return np.minimum(across, along)


def _bar(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(u) - 1.4, np.abs(v) - 0.3)


def _pair(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.hypot(np.abs(u) - 0.85, v) - 0.5


def _stripes(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.sin(3.6 * u) / 3.6


def _checks(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.sin(3.0 * u) * np.sin(3.0 * v) / 3.0


OUTLINES: tuple[Outline, ...] = (
    _disk,
    _ring,
    _square,
    _frame,
    _triangle,
    _cross,
    _bar,
    _pair,
    _stripes,
    _checks,
)
"""The outline of each class, in the order of the targets."""


def shapes(
    *,
    name: str,
    image_size: int,
    test_size: int,
    noise: float,
    data_seed: int,
    mean: Sequence[float],
    std: Sequence[float],
    dataset_size: int,
    delta: float,
) -> Task:
    """Generate the set, 3 x image_size x image_size, ten classes in equal parts.

    Args:
        name: as in conf/task.
        image_size: height and width, in pixels.
        test_size: number of test examples.
        noise: standard deviation of each pixel's noise, for inputs in [0, 1].
        data_seed: seed of all draws, separate from a run's seed.
        mean: of the inputs in [0, 1], per channel.
        std: likewise, > 0.
        dataset_size: number of training examples.
        delta: of the (eps, delta) guarantee.
    """
    train, test = (
        Examples(
            *draw(size, image_size, noise, np.random.default_rng([data_seed, part])),
            mean=tuple(mean),
            std=tuple(std),
        )
        for part, size in enumerate((dataset_size, test_size))
    )
    names = tuple(outline.__name__.strip("_") for outline in OUTLINES)
    return assemble(
        name,
        train,
        test,
        num_classes=len(OUTLINES),
        delta=delta,
        dataset_size=dataset_size,
        preprocessing=Images((3, image_size, image_size), tuple(mean), tuple(std), names),
    )


def draw(
    count: int, image_size: int, noise: float, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw images, uint8 [count, 3, image_size, image_size], and classes [count].

    Raises:
        ConfigError: for noise below 0.
    """
    if not noise >= 0:
        raise ConfigError(f"Expected noise >= 0; got {noise}. Set task.noise, or public.noise.")
    targets = rng.permutation(np.arange(count) % len(OUTLINES))
    radius = rng.uniform(0.24, 0.36, count) * image_size
    centre = rng.uniform(0.38, 0.62, (2, count)) * image_size
    angle = rng.uniform(0.0, 2.0 * np.pi, count)
    grid = np.arange(image_size) + 0.5
    across = grid[None, None, :] - centre[0][:, None, None]
    down = grid[None, :, None] - centre[1][:, None, None]
    cosine, sine = ((f(angle) / radius)[:, None, None] for f in (np.cos, np.sin))
    u, v = across * cosine + down * sine, down * cosine - across * sine
    ink = np.empty((count, image_size, image_size))
    for label, outline in enumerate(OUTLINES):
        chosen = targets == label
        distance = outline(u[chosen], v[chosen]) * radius[chosen, None, None]
        ink[chosen] = np.clip(0.5 - distance, 0.0, 1.0)  # smooth edges, one pixel wide
    ground = rng.uniform(0.0, 0.5, (count, 3, 1, 1))
    colour = ground + rng.uniform(0.25, 0.5, (count, 3, 1, 1))
    images = ground + (colour - ground) * ink[:, None]
    images += noise * rng.standard_normal(images.shape)
    pixels = np.clip(np.rint(255.0 * images), 0, 255).astype(np.uint8)
    return torch.from_numpy(pixels), torch.from_numpy(targets.astype(np.int64))
