"""Predict from small networks where one method's steps become better aligned than another's.

A method's step is g, the projected and clipped gradient, whose cosine to the true one is κ, and
independent noise of norm ρ |g|. Then the step's cosine to the true gradient is close to
κ / sqrt(1 + ρ²). Noise grows with a power of the number of released numbers; κ is taken to be a
power of it as well. So two straight lines in logarithms, fitted to small networks, predict the
cosine of large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dpexp.reporting.collect.values import Value
from dpexp.reporting.schema.artifact import Artifact, Key
from dpexp.reporting.schema.crossing import Crossing

REACH = 100.0
"""A crossing is looked for up to this many times the largest x of the figure."""

Law = Callable[[float], float]
"""x -> y."""


@dataclass(frozen=True)
class Point:
    """What is predicted and measured at an x.

    Attributes:
        x: of the figure's columns.
        predicted: cosines of the row above and the row below; None without enough points to fit.
        measured: the same, as measured; None for a row whose runs are missing.
        is_fitted: whether the prediction was made from this x.
    """

    x: float
    predicted: tuple[float, float] | None
    measured: tuple[float | None, float | None]
    is_fitted: bool


@dataclass(frozen=True)
class Prediction:
    """A crossing, predicted and measured.

    Attributes:
        crossing: as in the YAML.
        at: predicted x from which `above` is ahead; 0 if it is so everywhere, infinity if nowhere
            up to `REACH` times the largest x, NaN if there are too few points.
        by_seed: the same from each seed alone, where every point has that seed.
        points: in the order of x.
    """

    crossing: Crossing
    at: float
    by_seed: tuple[float, ...]
    points: tuple[Point, ...]

    @property
    def seen(self) -> tuple[float, float] | None:
        """The two measured x between which `above` passes `below`; None if nothing is measured.

        0 in place of the lower one if it is ahead at all; infinity in place of the upper one if it
        is behind at the largest.
        """
        ahead = [
            (point.x, above > below)
            for point in self.points
            for above, below in [point.measured]
            if above is not None and below is not None
        ]
        if not ahead:
            return None
        behind = [x for x, is_ahead in ahead if not is_ahead]
        lower = behind[-1] if behind else 0.0
        return lower, next((x for x, _ in ahead if x > lower), math.inf)


def power_law(xs: Sequence[float], ys: Sequence[float]) -> Law:
    """Return the power law of least squared error in logarithms.

    Args:
        xs: at least two, > 0, not all equal.
        ys: as many, > 0.
    """
    slope, intercept = np.polyfit(np.log(xs), np.log(ys), 1)
    return lambda x: math.exp(intercept + slope * math.log(x))


def aligned(kept: float, noise: float) -> float:
    """Return a step's cosine to the gradient, of which `kept` is left before noise.

    Args:
        kept: the cosine before noise.
        noise: the noise's norm over the signal's.
    """
    return kept / math.hypot(1.0, noise)


def passes(above: Law, below: Law, low: float, high: float) -> float:
    """Return from which x in [low, high] on `above` is larger than `below`.

    Returns:
        0 if it is so from `low` on; infinity if `below` is at least as large at `high`.
    """

    def lead(log_x: float) -> float:
        return above(math.exp(log_x)) - below(math.exp(log_x))

    grid = np.linspace(math.log(low), math.log(high), 1000)
    behind = [n for n, log_x in enumerate(grid) if lead(log_x) <= 0]
    if not behind:
        return 0.0
    last = behind[-1]
    if last == len(grid) - 1:
        return math.inf
    return math.exp(float(brentq(lead, grid[last], grid[last + 1])))


def predict(crossing: Crossing, artifact: Artifact, values: Mapping[Key, Value]) -> Prediction:
    """Return a crossing's prediction from the figure's values."""
    xs = sorted({c.x for c in artifact.columns if c.panel == crossing.seen and c.x is not None})
    fitted = [x for x in xs if x <= crossing.until]
    at, laws = _crossing(crossing, artifact, values, fitted, xs[-1], None)
    seeds = range(min((_num_seeds(crossing, artifact, values, x) for x in fitted), default=0))
    by_seed = [_crossing(crossing, artifact, values, fitted, xs[-1], seed)[0] for seed in seeds]
    points = []
    for x in xs:
        above = _value(artifact, values, crossing.above, crossing.seen, x, None)
        below = _value(artifact, values, crossing.below, crossing.seen, x, None)
        predicted = (laws[0](x), laws[1](x)) if laws else None
        points.append(Point(x, predicted, (above, below), x in fitted))
    return Prediction(crossing, at, tuple(by_seed) if len(by_seed) > 1 else (), tuple(points))


def _crossing(
    crossing: Crossing,
    artifact: Artifact,
    values: Mapping[Key, Value],
    fitted: Sequence[float],
    largest: float,
    seed: int | None,
) -> tuple[float, tuple[Law, Law] | None]:
    """Return the predicted x and both rows' cosines; NaN and None with too few points."""
    laws = []
    for key in (crossing.above, crossing.below):
        parts = []
        for panel in (crossing.kept, crossing.noise):
            found = [(x, _value(artifact, values, key, panel, x, seed)) for x in fitted]
            found = [(x, y) for x, y in found if y is not None and y > 0]
            if len(found) < 2:
                return math.nan, None
            parts.append(power_law(*zip(*found, strict=True)))
        laws.append(_cosine(*parts))
    return passes(laws[0], laws[1], fitted[0], largest * REACH), (laws[0], laws[1])


def _cosine(kept: Law, noise: Law) -> Law:
    return lambda x: aligned(min(1.0, kept(x)), noise(x))


def _cell(
    artifact: Artifact, values: Mapping[Key, Value], row: str, panel: str, x: float
) -> Value | None:
    keys = [c.key for c in artifact.columns if c.panel == panel and c.x == x]
    return values.get((row, keys[0])) if keys else None


def _value(
    artifact: Artifact,
    values: Mapping[Key, Value],
    row: str,
    panel: str,
    x: float,
    seed: int | None,
) -> float | None:
    """Return a cell's mean, or one seed's reading; None if it is missing or not finite."""
    cell = _cell(artifact, values, row, panel, x)
    if cell is None or cell.mean is None:
        return None
    number = cell.mean if seed is None else float(np.mean(cell.readings[seed]))
    return number if math.isfinite(number) else None


def _num_seeds(
    crossing: Crossing, artifact: Artifact, values: Mapping[Key, Value], x: float
) -> int:
    """Return how many seeds all four cells at an x have."""
    cells = [
        _cell(artifact, values, row, panel, x)
        for row in (crossing.above, crossing.below)
        for panel in (crossing.kept, crossing.noise)
    ]
    return min((0 if cell is None else cell.num_seeds for cell in cells), default=0)
