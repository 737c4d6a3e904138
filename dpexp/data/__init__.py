"""Tasks: training and test examples, loss and metric. Nothing here depends on privacy."""

from dpexp.data.task import Examples, LossFn, Task, accuracy, are_finite, cross_entropy

__all__ = ["Examples", "LossFn", "Task", "are_finite", "cross_entropy", "accuracy"]
