"""Write a table as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.reporting.collect.values import WORDS, Value
from dpexp.reporting.render.escape import for_latex
from dpexp.reporting.render.table import Table


def latex(table: Table) -> str:
    """Return a booktabs table with what its runs' certificates admit below it.

    The preamble needs the package booktabs.
    """
    artifact = table.artifact
    caption = f"{artifact.title}. {artifact.place}."
    if artifact.published:
        caption = f"{artifact.title}. Beside {artifact.place}, whose values are in brackets."
    if table.profile != "paper":
        caption += f" Profile {table.profile}: not comparable with the published values."
    sides = "".join("l" if column.words else "r" for column in table.printed_columns())
    notes = table.deviations()
    frame = table.frame(lambda value, decimals: _cell(value, decimals, notes))
    frame = frame.rename(columns=for_latex)
    labels = frame.columns[: len(artifact.row_head)]
    frame[labels] = frame[labels].map(for_latex)
    text = frame.style.hide(axis="index").to_latex(
        caption=for_latex(caption),
        label=f"tab:{artifact.paper}-{artifact.name}-{table.profile}",
        column_format="l" * len(artifact.row_head) + sides,
        position_float="centering",
        hrules=True,
    )
    below = [f"\\par\\footnotesize $^{{{k}}}$ {for_latex(note)}" for k, note in enumerate(notes, 1)]
    body, end = text.rsplit("\\end{table}", 1)
    return "\n".join([body.rstrip("\n"), *below, f"\\end{{table}}{end}"])


def _cell(value: Value, decimals: int, notes: Sequence[str]) -> str:
    if value.status == WORDS:
        return for_latex(value.text)
    measured = for_latex(value.status)
    if value.mean is not None:
        measured = f"{value.mean:.{decimals}f}"
        measured += "" if value.std is None else rf" $\pm$ {value.std:.{decimals}f}"
        measured += f", {value.divergence}" if value.diverged else ""
    if marks := ",".join(str(notes.index(word) + 1) for word in value.deviations):
        measured += f"$^{{{marks}}}$"
    return measured if value.published is None else f"{measured} ({value.published:.{decimals}f})"
