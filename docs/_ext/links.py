"""Every link of the finished site leads to a file of it, and to an anchor that is there."""

from __future__ import annotations

import os
import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sphinx.application import Sphinx
from sphinx.util import logging

LINK = re.compile(r"""<(?!!)[a-z][^<>]*?\s(href|src)=(?:"([^"]*)"|'([^']*)')""")
ANCHOR = re.compile(r'\s(?:id|name)="([^"]+)"')
OUTSIDE = re.compile(r"^(https?|mailto|data|javascript):")
FETCHED = re.compile(r'<(?:link|script|img|iframe|source)\b[^>]*?(?:href|src)="(?:https?:)?//')


def broken(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere, and for what a page would fetch."""
    lines = []
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(site).as_posix()
        lines += [f"{name}: fetches {found[0]}" for found in FETCHED.finditer(text)]
        for link in {unescape(m[2] or m[3] or "") for m in LINK.finditer(text)}:
            if link and not OUTSIDE.match(link) and not _leads(page, link):
                lines.append(f"{name}: {link} leads nowhere")
    return lines


def _leads(page: Path, link: str) -> bool:
    address, _, anchor = link.partition("#")
    path = unquote(address.partition("?")[0])
    target = Path(os.path.normpath(page.parent / path)) if path else page
    if not target.is_file():
        return False
    return not anchor or target.suffix != ".html" or unquote(anchor) in _anchors(target)


@cache
def _anchors(page: Path) -> frozenset[str]:
    found = ANCHOR.findall(page.read_text(encoding="utf-8"))
    return frozenset(map(unescape, found))


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of each broken link, which `-W` makes an error."""
    if error is None and app.builder.format == "html":
        _anchors.cache_clear()
        for line in broken(Path(app.outdir)):
            logging.getLogger(__name__).warning(line, type="links")


def setup(app: Sphinx) -> dict[str, Any]:
    """Check the site once it is built."""
    app.connect("build-finished", check, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
