"""Write a table or a figure as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpexp.privacy import ANALYSED
from dpexp.privacy.certificate import SHUFFLED
from dpexp.records.rounded import at_most
from dpexp.reporting.collect.values import WORDS, Value
from dpexp.reporting.judge import verdict
from dpexp.reporting.judge.claims import EXPLAINED, FAILS
from dpexp.reporting.render.crossings import crossings, explained
from dpexp.reporting.render.escape import for_markdown
from dpexp.reporting.render.table import Table, unbroken
from dpexp.reporting.schema.artifact import SUITES_OWN, Artifact

if TYPE_CHECKING:
    import pandas as pd

DIVERGED = (
    "Diverged: the number of these seeds is not finite. n and the mean are of the others, and "
    "claims that compare such a cell are unclear."
)
"""The footnote of a table or figure with such a cell."""
BY_PAPER = "By the paper's accountant"
WITHDRAWN = {ANALYSED: " but for the analysis", SHUFFLED: ", no guarantee"}
"""What follows an epsilon of runs with these deviations."""
BESIDE = (
    "Noise multiplier: each release's noise over its own sensitivity, as it is here, and what the "
    "paper's accountant asks for at the same q, steps, δ and target ε. What lies between the two "
    "is accounting alone, and no method's merit; docs/noise.md has both at the published settings, "
    "and says what of gep's is its released code's."
)


def markdown(table: Table) -> str:
    """Return the page: title, values or picture, footnotes, claims, certificates."""
    judged = verdict.of(table.artifact, table.profile, table.values)
    parts = [
        f"# {table.artifact.title}",
        f"{_place(table.artifact)}. Profile `{table.profile}`.",
        *_comparability(table),
        *_setting(table),
        _picture(table) if table.artifact.figure else _values(table),
        *([f"**Verdict**: {judged.sentence}"] if judged.sentence else []),
        *_footnotes(table, judged),
        *_crossings(table),
        *_claims(table, judged),
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
        parts.append("Run here: " + "; ".join(map(for_markdown, table.settings)) + ".")
    if table.artifact.alone and (devices := table.devices()):
        parts.append(f"Measured on: {'; '.join(map(for_markdown, devices))}.")
    if benches := [column.bench for column in table.printed_columns() if column.bench]:
        links = ", ".join(f"[{name}](../../bench/{name}.md)" for name in benches)
        parts.append(
            "A step's time and memory are multiples of those of a step without privacy, measured "
            f"side by side: {links}."
        )
    if table.overridden:
        words = ", ".join(f"`{word}`" for word in table.overridden)
        parts.append(f"Overridden on the command line: {words}.")
    return parts


def _picture(table: Table) -> str:
    return f"![{table.artifact.title}]({table.artifact.name}.svg)"


def _values(table: Table) -> str:
    notes = table.deviations()
    frame = table.frame(lambda value, decimals: _md_cell(value, decimals, notes))
    return _md_table(frame.rename(columns=unbroken))


def _md_table(frame: pd.DataFrame) -> str:
    """Return a table padded for reading as text; pandas' needs tabulate, which pads more."""
    lines = [list(frame.columns), *frame.to_numpy().tolist()]
    lines = [[word.replace("|", r"\|") for word in line] for line in lines]
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
        spread = "" if value.published_std is None else f" ± {value.published_std:g}"
        paper = f"<br>paper {value.published:.{decimals}f}{spread}{change}"
    return measured(value, decimals) + marks + paper


def measured(value: Value, decimals: int) -> str:
    """Return the measured value, or why there is none; in a column of words, the words."""
    if value.mean is None:
        return value.text if value.status == WORDS else for_markdown(value.status)
    spread = "" if value.std is None else f" ± {value.std:.{decimals}f}"
    text = f"{value.mean:.{decimals}f}{spread} (n={value.num_seeds})"
    return f"{text}, {value.divergence}" if value.diverged else text


def _place(artifact: Artifact) -> str:
    return f"Beside {artifact.place}" if artifact.published else artifact.place


