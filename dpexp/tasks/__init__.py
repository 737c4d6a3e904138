"""Tasks: the examples a run trains and is judged on. Nothing here knows of privacy."""

from dpexp.tasks.task import Examples, Task

__all__ = ["Examples", "Task"]
