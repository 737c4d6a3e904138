"""Regenerate the README's tables from the built tables and figures.

    python -m scripts.readme

Replaces the text between `<!-- NAME -->` and `<!-- end -->` for each name below. A test checks that
the README is up to date. Exit code: 0; 2 if a table is missing or the README lacks a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from dpexp.cli import groups
from dpexp.cli.arguments import exit_code_of
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError

ROOT = groups.CONF.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- (?P<name>[\w/ .]+) -->\n)(?P<text>.*?)(<!-- end -->\n)", re.S)

Row = tuple[str, ...]


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    if words:
        raise ConfigError(f"Expected no words; got {' '.join(words)}. See --help.")
    before = README.read_text(encoding="utf-8")
    after = regenerated(before)
    README.write_text(after, encoding="utf-8")
    print(f"{README}: {'unchanged' if after == before else 'updated'}")
    return 0


def regenerated(text: str) -> str:
    """Return the README with every block regenerated.

    Raises:
        ConfigError: for a missing or unknown block.
    """
    found = [block["name"] for block in BLOCK.finditer(text)]
    if sorted(found) != sorted(BLOCKS):
        raise ConfigError(f"Expected the README to have these blocks once: {sorted(BLOCKS)}.")
    return BLOCK.sub(lambda b: f"{b[1]}{BLOCKS[b['name']]()}\n{b[4]}", text)


def _values(profile: str, table: str) -> pd.DataFrame:
    """Return a built table or figure, one line per cell."""
    path = ROOT / "results" / profile / f"{table}.csv"
    if not path.is_file():
        raise ConfigError(f"Expected {path}; make {table} under profile {profile} first.")
    return pd.read_csv(path, dtype={"x": str}).rename(columns={"line": "row"})


def _shown(cell: pd.Series) -> str:
    if pd.isna(cell["mean"]):
        return str(cell["status"])
    spread = "" if pd.isna(cell["std"]) else f" ± {cell['std']:.1f}"
    return f"{cell['mean']:.1f}{spread}"


def _published(cell: pd.Series) -> str:
    return "–" if pd.isna(cell["published"]) else f"{cell['published']:.1f}"


def _lines(head: Row, rows: Sequence[Row], words: int = 1) -> str:
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _labels(profile: str, table: str) -> Mapping[str, Row]:
    artifact = spec.load(groups.CONF, *table.split("/"))
    changes = cells.profile_of(artifact, profile)
    return {row.key: cells.relabel(row, changes) for row in artifact.rows}


def _over_eps(profile: str, rows: Sequence[str]) -> str:
    found = _values(profile, "rgp/table3").set_index(["row", "column"])
    labels = _labels(profile, "rgp/table3")
    columns = ("eps2", "eps4", "eps6")
    head = ("data", "method", "ε = 2", "ε = 4", "ε = 6", "published ε = 2 / 4 / 6")
    body = []
    for row in rows:
        of_row = [found.loc[(row, column)] for column in columns]
        body.append((*labels[row], *map(_shown, of_row), " / ".join(map(_published, of_row))))
    return _lines(head, body, 2)


def _every_method() -> str:
    quick, embedded = (_values(name, "dpexp/table1") for name in ("quick", "embedded"))
    labels = _labels("quick", "dpexp/table1")
    body = [
        (labels[a["row"]][0], _shown(a), _shown(b))
        for (_, a), (_, b) in zip(quick.iterrows(), embedded.iterrows(), strict=True)
    ]
    return _lines(("method", "CIFAR10 (`quick`)", "digits (`embedded`)"), body)


def _language() -> str:
    found = _values("quick", "rgp/table4")
    labels = _labels("quick", "rgp/table4")
    body = [
        (labels[cell["row"]][0], _shown(cell), _published(cell))
        for _, cell in found[found["column"] == "sst2"].iterrows()
    ]
    return _lines(("method", "SST-2", "published"), body)


def _language_over_eps() -> str:
    found = _values("quick", "lsg/figure4")
    found = found[found["panel"] == "SST-2"].set_index(["row", "x"])
    labels = _labels("quick", "lsg/figure4")
    body = []
    for row in ("lsg", "rgp", "sparse-dpsgd", "dpsgd"):
        of_row = [found.loc[(row, eps)] for eps in ("1.2", "1.6", "3.3", "6.5")]
        body.append((labels[row][0], *map(_shown, of_row), _published(of_row[2])))
    head = ("method", "ε = 1.2", "ε = 1.6", "ε = 3.3", "ε = 6.5", "published, ε = 3.3")
    return _lines(head, body)


def _warm() -> str:
    found = _values("quick", "dpexp/table2")
    labels = _labels("quick", "dpexp/table2")
    body = [
        (
            labels[cell["row"]][0].removesuffix(", longer"),
            "5" if cell["row"].endswith("-longer") else "3",
            _shown(cell),
        )
        for _, cell in found.iterrows()
    ]
    return _lines(("method", "epochs", "SST-2"), body)


def _claims() -> str:
    """Count the embedded pages' claims, and the decided ones that compare single seeds."""
    pages = (ROOT / "results" / "embedded").glob("*/*.md")
    lines = [line for page in sorted(pages) for line in page.read_text("utf-8").splitlines()]
    judged = [line for line in lines if re.match(r"- .*: \*\*(holds|does not hold|unclear)", line)]
    words = ("holds", "does not hold", "unclear")
    held, failed, unclear = (sum(f": **{word}" in line for line in judged) for word in words)
    single = sum(
        ": **unclear" not in line and line.endswith("the spread of seeds is unknown")
        for line in judged
    )
    return (
        f"Of {len(judged)} claims judged in the embedded profile {held} hold in every comparison "
        f"that was run, {failed} do not and {unclear} are unclear. Of the {held + failed} decided "
        f"ones {single} rest on a single seed a side."
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "rgp/table3 quick": partial(_over_eps, "quick", ("cifar10-dpsgd", "cifar10-rgp")),
    "rgp/table3 embedded": partial(
        _over_eps, "embedded", ("svhn-dpsgd", "svhn-rgp", "cifar10-dpsgd", "cifar10-rgp")
    ),
    "dpexp/table1": _every_method,
    "rgp/table4 quick": _language,
    "lsg/figure4 quick": _language_over_eps,
    "dpexp/table2 quick": _warm,
    "claims": _claims,
}
