"""Write a table for a terminal: its values and its verdict, as wide as there is room."""

from __future__ import annotations

import shutil

from dpexp.reporting.collect.values import Value
from dpexp.reporting.judge import verdict
from dpexp.reporting.render.markdown import measured
from dpexp.reporting.render.table import Table
from dpexp.reporting.text import clean


def terminal(table: Table, columns: int | None = None) -> str:
    """Return the table as text; where it is wider than the terminal, columns follow below.

    Args:
        table: to show.
        columns: of the terminal; None: as wide as it is.
    """
    frame = table.frame(_cell)
    labels = [*frame.columns[: len(table.artifact.row_head)]]
    width = columns or shutil.get_terminal_size((80, 24)).columns
    frame = frame.set_index(labels) if labels else frame
    # pandas marks with a backslash where columns go on below.
    text = frame.to_string(line_width=max(width, 40), sparsify=False)
    judged = verdict.of(table.artifact, table.profile, table.values)
    parts = [
        f"{table.artifact.title} (profile {table.profile})",
        "\n".join(line.rstrip(" \\") for line in text.splitlines()),
        *([f"Verdict: {judged.sentence}"] if judged.sentence else []),
    ]
    return "\n\n".join(parts) + "\n"


def _cell(value: Value, decimals: int) -> str:
    paper = "" if value.published is None else f", paper {value.published:.{decimals}f}"
    return clean(measured(value, decimals)) + paper
