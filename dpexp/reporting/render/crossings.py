"""Write a figure's predicted crossings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.judge.crossing import REACH, Point, Prediction, predict
from dpexp.reporting.render.table import Table

EXPLAINED = (
    "Predicted: a step's cosine to the true gradient as kept / sqrt(1 + noise²). What is kept "
    "before noise, and the noise's norm over the signal's, are each taken as a power of {x}, "
    "fitted to the named sizes and extrapolated to all others, up to {reach:.0f} times the "
    "largest; no accuracy is used. Noise and signal are of the released numbers: two carriers "
    "hold a part of the gradient twice, so that what is predicted of both may be too high by a "
    "factor of up to √2. Measured: the cosine of noisy steps, compared by its means, without an "
    "interval."
)


def crossings(table: Table) -> list[tuple[str, list[list[str]]]]:
    """Return each prediction as a sentence and a table, whose first line holds the headings."""
    found = []
    for each in table.artifact.crossings:
        prediction = predict(each, table.artifact, table.values)
        found.append((sentence(prediction, table), _lines(prediction, table)))
    return found


def explained(table: Table) -> str:
    """Return how a prediction was made."""
    return EXPLAINED.format(x=table.artifact.axes.x_name, reach=REACH)


def sentence(prediction: Prediction, table: Table) -> str:
    """Return what was predicted, from what, and what was measured."""
    x, crossing = table.artifact.axes.x_name, prediction.crossing
    text = f"{crossing.says}: predicted from "
    if math.isnan(prediction.at):
        return f"{text}{x} up to {crossing.until:g}: not yet, two sizes of both are needed."
    text += f"{x} = {_listed(prediction.fitted)}"
    if prediction.left_out:
        left_out = _listed(prediction.left_out)
        text += f" (not {left_out}, where a number is missing, not finite or not above 0)"
    text += f": {_from(prediction, x)}"
    if prediction.by_seed:
        text += f" (by seed: {', '.join(map(_short, prediction.by_seed))})"
    if prediction.seen is None:
        return f"{text}. Nothing is measured."
    low, high = prediction.seen
    if math.isinf(high):
        measured = f"not up to {x} = {low:g}"
    elif low == 0:
        measured = f"from the smallest, {high:g}, on"
    else:
        measured = f"between {low:g} and {high:g}"
    return f"{text}. Measured, {_seeds(prediction)}: {measured}."


def _listed(numbers: Sequence[float]) -> str:
    *first, last = (f"{number:g}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _seeds(prediction: Prediction) -> str:
    fewest, most = prediction.num_seeds
    if most == 1:
        return "single seeds"
    return f"means of {most} seeds" if fewest == most else f"means of {fewest} to {most} seeds"


def _from(prediction: Prediction, x: str) -> str:
    at, largest = prediction.at, prediction.points[-1].x
    if at == 0:
        return "from the smallest on"
    if math.isinf(at):
        return "from no size on"
    beyond = f", beyond the largest, {largest:g}" if at > largest else ""
    return f"from {x} = {at:.2g} on{beyond}"


def _short(at: float) -> str:
    return {0.0: "the smallest", math.inf: "none"}.get(at, f"{at:.2g}")


def _lines(prediction: Prediction, table: Table) -> list[list[str]]:
    names = {row.key: " ".join(relabel(row, table.changes)) for row in table.artifact.rows}
    rows = [names[prediction.crossing.above], names[prediction.crossing.below]]
    head = [table.artifact.axes.x_name]
    head += [f"{row}, {what}" for row in rows for what in ("predicted", "measured")]
    return [head, *(_line(point) for point in prediction.points)]


def _line(point: Point) -> list[str]:
    line = [f"{point.x:g}" + (" (fitted)" if point.is_fitted else "")]
    for side in (0, 1):
        predicted = point.predicted[side] if point.predicted else None
        for number in (predicted, point.measured[side]):
            line.append("–" if number is None else f"{number:.3f}")
    return line
