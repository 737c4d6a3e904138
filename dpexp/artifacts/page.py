"""One static page of every artifact: published beside measured, claims, and links to the runs.

It needs no server and no network: styles and the filter are inline, and pictures, records and
certificates are linked relative to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from dpexp.artifacts import build, verdict
from dpexp.artifacts.claims import EXPLAINED
from dpexp.artifacts.page_article import Entry, article, badge, short_name
from dpexp.artifacts.page_look import SCRIPT, STYLE

PAGE = "index.html"


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
    articles = "\n".join(article(entry, folder) for entry in entries)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>dpexp: tables and figures, profile {escape(profile)}</title>
<style>{STYLE}</style>
<header>
<h1>Tables and figures, profile <code>{escape(profile)}</code></h1>
{_summary(entries, profile)}
{_controls(entries)}
</header>
<nav aria-label="Artifacts">{_contents(entries)}</nav>
<main>
{articles}
<p id="none" hidden>Nothing matches.</p>
</main>
<script>{SCRIPT}</script>
</html>
"""


def _summary(entries: Sequence[Entry], profile: str) -> str:
    claims: Counter[str] = Counter()
    cells: Counter[str] = Counter()
    for entry in entries:
        found = verdict.of(entry.table)
        claims.update(found.claims)
        cells.update(found.cells)
    runs = {i for entry in entries for v in entry.table.values.values() for i in v.run_ids}
    told = ", ".join(f"{count} {badge(word)}" for word, count in claims.items() if count)
    lines = [
        f"<p><b>{len(entries)}</b> artifacts from <b>{len(runs)}</b> runs. "
        f"Claims: {told or 'none'}.</p>"
    ]
    if claims:
        lines.append(f'<p class="legend">{escape(EXPLAINED)}</p>')
    if profile == "paper":
        words = {verdict.WITHIN_1: "within 1 point of the published value",
                 verdict.WITHIN_3: "more within 3", verdict.BEYOND: "beyond",
                 verdict.NOT_RUN: "not run"}  # fmt: skip
        lines.append(f"<p>Cells: {', '.join(f'{cells[k]} {w}' for k, w in words.items())}.</p>")
    else:
        lines.append(
            '<p class="warning">Under this profile the numbers are not comparable with the '
            "published ones; each artifact says how the setting was cut down.</p>"
        )
    legend = "".join(
        f'<span class="d {sign} {size}">{words}</span>'
        for sign, size, words in (
            ("below", "far", "−3 and less"),
            ("below", "mid", "to −3"),
            ("close", "", "within 1"),
            ("above", "mid", "to +3"),
            ("above", "far", "+3 and more"),
        )
    )
    lines.append(f'<p class="legend">Measured minus published: {legend}</p>')
    return "\n".join(lines)


def _controls(entries: Sequence[Entry]) -> str:
    papers = dict.fromkeys(entry.table.artifact.paper for entry in entries)
    groups = {
        "paper": list(papers),
        "method": sorted({m for entry in entries for m in entry.methods}),
        "task": sorted({t for entry in entries for t in entry.tasks}),
    }
    selects = "".join(
        f'<label>{name}<select data-by="{name}s"><option value="">all</option>'
        + "".join(f"<option>{escape(option)}</option>" for option in options)
        + "</select></label>"
        for name, options in groups.items()
    )
    return (
        '<form role="search" onsubmit="return false">'
        '<label class="wide">search<input type="search" id="search" '
        'placeholder="words of a title, row, column or claim"></label>'
        f'{selects}<output id="count"></output></form>'
    )


def _contents(entries: Sequence[Entry]) -> str:
    papers: dict[str, list[str]] = {}
    for entry in entries:
        artifact = entry.table.artifact
        title, name = escape(artifact.title), short_name(artifact.name)
        link = f'<a href="#{entry.key}" title="{title}">{name}</a>'
        papers.setdefault(artifact.paper, []).append(link)
    return "".join(
        f"<span><b>{escape(paper)}</b> {' '.join(links)}</span>" for paper, links in papers.items()
    )
