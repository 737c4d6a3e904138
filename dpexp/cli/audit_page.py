"""The table of audits: lower bounds on epsilon beside the accountant's, as a page and a sheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dpexp import records
from dpexp.records.rounded import at_least, at_most


@dataclass(frozen=True)
class Row:
    """The results of one method's audits; None if there was no such audit or bound.

    Attributes:
        method: its name.
        accounted: epsilon of the run; without a run, of a trial in the distinguishing game.
        one_run: lower bound from one run.
        one_run_curve: the same by the mechanism's trade-off curve.
        canaries, guesses, right: the counts behind these bounds.
        two_worlds: lower bound from two worlds.
        two_worlds_gaussian: the same by Gaussian differential privacy.
        accounted_worlds: epsilon of a trial.
        false_positives, false_negatives: the errors behind these bounds.
        judged: trials judged in each world.
        run: the one run's directory.
    """

    method: str
    accounted: float
    one_run: float | None
    one_run_curve: float | None
    canaries: int | None
    guesses: int | None
    right: int | None
    two_worlds: float
    two_worlds_gaussian: float | None
    accounted_worlds: float
    false_positives: int
    false_negatives: int
    judged: int
    run: str | None

    @property
    def broken(self) -> bool:
        """Whether a lower bound exceeds the accounted epsilon."""
        pairs = [(self.one_run, self.accounted), (self.one_run_curve, self.accounted)]
        pairs += [(self.two_worlds, self.accounted_worlds)]
        pairs += [(self.two_worlds_gaussian, self.accounted_worlds)]
        return any(lower is not None and lower > most for lower, most in pairs)


COLUMNS = {
    "method": "method",
    "accounted": "ε accounted",
    "one_run": "one run: ε ≥",
    "one_run_curve": "by its trade-off curve",
    "canaries": "canaries",
    "guesses": "guesses",
    "right": "right",
    "accounted_worlds": "ε accounted, a trial",
    "two_worlds": "two worlds: ε ≥",
    "two_worlds_gaussian": "as Gaussian",
    "false_positives": "false positives",
    "false_negatives": "false negatives",
    "judged": "trials judged, each world",
    "run": "run",
}


def opening(trials: int, steps: int, confidence: float, user: Sequence[str]) -> list[str]:
    """Return the lines above the table: what was done, and with which overrides."""
    return [
        "# What leaks, beside what is accounted for",
        "",
        f"Lower bounds on ε at {100 * confidence:g}% confidence each, δ the task's (0 under "
        "Laplace noise). One run: canaries in a run of the embedded profile. Two worlds: "
        f"{trials} trials of {steps} steps with one canary, as many without, on a small model, the "
        "canary in every step; half of them choose the threshold, the other half are judged. The "
        "bounds by trade-off curve suppose the mechanism to be of the kind it says; the others "
        "suppose nothing. compressive_unmeasured is without Psi; PATE has no one run.",
        *(["", f"Overrides: {', '.join(sorted(user))}."] if user else []),
        "",
        "| " + " | ".join(COLUMNS.values()) + " |",
        "| --- |" + " ---: |" * (len(COLUMNS) - 1),
    ]


def markdown(rows: Sequence[Row], above: Sequence[str]) -> str:
    """Return the page: the table below the lines of `opening`."""
    lines = [*above]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row, key) for key in COLUMNS) + " |")
    broken = [row.method for row in rows if row.broken]
    lines += ["", f"Above what is accounted for: {', '.join(broken) or 'none'}.", ""]
    return "\n".join(lines)


def line(row: Row) -> str:
    """Return what the terminal shows of one method."""
    shown = {key: _cell(row, key) for key in COLUMNS}
    return (
        f"{shown['method']}: of ε {shown['accounted']}, one run shows {shown['one_run']} "
        f"({shown['one_run_curve']} by its curve), two worlds {shown['two_worlds']} "
        f"({shown['two_worlds_gaussian']} as Gaussian)"
    )


def _cell(row: Row, key: str) -> str:
    """Return a cell's text: what bounds epsilon from above is rounded up, from below down."""
    value = getattr(row, key)
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return at_most(value, 2) if key.startswith("accounted") else at_least(value, 2)


def write(rows: Sequence[Row], above: Sequence[str], stem: Path) -> list[Path]:
    """Write the table as .md and .csv; return their paths.

    Args:
        rows: one per method.
        above: the lines above the table.
        stem: path without suffix.
    """
    records.make_folder(stem.parent)
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    paths = paths_of(stem)
    contents = markdown(rows, above), text.getvalue()
    for path, content in zip(paths, contents, strict=True):
        records.write_atomically(path, content)
    return paths


def paths_of(stem: Path) -> list[Path]:
    """Return the paths of a table, as .md and .csv."""
    return [stem.with_name(f"{stem.name}.{kind}") for kind in ("md", "csv")]


def is_of(stem: Path, above: Sequence[str], runs: Mapping[str, str | None]) -> bool:
    """Return whether files that are there are of the same game, and of no other runs than these.

    Args:
        stem: path without suffix.
        above: the lines above the table of the page that is to be written.
        runs: id of every method's one run.
    """
    page, table = paths_of(stem)
    try:
        lines = page.read_text(encoding="utf-8").splitlines()
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {row["method"]: row["run"] or None for row in rows}
    except (OSError, ValueError, KeyError):
        return False
    return lines[: len(above)] == [*above] and found.items() <= runs.items()