def _footnotes(table: Table, judged: verdict.Judgement) -> list[str]:
    artifact = table.artifact
    legend = _figure_legend(table) if artifact.figure else _table_legend(table)
    notes = [f"[{k}] {for_markdown(word)}" for k, word in enumerate(table.deviations(), 1)]
    if table.has_diverged:
        notes.append(DIVERGED)
    short = any(0 < v.num_seeds < v.asked - v.diverged for v in table.values.values())
    if short:
        notes.append(f"A smaller n than {max(v.asked for v in table.values.values())}: "
                     "the other seeds were not run, or gave no value.")  # fmt: skip
    if artifact.figure:
        notes += [
            f"{for_markdown(status)}: {'; '.join(names)}"
            for status, names in table.absent().items()
        ]
    notes += [*map(for_markdown, table.chosen), *table.skipped(), *_troubles(table)]
    notes += _orderings(table, judged)
    return [" ".join(filter(None, [legend, artifact.published_note.strip()])),
            *(["\n".join(f"- {note}" for note in notes)] if notes else [])]  # fmt: skip


def _orderings(table: Table, judged: verdict.Judgement) -> list[str]:
    """Return the likely reason if a claim of the paper does not hold."""
    fails = any(claim.verdict == FAILS for claim in judged.judged)
    return [table.changes.why_not.strip()] if fails and table.changes.why_not else []


def _table_legend(table: Table) -> str:
    paper = "; then the paper's value and, in brackets, measured minus paper"
    return (
        f"Each cell: {table.value_label()}, mean ± standard deviation over n "
        f"seeds{paper if table.artifact.published else ''}."
    )


def _figure_legend(table: Table) -> str:
    values = f"The values are in [{table.artifact.name}.csv]({table.artifact.name}.csv)."
    return f"{table.legend()} {values}"


def _troubles(table: Table) -> list[str]:
    """Return each reason why cells failed, have no data or aren't built, with the cells."""
    cells: dict[str, list[str]] = {}
    for row, column, value in table.distinct():
        for detail in value.details:
            cells.setdefault(detail, []).append(table.name(row, column))
    return [f"{for_markdown(detail)} ({'; '.join(names)})" for detail, names in cells.items()]


def _crossings(table: Table) -> list[str]:
    import pandas as pd

    parts = []
    for sentence, (head, *lines) in crossings(table):
        parts += [sentence, _md_table(pd.DataFrame(lines, columns=head))]
    return ["## Predictions", *parts, explained(table)] if parts else []


def _claims(table: Table, judged: verdict.Judgement) -> list[str]:
    if not judged.judged:
        return []
    lines = [f"- {v.claim.says}: {v.sentence()}" for v in judged.judged]
    is_papers = table.artifact.published and table.artifact.paper != SUITES_OWN
    heading = "## The paper's claims" if is_papers else "## Claims"
    return [heading, "\n".join(lines), EXPLAINED]


def _certificates(table: Table) -> list[str]:
    """Return the runs and their certificates; runs shared by several cells appear once."""
    cells: dict[tuple[str, ...], list[str]] = {}
    values: dict[tuple[str, ...], Value] = {}
    for row, column, value in table.distinct():
        if value.run_ids:
            cells.setdefault(value.run_ids, []).append(table.name(row, column))
            values[value.run_ids] = value
    has_papers = any(value.papers_multiplier is not None for value in values.values())
    heads = ["Cell", "Certified ε", "Noise multiplier", BY_PAPER, "Runs and their certificates"]
    heads = [head for head in heads if has_papers or head != BY_PAPER]
    lines = []
    for ids, names in cells.items():
        runs = ", ".join(f"[{i}](../runs/{i}/) ([privacy](../runs/{i}/privacy.json))" for i in ids)
        numbers = [certified(values[ids]), _number(values[ids].noise_multiplier)]
        if has_papers:
            theirs = values[ids].papers_multiplier
            numbers.append("–" if theirs is None else _number(theirs))
        lines.append(["; ".join(names), *numbers, runs])
    if not cells:
        return []
    import pandas as pd

    note = [BESIDE] if has_papers else []
    return ["## Runs", _md_table(pd.DataFrame(lines, columns=heads)), *note]


def certified(value: Value) -> str:
    """Return a cell's epsilon, and in what its runs withdraw it."""
    if value.epsilon is None:
        return "not private"
    withdrawn = [words for note, words in WITHDRAWN.items() if note in value.deviations]
    return "".join([at_most(value.epsilon, 3), *withdrawn])


def _number(value: float | None) -> str:
    return "not private" if value is None else f"{value:.3f}"
