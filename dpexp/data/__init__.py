"""Tasks: the examples a run trains and is judged on. Nothing here knows of privacy."""

from dpexp.data.task import Examples, Judge, Task, are_finite, cross_entropy, percent_right

__all__ = ["Examples", "Judge", "Task", "are_finite", "cross_entropy", "percent_right"]
