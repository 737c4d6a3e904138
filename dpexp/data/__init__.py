"""Tasks: training and test examples, loss and metric. Nothing here depends on privacy."""

from dpexp.data.task import Examples, Judge, Task, are_finite, cross_entropy, percent_right

__all__ = ["Examples", "Judge", "Task", "are_finite", "cross_entropy", "percent_right"]
