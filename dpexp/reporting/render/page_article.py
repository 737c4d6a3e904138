"""An artifact's part of the page: picture or table, verdict, notes, claims, runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpexp.reporting.collect.cells import relabel
from dpexp.reporting.collect.values import Value
from dpexp.reporting.judge import verdict
from dpexp.reporting.render.crossings import crossings
from dpexp.reporting.render.markdown import BY_PAPER, DIVERGED, certified
from dpexp.reporting.render.table import Table, unbroken
from dpexp.reporting.schema.artifact import CURVES, MAPS, Column, Row

FEW = 3
"""Number of cells without a value up to which they are named."""


@dataclass(frozen=True)
class Entry:
    """An artifact on the page.

    Attributes:
        table: the artifact's.
        methods, tasks: names to filter by.
    """

    table: Table
    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A cell as text: words, or the measured and published values and their difference.

    Attributes:
        words: of a column of words; all other fields are then empty.
        measured, spread, seeds: the mean, its standard deviation, and the number of seeds if > 1.
        status: why nothing was measured, or how many seeds diverged.
        paper, difference: the published value, and measured minus published.
        sign, size: CSS classes that colour the difference.
    """

    words: str = ""
    measured: str = ""
    spread: str = ""
    seeds: str = ""
    status: str = ""
    paper: str = ""
    difference: str = ""
    sign: str = ""
    size: str = ""


@dataclass(frozen=True)
class Runs:
    """A cell's name, the numbers of its runs as text, and their ids."""

    name: str
    numbers: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Article:
    """An artifact's part of the page, as text for `page_files/index.html.j2`."""

    key: str
    paper: str
    short_name: str
    title: str
    place: str
    verdict: str
    stem: str
    methods: str
    tasks: str
    text: str
    scaled: str
    overridden: str
    downloads: tuple[str, ...]
    picture: str
    has_values: bool
    is_folded: bool
    of_curves: str
    head: tuple[str, ...]
    num_labels: int
    rows: tuple[tuple[tuple[str, ...], tuple[Shown, ...]], ...]
    notes: tuple[str, ...]
    claims: tuple[tuple[str, str, str], ...]
    by_paper: str = ""
    num_runs: int = 0
    runs: tuple[Runs, ...] = field(default=())


def article(entry: Entry, folder: Path) -> Article:
    """Return an artifact's part of the page, without pictures and files that `folder` lacks."""
    table, artifact = entry.table, entry.table.artifact
    judged = verdict.of(artifact, table.profile, table.values)
    stem = f"{artifact.paper}/{artifact.name}"
    name = _short_name(artifact.name)
    text = " ".join([artifact.paper, artifact.name, name, artifact.title,
                     *table.head(), *(" ".join(relabel(r, table.changes)) for r in artifact.rows),
                     *(" ".join(relabel(c, table.changes)) for c in artifact.columns),
                     *(claim.says for claim in artifact.claims)])  # fmt: skip
    cells = [(row, column, v) for row, column, v in table.distinct() if v.run_ids]
    has_papers = any(value.papers_multiplier is not None for _, _, value in cells)
    return Article(
        key=f"{artifact.paper}-{artifact.name}",
        paper=artifact.paper,
        short_name=name,
        title=artifact.title,
        place=artifact.place,
        verdict=judged.sentence,
        stem=stem,
        methods=" ".join(entry.methods),
        tasks=" ".join(entry.tasks),
        text=text.lower(),
        scaled="" if table.profile == "paper" else table.changes.scaled.strip(),
        overridden=", ".join(table.overridden),
        downloads=_there(stem, ("md", "csv", *(("svg", "png") if artifact.figure else ("tex",))),
                         folder),
        picture=_picture(stem, folder) if artifact.figure else "",
        has_values=artifact.kind != MAPS,
        is_folded=bool(artifact.figure) and artifact.kind != MAPS,
        of_curves=", of each curve's end" if artifact.kind == CURVES else "",
        head=tuple(map(unbroken, table.head())),
        num_labels=len(artifact.row_head),
        rows=tuple(
            (
                tuple(relabel(row, table.changes)),
                tuple(_shown(table, row, column, value) for column, value in values),
            )
            for row, values in table.printed()
        ),
        notes=_notes(table),
        claims=tuple(
            (v.word, v.claim.says, v.sentence().partition("**: ")[2]) for v in judged.judged
        ),
        by_paper=BY_PAPER if has_papers else "",
        num_runs=len({i for _, _, value in cells for i in value.run_ids}),
        runs=tuple(
            Runs(table.name(row, column), _numbers(value, has_papers), tuple(value.run_ids))
            for row, column, value in cells
        ),
    )  # fmt: skip


