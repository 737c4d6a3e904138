"""Links to files of the checkout that are no pages of the site: shown or copied beside them.

The site mirrors the checkout, so that a relative link has one meaning on both. Source files become
pages with highlighting, folders pages that list them. The pages of tables and figures, pictures and
what runs recorded are copied as they are.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from docs._ext import gallery, records

ROOT = records.RESULTS.parent
COPIED = {".png", ".svg", ".csv", ".json", ".jsonl", ".html", ".ipynb", ".tex", ".md"}
"""Files that a browser shows by itself, or that are to be downloaded."""

RECORD = ("config.yaml", "privacy.json", "result.json")
"""Of a run: what the pages link."""

LISTING = (
    "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<meta name=color-scheme content='light dark'><title>{name}</title>"
    "<h1>{name}</h1><ul>{items}</ul>"
)

FIRST = (
    "<!doctype html><meta charset=utf-8><title>dpexp</title>"
    '<meta http-equiv=refresh content="0; url={page}"><a href="{page}">dpexp</a>'
)
"""The site's address leads to its first page."""

MADE = re.compile(r"results/(\w+)/(\w+)/((?:table|figure)\d+)\.md")
RUN = re.compile(r"results/\w+/runs/[0-9a-f]{12}")


class Files(SphinxTransform):
    """Turns links to files and folders into links to where the site has them."""

    default_priority = 500  # before the links are counted as downloads or missing pages

    def apply(self, **_: Any) -> None:
        """Replace the links of a page."""
        folder = os.path.dirname(self.env.docname)
        for node in [*self.document.findall(addnodes.download_reference),
                     *self.document.findall(addnodes.pending_xref)]:  # fmt: skip
            if node.get("reftype") != "myst" or node["reftarget"] in self.env.found_docs:
                continue
            path, _, anchor = node["reftarget"].partition("#")
            target = os.path.normpath(os.path.join(folder, path))
            if node.get("refdomain") == "doc":  # a file of Markdown, by its place in the checkout
                target = f"{path}.md"
            if not path or target.startswith("..") or not (ROOT / target).exists():
                continue
            address = place_of(self.app, target)
            address = os.path.relpath(address.partition("#")[0], folder or ".") + "".join(
                address.partition("#")[1:]
            )
            link = nodes.reference(
                "", "", *node.children, refuri=address + (anchor and f"#{anchor}")
            )
            node.replace_self(link)


def place_of(app: Sphinx, target: str) -> str:
    """Return where the site has a file or folder of the checkout, and have it put there."""
    made = MADE.fullmatch(target)
    if made and (made[1], f"{made[2]}-{made[3]}") in _anchors():
        return f"results/{made[1]}/index.html#{made[2]}-{made[3]}"
    wanted = app.site_files  # type: ignore[attr-defined]
    if RUN.match(target) or Path(target).suffix in COPIED:
        wanted["copied"].add(target)
        return f"{target}/index.html" if RUN.fullmatch(target) else target
    wanted["shown"].add(target)
    return f"{target}/index.html" if (ROOT / target).is_dir() else f"{target}.html"


def _anchors() -> set[tuple[str, str]]:
    return gallery.anchors(records.profiles())


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each source file and folder that is linked."""
    todo, seen = sorted(app.site_files["shown"]), set()  # type: ignore[attr-defined]
    while todo:
        target = todo.pop()
        if target in seen:
            continue
        seen.add(target)
        path = ROOT / target
        if path.is_dir():
            inside = [p for p in sorted(path.iterdir()) if p.name[0] not in "._"]
            names = [(p.name, place_of(app, f"{target}/{p.name}")) for p in inside]
            todo += [f"{target}/{p.name}" for p in inside if _is_shown(app, f"{target}/{p.name}")]
            items = "".join(
                f'<li><a href="{os.path.relpath(place, target)}">{escape(name)}</a></li>'
                for name, place in names
            )
            body = f"<ul>{items}</ul>"
            name = f"{target}/index"
        else:
            body, name = _highlighted(app, path), target
        title = f"<h1><code>{escape(target)}</code></h1>"
        yield name, {"title": target, "body": title + body, "display_toc": False}, "page.html"


def _is_shown(app: Sphinx, target: str) -> bool:
    return target in app.site_files["shown"]  # type: ignore[attr-defined]


def _highlighted(app: Sphinx, path: Path) -> str:
    try:
        language = get_lexer_for_filename(path.name).aliases[0]
    except ClassNotFound:
        language = "text"
    text = path.read_text(encoding="utf-8")
    return app.builder.highlighter.highlight_block(text, language)  # type: ignore[attr-defined]


def copy(app: Sphinx, error: Exception | None) -> None:
    """Copy the pages of tables and figures with all that they link, and what else is linked."""
    if error:
        return
    out = Path(app.outdir)
    (out / "index.html").write_text(FIRST.format(page=f"{app.config.root_doc}.html"), "utf-8")
    wanted = set(app.site_files["copied"])  # type: ignore[attr-defined]
    for profile in records.profiles():
        page = f"results/{profile}/index.html"
        text = (ROOT / page).read_text(encoding="utf-8")
        (out / page).parent.mkdir(parents=True, exist_ok=True)
        links = set(re.findall(r'(?:href|src)="([^"#:?]+)"', text))
        for link in links:
            target = os.path.normpath(f"results/{profile}/{link}")
            if (ROOT / target).is_file() and not target.endswith("index.html"):
                wanted.add(target)  # what is not there is found by the check of links
        text = re.sub(r'href="([^"#:?]+)\.md"', partial(_as_page, profile, out), text)
        text = re.sub(r'href="(runs/[0-9a-f]{12})/"', r'href="\1/index.html"', text)
        (out / page).write_text(text, encoding="utf-8")
    for target in sorted(wanted):
        run = RUN.match(target)
        if run:
            _copy_record(run[0], out)
        elif not (out / target).exists():  # pages stand there by now, with other links
            (out / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target, out / target)


def _as_page(profile: str, out: Path, link: re.Match[str]) -> str:
    """Return a link to a page of the site where a page of Markdown has become one, or a folder."""
    for place in (f"{link[1]}.html", f"{link[1]}/index.html"):
        if (out / "results" / profile / place).is_file():
            return f'href="{place}"'
    return link[0]


def _copy_record(run: str, out: Path) -> None:
    """Copy what a run recorded, with a page that lists it."""
    if (out / run / "index.html").exists():
        return
    (out / run).mkdir(parents=True, exist_ok=True)
    there = [name for name in RECORD if (ROOT / run / name).is_file()]
    for name in there:
        shutil.copyfile(ROOT / run / name, out / run / name)
    items = "".join(f'<li><a href="{name}">{name}</a>' for name in there)
    text = LISTING.format(name=run, items=items)
    (out / run / "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Have links go to files, and files to where they are looked for."""
    app.site_files = {"shown": set(), "copied": set()}  # type: ignore[attr-defined]
    app.add_transform(Files)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", copy, priority=400)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
