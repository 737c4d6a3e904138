"""What a choice among runs costs, in words."""

from __future__ import annotations

from dpexp.types import counted


def cost_of_trials(trials: int) -> str:
    """Return the note for settings that were chosen by scores on private training examples."""
    return (
        f"note: {counted(trials, 'trial')} {'was' if trials == 1 else 'were'} trained and judged "
        "on the private training set. The epsilon of a run with settings that were chosen so does "
        "not count that choice (docs/privacy/index.md)."
    )


def cost_of_runs(runs: int) -> str:
    """Return the note for runs whose scores stand side by side."""
    return (
        f"note: each epsilon is of one run alone. None counts that {counted(runs, 'run')} read the "
        "same data, nor a choice among them by their scores (docs/claim.md)."
    )
