"""Docstrings as the site prints them: an indented example is code, a dash a dash."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def mark_examples(
    app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]
) -> None:
    """Put the mark of a literal block before indented lines that stand apart from a sentence."""
    marked: list[str] = []
    last = ""
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("    ") and not before.strip() and last[:1].strip():
            marked += ["::", ""]
        last = line if line.strip() else last
        marked.append(line)
    lines[:] = marked


def dashes(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Print the dash between an argument and what it is, which is typed as two hyphens."""
    for text in [*doctree.findall(nodes.Text)]:
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, Any]:
    """Hear of docstrings before their sections are read, and of pages before they are written."""
    app.connect("autodoc-process-docstring", mark_examples, priority=100)
    app.connect("doctree-resolved", dashes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
