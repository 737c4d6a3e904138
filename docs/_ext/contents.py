"""The site's table of contents, in the order in which people look for things."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]

CONTENTS = {
    "Begin": {
        "Start": "start",
        "Reproduce": "reproduce",
        "What commands print": "transcripts",
        "Tracking": "tracking",
    },
    "Yours": {
        "Your data": "data",
        "Your model": "models",
        "Your method": "extend",
        "Python": "python",
    },
    "Look up": {
        "Configuration": "configuration",
        "Methods": "methods/index",
        "Later methods": "later",
    },
    "Results": {"Tables and figures": "artifacts", "Results": "results"},
    "Privacy": {
        "Privacy": "privacy",
        "What the claim covers": "claim",
        "Noise": "noise",
    },
    "Cost": {"Speed": "speed", "Scale": "scale"},
    "About": {"Decisions": "decisions", "API reference": "api", "Changelog": "changelog"},
}
"""Pages below docs by title, by caption."""


def page() -> str:
    """Return the table of contents as Markdown."""
    return "\n".join(_tree(caption, pages) for caption, pages in CONTENTS.items())


def _tree(caption: str, pages: dict[str, str]) -> str:
    there = [f"{t} <{n}>" for t, n in pages.items() if (DOCS / f"{n}.md").is_file()]
    lines = [f"## {caption}", "", "```{toctree}", f":caption: {caption}", ":maxdepth: 1", "", *there]
    return "\n".join([*lines, "```", ""])
