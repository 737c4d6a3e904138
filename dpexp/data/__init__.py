"""Tasks: training and test examples, loss and metric. Nothing here depends on privacy."""

from dpexp.data.examples import Examples, ExampleSet
from dpexp.data.task import LossFn, Preprocessing, Task, accuracy, are_finite, cross_entropy

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
