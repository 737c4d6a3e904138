"""Predict from small networks where one method's steps become better aligned than another's.

A method's step is g, the projected and clipped gradient, whose cosine to the true one is κ, and
independent noise of norm ρ |g|. Then the step's cosine to the true gradient is close to
κ / sqrt(1 + ρ²). Noise grows with a power of the number of released numbers; κ is taken to be a
power of it as well. So two straight lines in logarithms, fitted to small networks, predict the
cosine of large ones.

ρ is measured in the numbers that are released. The step has the same ρ where reconstruction keeps
lengths, as DP-SGD's and that of one carrier do. Of RGP's two carriers, dL = g R^T and dR = L^T g,
both hold L^T g R^T, which the step has once: |dL|² + |dR|² is up to twice the step's |P g|², while
the noise loses r² of r (p + d) numbers. So the step's ρ is up to sqrt 2 times as large, and what is
predicted as much too high.
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
        at: predicted x from which on `above` is ahead; 0 if from the smallest fitted one on,
            infinity if it is behind at `REACH` times the largest x, NaN with too few points.
        by_seed: the same from each seed alone, of seeds that every fitted point has; empty unless
            there are two. Infinity for a seed with a number that cannot be fitted, since it is not
            finite or not above 0.
        points: in the order of x.
        left_out: those x up to `until` at which one of the four numbers that are fitted is missing,
            not finite or not above 0; none of the four is fitted there.
        num_seeds: the fewest and the most seeds of a measured cosine; 0 if nothing is measured.
    """

    crossing: Crossing
    at: float
    by_seed: tuple[float, ...]
    points: tuple[Point, ...]
    left_out: tuple[float, ...] = ()
    num_seeds: tuple[int, int] = (0, 0)

    @property
    def fitted(self) -> tuple[float, ...]:
        """The x that the prediction is made from."""
        return tuple(point.x for point in self.points if point.is_fitted)

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
    meant = [x for x in xs if x <= crossing.until]
    cells = {x: _fitted_cells(crossing, artifact, values, x) for x in meant}
    means = {x: _all_above_0([_mean(cell) for cell in of_x]) for x, of_x in cells.items()}
    known = {x: numbers for x, numbers in means.items() if numbers is not None}
    largest = REACH * xs[-1]
    laws = _laws(known)
    by_seed = []
    for seed in _common_seeds([cell for x in known for cell in cells[x]]) if laws else ():
        own = {x: [_of_seeds(cell)[seed] for cell in cells[x]] for x in known}
        can_be_fitted = all(_all_above_0(numbers) for numbers in own.values())
        by_seed.append(_passes(_laws(own), own, largest) if can_be_fitted else math.inf)
    points: list[Point] = []
    counts: list[int] = []
    for x in xs:
        seen = [_cell(artifact, values, row, crossing.seen, x) for row in _rows(crossing)]
        above, below = map(_mean, seen)
        counts += [cell.num_seeds for cell in seen if cell is not None and _mean(cell) is not None]
        predicted = None if laws is None else (laws[0](x), laws[1](x))
        is_fitted = laws is not None and x in known
        points.append(Point(x, predicted, (above, below), is_fitted))
    return Prediction(
        crossing,
        _passes(laws, known, largest),
        tuple(by_seed) if len(by_seed) > 1 else (),
        tuple(points),
        tuple(x for x in meant if x not in known),
        (min(counts, default=0), max(counts, default=0)),
    )


def _laws(known: Mapping[float, Sequence[float]]) -> tuple[Law, Law] | None:
    """Return both rows' cosines from the four numbers at every x; None with fewer than two x."""
    if len(known) < 2:
        return None
    above_kept, above_noise, below_kept, below_noise = (
        power_law(list(known), ys) for ys in zip(*known.values(), strict=True)
    )
    return _cosine(above_kept, above_noise), _cosine(below_kept, below_noise)


def _passes(
    laws: tuple[Law, Law] | None, known: Mapping[float, Sequence[float]], largest: float
) -> float:
    return math.nan if laws is None else passes(*laws, min(known), largest)


def _cosine(kept: Law, noise: Law) -> Law:
    return lambda x: aligned(min(1.0, kept(x)), noise(x))


def _rows(crossing: Crossing) -> tuple[str, str]:
    return crossing.above, crossing.below


def _fitted_cells(
    crossing: Crossing, artifact: Artifact, values: Mapping[Key, Value], x: float
) -> list[Value | None]:
    """Return the cells of the four numbers: kept and noise of the row above, then of the other."""
    return [
        _cell(artifact, values, row, panel, x)
        for row in _rows(crossing)
        for panel in (crossing.kept, crossing.noise)
    ]


def _cell(
    artifact: Artifact, values: Mapping[Key, Value], row: str, panel: str, x: float
) -> Value | None:
    keys = [c.key for c in artifact.columns if c.panel == panel and c.x == x]
    return values.get((row, keys[0])) if keys else None


def _mean(cell: Value | None) -> float | None:
    """Return a cell's mean over its seeds; None if it is missing, or if a seed's is not finite."""
    if cell is None or cell.mean is None or cell.diverged or not math.isfinite(cell.mean):
        return None
    return cell.mean


def _all_above_0(numbers: Sequence[float | None]) -> list[float] | None:
    """Return numbers that can all be fitted by a power law; None if one cannot."""
    known = [number for number in numbers if number is not None and 0 < number < math.inf]
    return known if len(known) == len(numbers) else None


def _of_seeds(cell: Value | None) -> dict[int, float]:
    """Return a cell's readings by their runs' seeds."""
    if cell is None:
        return {}
    runs = zip(cell.configs, cell.readings, strict=False)
    return {config["seed"]: float(np.mean(reading)) for config, reading in runs if config}


def _common_seeds(cells: Sequence[Value | None]) -> list[int]:
    """Return the seeds that all cells have; none without cells."""
    seeds = [set(_of_seeds(cell)) for cell in cells]
    return sorted(set.intersection(*seeds)) if seeds else []
