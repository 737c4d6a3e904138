"""One static page of all artifacts: measured and published values, claims, links to the runs.

The page needs no server and no network: styles and the filter are inline, and links to pictures,
records and certificates are relative. This module and `page_article` collect its contents;
`page_files` holds its template, style and script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from dpexp.reporting.collect import build
from dpexp.reporting.collect.values import NOT_FINITE, SKIPPED
from dpexp.reporting.judge import verdict
from dpexp.reporting.judge.claims import EXPLAINED, FAILS, HOLDS, NOT_RUN, SO_FAR, UNCLEAR
from dpexp.reporting.render.page_article import Article, Entry, article

__all__ = ["PAGE", "Entry", "html", "write"]

PAGE = "index.html"

BADGES = {HOLDS: ("holds", "✓"), FAILS: ("fails", "✗"), UNCLEAR: ("unclear", "?"),
          NOT_RUN: ("absent", "–"), SKIPPED: ("absent", "–")}  # fmt: skip
"""A verdict's class and sign, so that no meaning depends on colour alone."""

RECORD = {"config": "config.yaml", "certificate": "privacy.json", "result": "result.json"}
"""Linked files of a run, by name."""

SIZES = {verdict.WITHIN_1: "within 1 point of the published value",
         verdict.WITHIN_3: "more within 3", verdict.BEYOND: "beyond",
         verdict.NOT_RUN: "not run"}  # fmt: skip


def write(entries: Sequence[Entry], results: Path, profile: str) -> Path:
    """Write `<results>/<profile>/index.html` and return its path.

    Raises:
        RecordError: it cannot be written.
    """
    path = results / profile / PAGE
    build.save(path, html(entries, profile, path.parent))
    return path


def html(entries: Sequence[Entry], profile: str, folder: Path) -> str:
    """Return the page's text.

    Args:
        entries: the artifacts, in order.
        profile: the profile under which they were built.
        folder: of the page, next to the papers' folders; missing pictures are left out.
    """
    claims: Counter[str] = Counter()
    cells: Counter[str] = Counter()
    for entry in entries:
        judged = verdict.of(entry.table.artifact, entry.table.profile, entry.table.values)
        claims.update(judged.claims)
        cells.update(judged.cells)
    articles = [article(entry, folder) for entry in entries]
    contents: dict[str, list[Article]] = {}
    for item in articles:
        contents.setdefault(item.paper, []).append(item)
    loader = PackageLoader("dpexp.reporting.render", "page_files")
    files = Environment(
        loader=loader, autoescape=select_autoescape(["j2"]), undefined=StrictUndefined
    )
    return files.get_template("index.html.j2").render(
        profile=profile,
        articles=articles,
        contents=contents,
        num_runs=len({i for e in entries for v in e.table.values.values() for i in v.run_ids}),
        claims={word: count for word, count in claims.items() if count},
        explained=EXPLAINED,
        cells=_sizes(cells) if profile == "paper" else "",
        choices={
            "paper": list(contents),
            "method": sorted({m for entry in entries for m in entry.methods}),
            "task": sorted({t for entry in entries for t in entry.tasks}),
        },
        badges=BADGES,
        so_far=SO_FAR,
        record=RECORD,
        links=_links(profile, folder),
    )


def _sizes(cells: Mapping[str, int]) -> str:
    """Return the numbers of published cells by size; of diverged ones, if there are some."""
    words = {**SIZES, NOT_FINITE: NOT_FINITE} if cells.get(NOT_FINITE) else SIZES
    return ", ".join(f"{cells.get(size, 0)} {word}" for size, word in words.items())


def _links(profile: str, folder: Path) -> list[tuple[str, str]]:
    """Return what there is beside the page, as words and relative addresses."""
    pages = sorted(path.parent.name for path in folder.parent.glob(f"*/{PAGE}"))
    places = [(f"profile {name}", f"../{name}/{PAGE}") for name in pages if name != profile]
    places += [("audit of the privacy", "audit.md")]
    places += [
        (f"membership inference on {path.stem}", f"lira/{path.name}")
        for path in sorted((folder / "lira").glob("*.md"))
    ]
    places += [("README", "../../README.md"), ("decisions", "../../docs/decisions/index.md")]
    return [(words, quote(place)) for words, place in places if (folder / place).is_file()]
