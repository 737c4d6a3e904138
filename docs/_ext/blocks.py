"""Put what is generated where a page says `<!-- generated: WORD ... -->`."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from docs._ext import configuration, contents, gallery, methods

BLOCK = re.compile(
    r"^<!-- generated: (?P<word>\w+)(?: (?P<rest>[^>]*?))? -->$(?:\n\*`make docs` .*\*$)?", re.M
)
"""A block's place, and the line that stands there for whoever reads the file itself."""


def generated(text: str) -> str:
    """Return a page with its blocks filled.

    Raises:
        ExtensionError: for a word that means nothing.
    """
    return BLOCK.sub(lambda block: _block(block["word"], block["rest"] or ""), text)


def _block(word: str, rest: str) -> str:
    whole = {
        "configuration": configuration.page,
        "contents": contents.page,
        "gallery": gallery.page,
    }
    if word in whole:
        return whole[word]()
    name, _, listed = (part.strip() for part in rest.partition(":"))
    names = [each.strip() for each in listed.split(";") if each.strip()]
    if word == "method":
        return methods.section(name, names)
    if word == "algorithm":
        return methods.algorithm(name)
    if word == "rest":
        return methods.rest(name, names)
    raise ExtensionError(
        "Expected configuration, contents, gallery, method, algorithm or rest; got generated: "
        f"{word}."
    )


def fill(_: Sphinx, docname: str, source: list[str]) -> None:
    """Fill a page's blocks, and name a folder's pages where its first one does not."""
    source[0] = contents.of_folder(docname, generated(source[0]))


def orphans(app: Sphinx, _: Any) -> None:
    """Let pages outside of docs stand in no table of contents."""
    for docname in app.env.all_docs:
        if not docname.startswith("docs/"):
            app.env.metadata[docname]["orphan"] = "true"


def setup(app: Sphinx) -> dict[str, Any]:
    """Fill pages as they are read."""
    app.connect("source-read", fill)
    app.connect("env-updated", orphans)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
