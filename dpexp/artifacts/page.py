"""One static page of every artifact: published beside measured, claims, and links to the runs.

It needs no server and no network: styles and the filter are inline, and pictures, records and
certificates are linked relative to it. What it shows is gathered here and in `page_article`; how,
stands in `page_files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from dpexp.artifacts import build, verdict
from dpexp.artifacts.claims import EXPLAINED, FAILS, HOLDS, NOT_RUN, SO_FAR, UNCLEAR
from dpexp.artifacts.page_article import Article, Entry, article

__all__ = ["PAGE", "Entry", "html", "write"]

PAGE = "index.html"

BADGES = {HOLDS: ("holds", "✓"), FAILS: ("fails", "✗"), UNCLEAR: ("unclear", "?"),
          NOT_RUN: ("absent", "–")}  # fmt: skip
"""A verdict's class and sign: neither it nor a difference is told by colour alone."""

RECORD = {"config": "config.yaml", "certificate": "privacy.json", "result": "result.json"}
"""What of a run is linked, and its file."""

SIZES = {verdict.WITHIN_1: "within 1 point of the published value",
         verdict.WITHIN_3: "more within 3", verdict.BEYOND: "beyond",
         verdict.NOT_RUN: "not run"}  # fmt: skip


def write(entries: Sequence[Entry], results: Path, profile: str) -> Path:
    """Write `<results>/<profile>/index.html`; give the path.

    Raises:
        RecordError: if it cannot be written.
    """
    path = results / profile / PAGE
    build.save(path, html(entries, profile, path.parent))
    return path


def html(entries: Sequence[Entry], profile: str, folder: Path) -> str:
    """Give the page's text.

    Args:
        entries: the artifacts, in order.
        profile: under which they were built.
        folder: where the page will lie, beside the papers' folders; a picture that is not there
            is left out.
    """
    claims: Counter[str] = Counter()
    cells: Counter[str] = Counter()
    for entry in entries:
        found = verdict.of(entry.table)
        claims.update(found.claims)
        cells.update(found.cells)
    articles = [article(entry, folder) for entry in entries]
    contents: dict[str, list[Article]] = {}
    for one in articles:
        contents.setdefault(one.paper, []).append(one)
    loader = PackageLoader("dpexp.artifacts", "page_files")
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
        cells=", ".join(f"{cells[k]} {w}" for k, w in SIZES.items()) if profile == "paper" else "",
        choices={
            "paper": list(contents),
            "method": sorted({m for entry in entries for m in entry.methods}),
            "task": sorted({t for entry in entries for t in entry.tasks}),
        },
        badges=BADGES,
        so_far=SO_FAR,
        record=RECORD,
    )
