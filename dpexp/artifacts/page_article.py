"""An artifact's part of the page: picture or table, verdict, notes, claims, runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dpexp.artifacts import verdict
from dpexp.artifacts.cells import relabel
from dpexp.artifacts.claims import FAILS, HOLDS, NOT_RUN, SO_FAR, UNCLEAR
from dpexp.artifacts.collect import Value
from dpexp.artifacts.markdown import BY_PAPER
from dpexp.artifacts.table import Table
from dpexp.artifacts.words import CURVES, MAPS, Line

BADGES = {HOLDS: ("holds", "✓"), FAILS: ("fails", "✗"), UNCLEAR: ("unclear", "?"),
          NOT_RUN: ("absent", "–")}  # fmt: skip
"""A verdict's class and sign: neither it nor a difference is told by colour alone."""

FEW = 3
"""How many cells without a value are named."""

RECORD = {"config": "config.yaml", "certificate": "privacy.json", "result": "result.json"}
"""What of a run is linked, and its file."""


@dataclass(frozen=True)
class Entry:
    """An artifact on the page.

    Attributes:
        table: what is shown.
        methods, tasks: names that the reader may look for it by.
    """

    table: Table
    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name it within the page."""
        return f"{self.table.artifact.paper}-{self.table.artifact.name}"


def short_name(name: str) -> str:
    """Word an artifact's name: table3 as Table 3."""
    stem = name.rstrip("0123456789")
    return escape(f"{stem.capitalize()} {name[len(stem) :]}".strip())


def article(entry: Entry, folder: Path) -> str:
    """Give an artifact's part of the page; pictures and files that `folder` lacks are left out."""
    table, artifact = entry.table, entry.table.artifact
    found = verdict.of(table)
    text = " ".join([artifact.paper, artifact.name, short_name(artifact.name), artifact.title,
                     *table.head(), *(" ".join(relabel(r, table.changes)) for r in artifact.rows),
                     *(" ".join(relabel(c, table.changes)) for c in artifact.columns),
                     *(claim.says for claim in artifact.claims)])  # fmt: skip
    parts = [
        f"<h2><small>{escape(artifact.paper)} {short_name(artifact.name)}</small> "
        f"{escape(artifact.title)}</h2>",
        f'<p class="place">{escape(artifact.place)}. {_downloads(table, folder)}</p>',
        f'<p class="verdict">{escape(found.sentence)}</p>',
        _scaled(table),
        _picture(table, folder) if artifact.figure else _values(table),
        _notes(table),
        _claims(found),
        _runs(table),
    ]
    data = {"papers": [artifact.paper], "methods": entry.methods, "tasks": entry.tasks}
    attributes = "".join(f' data-{k}="{escape(" ".join(v))}"' for k, v in data.items())
    return (
        f'<article id="{entry.key}"{attributes} data-text="{escape(text.lower())}">\n'
        + "\n".join(part for part in parts if part)
        + "\n</article>"
    )


def _downloads(table: Table, folder: Path) -> str:
    stem = f"{table.artifact.paper}/{table.artifact.name}"
    suffixes = ("md", "csv", "svg", "png") if table.artifact.figure else ("md", "csv", "tex")
    return " ".join(
        f'<a href="{stem}.{suffix}">{suffix}</a>'
        for suffix in suffixes
        if (folder / f"{stem}.{suffix}").is_file()
    )


def _scaled(table: Table) -> str:
    lines = []
    if table.profile != "paper" and table.changes.scaled:
        lines.append(f'<p class="scaled">{escape(table.changes.scaled.strip())}</p>')
    if table.overridden:
        lines.append(f'<p class="warning">Overridden: {escape(", ".join(table.overridden))}</p>')
    return "".join(lines)


def _picture(table: Table, folder: Path) -> str:
    """Link the figure; what it is of stands below as numbers, but pictures are not."""
    stem = f"{table.artifact.paper}/{table.artifact.name}"
    source = next(
        (
            f"{stem}.{suffix}"
            for suffix in ("svg", "png")
            if (folder / f"{stem}.{suffix}").is_file()
        ),
        "",
    )
    picture = (
        f'<a class="picture" href="{source}"><img loading="lazy" src="{source}" '
        f'alt="{escape(table.artifact.title)}"></a>'
        if source
        else ""
    )
    if table.artifact.kind == MAPS:
        return picture
    of_curves = ", of each curve's end" if table.artifact.kind == CURVES else ""
    return f"{picture}<details><summary>Numbers{of_curves}</summary>{_values(table)}</details>"


