"""Plain text, docstrings and tables as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

SPECIAL = re.compile(r"([\\*_\[\]<>|#~])")
DIFFERENCES = re.compile(r"^Differences from the papers?[^:\n]*:$", re.M)


def escaped(text: str) -> str:
    """Return text that Markdown shows as it stands, but for `code`."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a single backtick is one
        return SPECIAL.sub(r"\\\1", text).replace("`", "\\`")
    return "`".join(SPECIAL.sub(r"\\\1", p) if i % 2 == 0 else p for i, p in enumerate(parts))


def code(text: str) -> str:
    """Return text as inline code."""
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], labels: int = 1) -> str:
    """Return a table whose first columns are labels, the others numbers."""
    rule = ["---"] * labels + ["---:"] * (len(head) - labels)
    lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
    return "\n".join(lines) + "\n"


def docstring(text: str) -> tuple[str, str, str]:
    """Split a module's docstring.

    Returns:
        Its first line; the algorithm; and its list of differences from the paper, "" without one.
    """
    head, _, rest = text.partition("\n")
    found = DIFFERENCES.search(rest)
    body, differences = (rest[: found.start()], rest[found.end() :]) if found else (rest, "")
    return head.strip(), _blocks(body), _listed(differences)


def _blocks(text: str) -> str:
    """Return paragraphs and lists as they are, and what is indented without highlighting."""
    done = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            done.append(f"```text\n{textwrap.dedent(block)}\n```")
        else:
            text, *points = re.split(r"^- ", block, flags=re.M)
            done.append(escaped(" ".join(text.split())))
            done.append("\n".join("- " + escaped(" ".join(point.split())) for point in points))
    joined = "\n\n".join(block for block in done if block)
    return re.sub(r"\n```\n\n```text\n", "\n\n", joined)


def _listed(text: str) -> str:
    entries = re.split(r"^ *\d+\. ", text, flags=re.M)[1:]
    return "\n".join(f"{i}. {escaped(' '.join(e.split()))}" for i, e in enumerate(entries, 1))
