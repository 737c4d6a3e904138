"""Write a table as LaTeX."""

from __future__ import annotations

from dpexp.reporting.collect.values import WORDS, Value
from dpexp.reporting.render.escape import for_latex
from dpexp.reporting.render.table import Table


def latex(table: Table) -> str:
    """Return a booktabs table; the preamble needs the package booktabs."""
    artifact = table.artifact
    caption = f"{artifact.title}. {artifact.place}."
    if artifact.published:
        caption = f"{artifact.title}. Beside {artifact.place}, whose values are in brackets."
    if table.profile != "paper":
        caption += f" Profile {table.profile}: not comparable with the published values."
    sides = "".join("l" if column.words else "r" for column in table.printed_columns())
    frame = table.frame(_cell).rename(columns=for_latex)
    labels = frame.columns[: len(artifact.row_head)]
    frame[labels] = frame[labels].map(for_latex)
    return frame.style.hide(axis="index").to_latex(
        caption=for_latex(caption),
        label=f"tab:{artifact.paper}-{artifact.name}-{table.profile}",
        column_format="l" * len(artifact.row_head) + sides,
        position_float="centering",
        hrules=True,
    )


def _cell(value: Value, decimals: int) -> str:
    if value.status == WORDS:
        return for_latex(value.text)
    measured = for_latex(value.status)
    if value.mean is not None:
        measured = f"{value.mean:.{decimals}f}"
        measured += "" if value.std is None else rf" $\pm$ {value.std:.{decimals}f}"
        measured += f", {value.divergence}" if value.diverged else ""
    return measured if value.published is None else f"{measured} ({value.published:.{decimals}f})"