def _values(table: Table) -> str:
    """Set the cells: measured and its spread, the published value, and the difference."""
    head = "".join(
        f'<th scope="col"{" class=label" * (n < len(table.artifact.row_head))}>{escape(word)}</th>'
        for n, word in enumerate(table.head())
    )
    rows = []
    for row, cells in table.grid():
        labels = "".join(
            f'<th scope="row">{escape(word)}</th>' for word in relabel(row, table.changes)
        )
        values = "".join(f"<td>{_cell(table, row, column, value)}</td>" for column, value in cells)
        rows.append(f"<tr>{labels}{values}</tr>")
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(table: Table, row: Line, column: Line, value: Value) -> str:
    decimals = table.artifact.decimals_of(row, column)
    if value.text:
        return f'<span class="words">{escape(value.text)}</span>'
    parts = []
    if value.mean is None:
        parts.append(f'<span class="no">{escape(value.status)}</span>')
    else:
        spread = "" if value.std is None else f" ± {value.std:.{decimals}f}"
        count = f' <i title="seeds">n={value.num_seeds}</i>' if value.num_seeds > 1 else ""
        parts.append(f"<b>{value.mean:.{decimals}f}</b>{spread}{count}")
    below = []
    if value.published is not None:
        spread = "" if value.published_std is None else f" ± {value.published_std:g}"
        paper = f"paper {value.published:.{decimals}f}{spread}"
        below.append(f'<span class="published">{paper}</span>')
    if value.difference is not None:
        below.append(_difference(value.difference, decimals))
    parts += [" ".join(below)] if below else []
    return "<br>".join(parts)


def _difference(difference: float, decimals: int) -> str:
    if not math.isfinite(difference):
        return ""
    size = verdict.size(difference)
    sign = "close" if size == verdict.WITHIN_1 else "above" if difference > 0 else "below"
    strength = {verdict.WITHIN_1: "", verdict.WITHIN_3: "mid"}.get(size, "far")
    text = f"{difference:+.{decimals}f}".replace("-", "−")
    return f'<span class="d {sign} {strength}">{text}</span>'


def _notes(table: Table) -> str:
    admitted = table.deviations()
    lines = [
        table.artifact.published_note,
        f"Certificates admit: {'; '.join(admitted)}." if admitted else "",
        *(f"{status}: {_count(names)}" for status, names in table.absent().items()),
        *table.chosen,
        *table.skipped(),
    ]
    details = dict.fromkeys(d for value in table.values.values() for d in value.details)
    lines += [table.changes.why_not, *details]
    items = "".join(f"<li>{escape(line.strip())}</li>" for line in lines if line.strip())
    return f'<ul class="notes">{items}</ul>' if items else ""


def _count(names: Sequence[str]) -> str:
    """Name a few cells; of many say how many, as the cells themselves say so."""
    return "; ".join(names) if len(names) <= FEW else f"{len(names)} cells"


def _claims(found: verdict.Judgement) -> str:
    items = "".join(
        f"<li>{badge(v.word)} {escape(v.claim.says)} "
        f'<span class="why">{escape(v.sentence().partition("**: ")[2])}</span></li>'
        for v in found.judged
    )
    return f'<ul class="claims">{items}</ul>' if items else ""


def badge(word: str) -> str:
    """Set what became of a claim, such as "holds so far", as sign and colour."""
    name, sign = BADGES[word.removesuffix(SO_FAR)]
    return (
        f'<span class="badge {name}"><span aria-hidden="true">{sign}</span> {escape(word)}</span>'
    )


def _runs(table: Table) -> str:
    cells = [(row, column, v) for row, column, v in table.distinct() if v.run_ids]
    if not cells:
        return ""
    beside = any(value.papers_multiplier is not None for _, _, value in cells)

    def theirs(value: Value) -> str:
        told = "–" if value.papers_multiplier is None else _number(value.papers_multiplier)
        return f"<td>{told}</td>" if beside else ""

    lines = "".join(
        f"<tr><td>{escape(table.name(row, column))}</td><td>{_number(value.epsilon)}</td>"
        f"<td>{_number(value.noise_multiplier)}</td>{theirs(value)}"
        f"<td>{_links(value.run_ids)}</td></tr>"
        for row, column, value in cells
    )
    by_paper = f"<th>{escape(BY_PAPER)}</th>" if beside else ""
    count = len({i for _, _, value in cells for i in value.run_ids})
    return (
        f"<details><summary>Runs, configs and certificates ({count})</summary>"
        '<div class="scroll" tabindex="0"><table class="runs"><thead><tr><th>Cell</th>'
        f"<th>Certified ε</th><th>Noise multiplier</th>{by_paper}<th>Runs</th></tr></thead>"
        f"<tbody>{lines}</tbody></table></div></details>"
    )


def _number(value: float | None) -> str:
    return "not private" if value is None else f"{value:.3f}"


def _links(run_ids: Iterable[str]) -> str:
    return "<br>".join(
        f'<a href="runs/{i}/"><code>{i}</code></a> '
        + " ".join(f'<a href="runs/{i}/{file}">{word}</a>' for word, file in RECORD.items())
        for i in run_ids
    )