def _short_name(name: str) -> str:
    """Return an artifact's name for readers: table3 is Table 3."""
    stem = name.rstrip("0123456789")
    return f"{stem.capitalize()} {name[len(stem) :]}".strip()


def _there(stem: str, suffixes: Sequence[str], folder: Path) -> tuple[str, ...]:
    return tuple(suffix for suffix in suffixes if (folder / f"{stem}.{suffix}").is_file())


def _picture(stem: str, folder: Path) -> str:
    """Return the path of the figure's picture; "" if it has none."""
    return next((f"{stem}.{suffix}" for suffix in _there(stem, ("svg", "png"), folder)), "")


def _shown(table: Table, row: Row, column: Column, value: Value) -> Shown:
    """Return a cell as text: measured and its spread, the published value, the difference."""
    decimals = table.artifact.decimals_of(row, column)
    if value.text:
        return Shown(words=value.text)
    paper = difference = sign = size = ""
    if value.published is not None:
        spread = "" if value.published_std is None else f" ± {value.published_std:g}"
        paper = f"paper {value.published:.{decimals}f}{spread}"
    if value.difference is not None and math.isfinite(value.difference):
        difference = f"{value.difference:+.{decimals}f}".replace("-", "−")
        far = verdict.size(value.difference)
        sign = "close" if far == verdict.WITHIN_1 else "above" if value.difference > 0 else "below"
        size = {verdict.WITHIN_1: "", verdict.WITHIN_3: "mid"}.get(far, "far")
    return Shown(
        measured="" if value.mean is None else f"{value.mean:.{decimals}f}",
        spread="" if value.std is None else f" ± {value.std:.{decimals}f}",
        seeds=str(value.num_seeds) if value.num_seeds > 1 else "",
        status=value.divergence or ("" if value.mean is not None else value.status),
        paper=paper,
        difference=difference,
        sign=sign,
        size=size,
    )


def _notes(table: Table) -> tuple[str, ...]:
    admitted = table.deviations()
    lines = [
        table.artifact.published_note,
        f"Certificates admit: {'; '.join(admitted)}." if admitted else "",
        *(f"{status}: {_count(names)}" for status, names in table.absent().items()),
        DIVERGED if table.has_diverged else "",
        *table.chosen,
        *table.skipped(),
        *(sentence for sentence, _ in crossings(table)),
        table.changes.why_not,
        *dict.fromkeys(d for value in table.values.values() for d in value.details),
    ]
    return tuple(line.strip() for line in lines if line.strip())


def _count(names: Sequence[str]) -> str:
    """Return the names of a few cells, or their number; each cell shows its own status."""
    return "; ".join(names) if len(names) <= FEW else f"{len(names)} cells"


def _numbers(value: Value, has_papers: bool) -> tuple[str, ...]:
    theirs = "–" if value.papers_multiplier is None else _number(value.papers_multiplier)
    numbers = (certified(value), _number(value.noise_multiplier))
    return (*numbers, theirs) if has_papers else numbers


def _number(value: float | None) -> str:
    return "not private" if value is None else f"{value:.3f}"
