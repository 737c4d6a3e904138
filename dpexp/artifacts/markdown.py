"""Words a table or a figure for people."""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.artifacts.cells import relabel
from dpexp.artifacts.claims import FAILS, judge
from dpexp.artifacts.collect import Value
from dpexp.artifacts.spec import Artifact
from dpexp.artifacts.table import Table


def markdown(table: Table) -> str:
    """Word it for people: what it is, values or picture, footnotes, claims, certificates."""
    parts = [
        f"# {table.artifact.title}",
        f"{_place(table.artifact)}. Profile `{table.profile}`.",
        *_comparability(table),
        *_setting(table),
        _picture(table) if table.artifact.figure else _values(table),
        *_footnotes(table),
        *_claims(table),
        *_certificates(table),
    ]
    return "\n\n".join(parts) + "\n"


def _comparability(table: Table) -> list[str]:
    if table.profile == "paper":
        return []
    return [
        "**These numbers are not comparable with the published ones.** "
        + table.changes.scaled.strip()
    ]


def _setting(table: Table) -> list[str]:
    parts = []
    if table.settings:
        parts.append("Run here: " + "; ".join(table.settings) + ".")
    if table.overridden:
        words = ", ".join(f"`{word}`" for word in table.overridden)
        parts.append(f"Overridden on the command line: {words}.")
    return parts


def _picture(table: Table) -> str:
    return f"![{table.artifact.title}]({table.artifact.name}.svg)"


def _values(table: Table) -> str:
    artifact, notes = table.artifact, table.deviations()
    body = [
        [*relabel(row, table.changes), *(_md_cell(v, artifact.decimals, notes) for _, v in cells)]
        for row, cells in table.grid()
    ]
    return _md_table([table.head(), *body])


def _md_table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "| " + " | ".join(w.ljust(n) for w, n in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (n + 2) for n in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def _md_cell(value: Value, decimals: int, notes: Sequence[str]) -> str:
    marks = "".join(f" [{notes.index(word) + 1}]" for word in value.deviations)
    paper = ""
    if value.published is not None:
        change = "" if value.difference is None else f" ({value.difference:+.{decimals}f})"
        paper = f"<br>paper {value.published:.{decimals}f}{change}"
    return measured(value, decimals) + marks + paper


def measured(value: Value, decimals: int) -> str:
    """Print what was measured, or why nothing was."""
    if value.mean is None:
        return value.status
    spread = "" if value.std is None else f" ± {value.std:.{decimals}f}"
    return f"{value.mean:.{decimals}f}{spread} (n={value.num_seeds})"


def _place(artifact: Artifact) -> str:
    return f"Beside {artifact.place}" if artifact.published else artifact.place


def _footnotes(table: Table) -> list[str]:
    artifact = table.artifact
    legend = _figure_legend(table) if artifact.figure else _table_legend(artifact)
    notes = [f"[{k}] {word}" for k, word in enumerate(table.deviations(), 1)]
    short = any(0 < v.num_seeds < v.asked for v in table.values.values())
    if short:
        notes.append(f"A smaller n than {max(v.asked for v in table.values.values())}: "
                     "the other seeds are not run.")  # fmt: skip
    if artifact.figure:
        notes += [f"{status}: {'; '.join(names)}" for status, names in table.absent().items()]
    notes += table.skipped() + _troubles(table) + _orderings(table)
    return [" ".join(filter(None, [legend, artifact.published_note.strip()])),
            *(["\n".join(f"- {note}" for note in notes)] if notes else [])]  # fmt: skip


def _orderings(table: Table) -> list[str]:
    """Give the likely reason where a claim of the paper's does not show."""
    verdicts = [one.verdict for one in judge(table.artifact, table.values)]
    return [table.changes.why_not.strip()] if FAILS in verdicts and table.changes.why_not else []


def _table_legend(artifact: Artifact) -> str:
    what = artifact.value_label or " and ".join(artifact.metric)
    beside = "; then the paper's value and, in brackets, measured minus paper"
    return (
        f"Each cell: {what}, mean ± standard deviation over n "
        f"seeds{beside if artifact.published else ''}."
    )


def _figure_legend(table: Table) -> str:
    values = f"The values are in [{table.artifact.name}.csv]({table.artifact.name}.csv)."
    return f"{table.legend()} {values}"


def _troubles(table: Table) -> list[str]:
    """Say once why cells failed, have no data or aren't built."""
    cells: dict[str, list[str]] = {}
    for row, column, value in table.distinct():
        for detail in value.details:
            cells.setdefault(detail, []).append(table.name(row, column))
    return [f"{detail} ({'; '.join(names)})" for detail, names in cells.items()]


def _claims(table: Table) -> list[str]:
    verdicts = judge(table.artifact, table.values)
    if not verdicts:
        return []
    lines = [f"- {v.claim.says}: {v.sentence(table.artifact.decimals)}" for v in verdicts]
    explained = "Unclear: within two standard errors of the seeds, where there are several."
    heading = "## The paper's claims" if table.artifact.published else "## Claims"
    return [heading, "\n".join(lines), explained]


def _certificates(table: Table) -> list[str]:
    lines = [["Cell", "Certified ε", "Noise multiplier", "Runs and their certificates"]]
    for row, column, value in table.distinct():
        if value.run_ids:
            runs = ", ".join(
                f"[{i}](../runs/{i}/) ([privacy](../runs/{i}/privacy.json))" for i in value.run_ids
            )
            lines.append([table.name(row, column), _number(value.epsilon),
                          _number(value.noise_multiplier), runs])  # fmt: skip
    if len(lines) == 1:
        return []
    return ["## Runs", _md_table(lines)]


def _number(value: float | None) -> str:
    return "not private" if value is None else f"{value:.3f}"
