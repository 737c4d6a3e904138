"""Tasks: training and test examples, loss and metric. Nothing here depends on privacy."""

from dpexp.data.task import (
    Examples,
    ExampleSet,
    LossFn,
    Preprocessing,
    Task,
    accuracy,
    are_finite,
    cross_entropy,
)

__all__ = [
    "ExampleSet",
    "Examples",
    "LossFn",
    "Preprocessing",
    "Task",
    "accuracy",
    "are_finite",
    "cross_entropy",
]
