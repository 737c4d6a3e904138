"""The site's table of contents, in the order in which people look for things."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]

CONTENTS = {
    "Begin": ("start", "reproduce", "transcripts", "tracking"),
    "Your own": ("data", "models", "extend", "python"),
    "Reference": ("configuration", "options", "methods", "later"),
    "Results": ("artifacts", "results"),
    "Privacy": ("claim", "privacy", "noise"),
    "Cost": ("speed", "scale"),
    "About": ("decisions", "api", "changelog"),
}
"""Pages below docs by caption. The menu shows each page's own title."""


def page() -> str:
    """Return the table of contents as Markdown."""
    return "\n".join(_tree(caption, pages) for caption, pages in CONTENTS.items())


def _tree(caption: str, pages: Iterable[str]) -> str:
    lines = [
        f"## {caption}",
        "",
        "```{toctree}",
        f":caption: {caption}",
        ":maxdepth: 1",
        "",
        *map(_place, pages),
    ]
    return "\n".join([*lines, "```", ""])


def _place(name: str) -> str:
    """Return where a page stands: first in a folder of its name, or in a file, or nowhere.

    Sphinx names a page that stands nowhere.
    """
    return f"{name}/index" if (DOCS / name / "index.md").is_file() else name


def of_folder(docname: str, text: str) -> str:
    """Return the first page of a folder with the folder's other pages in the side bar."""
    path = DOCS.parent / f"{docname}.md"
    if path.name != "index.md" or path.parent == DOCS or "{toctree}" in text:
        return text
    others = sorted(p.stem for p in path.parent.glob("*.md") if p.stem != "index")
    return "\n".join([text, "```{toctree}", ":hidden:", "", *others, "```", ""])
