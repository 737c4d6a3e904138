"""The README's numbers are those of the records and tables that it links."""

import csv
import re

import pytest

import run
from dpexp import records

ROOT = run.CONF.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def cells_of(profile, table):
    """Read a table that was made: each cell's values by row and column."""
    path = ROOT / "results" / profile / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {(cell["row"], cell["column"]): cell for cell in csv.DictReader(file)}


def shown(cell):
    std = f" ± {float(cell['std']):.1f}" if cell["std"] else ""
    return f"{float(cell['mean']):.1f}{std}"


MADE = [*ROOT.glob("results/*/*/*.md"), *ROOT.glob("results/*/index.html")]
MADE = [path for path in MADE if path.parent.name != "lira"]  # its networks keep no records


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_table_and_page_links_records_that_are_there(path):
    profile = ROOT / "results" / path.relative_to(ROOT).parts[1]
    linked = set(re.findall(r"runs/([0-9a-f]{12})/", path.read_text(encoding="utf-8")))
    assert linked and all((profile / "runs" / name / "result.json").exists() for name in linked)


@pytest.mark.parametrize("profile", ["quick", "embedded"])
def test_table_3_is_the_one_that_was_made(profile):
    cells = cells_of(profile, "rgp/table3")
    for row in {row for (row, _), cell in cells.items() if cell["status"] == "done"}:
        of_row = [cells[row, f"eps{eps}"] for eps in (2, 4, 6)]
        published = " / ".join(cell["published"] for cell in of_row)
        assert f" | {' | '.join(map(shown, of_row))} | {published} |\n" in README


def test_the_table_of_every_method_is_the_one_that_was_made():
    (table,) = re.findall(r"\| method \| CIFAR10 \(`quick`\).*\n\|[- :|]*\n((?:\|.*\n)*)", README)
    told = [line.split(" | ")[1:] for line in table.replace(" |\n", "\n").splitlines()]
    quick, embedded = (cells_of(name, "dpexp/table1").values() for name in ("quick", "embedded"))
    assert told == [[shown(a), shown(b)] for a, b in zip(quick, embedded, strict=True)]


def test_the_records_that_the_readme_links_are_those_its_commands_find():
    """A recipe that changes would leave a number without its command."""
    (common,) = re.findall(r"`python run\.py WORDS ([^`]*)`", README)
    link = r"\*{0,2}\[([\d.]+)\]\(results/quick/runs/(\w+)\)"
    rows = re.findall(rf"\| `(method=[^`]*)` \|[^|]*\| {link}", README)
    assert len(rows) == 5
    for words, accuracy, linked in rows:
        config = run.compose([*words.split(), *common.split()])
        found = records.find(ROOT / "results", config)
        assert found.directory.name == linked
        assert f"{found.result['test_accuracy']:.1f}" == accuracy
