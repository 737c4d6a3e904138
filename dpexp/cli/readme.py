"""Regenerate the numbers of README and docs from the built tables and figures.

    python -m scripts.readme                 # the numbers
    python -m scripts.readme picture=true    # also README's picture; wants chromium

Replaces the text between `<!-- NAME -->` and `<!-- end -->` on each page that `number_blocks` has
blocks for. Tests check that pages and picture are up to date. Exit code: 0; 2 if a table is
missing, a page lacks a block, or there is no chromium.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpexp.cli import arguments, picture
from dpexp.types import ConfigError

BLOCK = re.compile(r"(<!-- (?P<name>[\w/ .-]+) -->\n)(?P<text>.*?)(<!-- end -->\n)", re.S)


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return arguments.exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    wanted = arguments.only(words, {"picture": arguments.truth})
    from dpexp.cli.number_blocks import PAGES, ROOT  # imports pandas

    for page in PAGES:
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        after = regenerated(page, before)
        path.write_text(after, encoding="utf-8")
        print(f"{path}: {'unchanged' if after == before else 'updated'}")
    if wanted.get("picture"):
        print(picture.take())
    return 0


def regenerated(page: str, text: str) -> str:
    """Return a page's text with every block regenerated.

    Args:
        page: its path below the repository, a key of `number_blocks.PAGES`.
        text: what it holds.

    Raises:
        ConfigError: for a missing or unknown block.
    """
    from dpexp.cli.number_blocks import PAGES

    blocks = PAGES[page]
    found = [block["name"] for block in BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        raise ConfigError(f"Expected {page} to have these blocks once: {sorted(blocks)}.")
    return BLOCK.sub(lambda b: f"{b[1]}{blocks[b['name']]()}\n{b[4]}", text)
