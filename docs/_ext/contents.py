"""The site's table of contents, in the order in which people look for things."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]

CONTENTS = {
    "Begin": {
        "Start": "start",
        "Reproduce": "reproduce",
        "What commands print": "transcripts",
        "What a run shows": "tracking",
    },
    "Your own": {
        "Your data": "data",
        "Your model": "models",
        "Your method": "extend",
        "Python": "python",
    },
    "Reference": {
        "Configuration": "configuration",
        "Options worth knowing": "options",
        "Methods": "methods",
        "Methods after the papers": "later",
    },
    "Results": {"Tables and figures": "artifacts", "What the results say": "results"},
    "Privacy": {
        "What the claim covers": "claim",
        "Privacy": "privacy",
        "Noise, ours and the papers'": "noise",
    },
    "Cost": {"Speed": "speed", "Memory and many GPUs": "scale"},
    "About": {"Decisions": "decisions", "API reference": "api", "Changelog": "changelog"},
}
"""Pages below docs by title, by caption."""


def page() -> str:
    """Return the table of contents as Markdown."""
    return "\n".join(_tree(caption, pages) for caption, pages in CONTENTS.items())


def _tree(caption: str, pages: dict[str, str]) -> str:
    there = [f"{title} <{_place(name)}>" for title, name in pages.items()]
    lines = [
        f"## {caption}",
        "",
        "```{toctree}",
        f":caption: {caption}",
        ":maxdepth: 1",
        "",
        *there,
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
