"""Write a figure's predicted crossings."""

from __future__ import annotations

import math

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.judge.crossing import REACH, Point, Prediction, predict
from dpexp.reporting.render.table import Table

EXPLAINED = (
    "Predicted: a step's cosine to the true gradient as kept / sqrt(1 + noise²). What is kept "
    "before noise, and the noise's norm over the signal's, are each taken as a power of {x}, "
    "fitted up to the named size; no accuracy is used. Measured: the cosine of noisy steps."
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
    return EXPLAINED.format(x=table.artifact.figure.x_name)


def sentence(prediction: Prediction, table: Table) -> str:
    """Return what was predicted, from what, and what was measured."""
    x = table.artifact.figure.x_name
    crossing = prediction.crossing
    text = f"{crossing.says}: predicted from {x} up to {crossing.until:g}: "
    if math.isnan(prediction.at):
        return f"{text}not yet, two sizes of both are needed."
    text += _from(prediction.at, x, table)
    if prediction.by_seed:
        text += f" (by seed: {', '.join(_short(at) for at in prediction.by_seed)})"
    if prediction.seen is None:
        return f"{text}. Nothing is measured."
    low, high = prediction.seen
    if math.isinf(high):
        measured = f"not up to {x} = {low:g}"
    elif low == 0:
        measured = f"from the smallest, {high:g}, on"
    else:
        measured = f"between {low:g} and {high:g}"
    return f"{text}. Measured: {measured}."


def _from(at: float, x: str, table: Table) -> str:
    if at == 0:
        return "at every size"
    if math.isinf(at):
        largest = max(column.x for column in table.artifact.columns)
        return f"at no size up to {REACH:.0f} times the largest, {largest:g}"
    return f"from {x} = {_short(at)} on"


def _short(at: float) -> str:
    return {0.0: "everywhere", math.inf: "nowhere"}.get(at, f"{at:.2g}")


def _lines(prediction: Prediction, table: Table) -> list[list[str]]:
    names = {row.key: " ".join(relabel(row, table.changes)) for row in table.artifact.rows}
    rows = [names[prediction.crossing.above], names[prediction.crossing.below]]
    head = [table.artifact.figure.x_name]
    head += [f"{row}, {what}" for row in rows for what in ("predicted", "measured")]
    return [head, *(_line(point) for point in prediction.points)]


def _line(point: Point) -> list[str]:
    line = [f"{point.x:g}" + (" (fitted)" if point.is_fitted else "")]
    for side in (0, 1):
        predicted = point.predicted[side] if point.predicted else None
        for number in (predicted, point.measured[side]):
            line.append("–" if number is None else f"{number:.3f}")
    return line
