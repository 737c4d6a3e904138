"""Compute the value of every cell of an artifact.

`cells` composes the runs that an artifact needs. `build` and `workers` execute the missing ones
through a callable. `outcomes` looks up each run's outcome, `readings`
reads its number, curve or picture, and `values` aggregates these by cell.
"""

from dpexp.reporting.collect.outcomes import (
    DONE,
    FAILED,
    NO_DATA,
    NOT_BUILT,
    NOT_RUN,
    REFUSED,
    Outcome,
    log_path,
    outcome,
)
from dpexp.reporting.collect.values import (
    DIVERGED,
    NONE,
    NOT_FINITE,
    SKIPPED,
    WORDS,
    Value,
    collect,
)

__all__ = [
    "DIVERGED",
    "DONE",
    "FAILED",
    "NOT_BUILT",
    "NOT_FINITE",
    "NOT_RUN",
    "NO_DATA",
    "REFUSED",
    "NONE",
    "SKIPPED",
    "WORDS",
    "Outcome",
    "Value",
    "collect",
    "log_path",
    "outcome",
]
