"""The README's numbers are those of the records and tables that it links."""

import csv
import json
import re
import statistics
import subprocess

import pytest

from dpexp import cli, records
from dpexp.cli import readme
from dpexp.types import ConfigError

ROOT = cli.CONF.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def cells_of(profile, table, row="row", column="column", **only):
    """Read a table that was made: each cell's values by row and column."""
    path = ROOT / "results" / profile / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        cells = [cell for cell in csv.DictReader(file) if only.items() <= cell.items()]
    return {(cell[row], cell[column]): cell for cell in cells}


MADE = [*ROOT.glob("results/*/*/*.md"), *ROOT.glob("results/*/index.html")]
MADE = [path for path in MADE if path.parent.name != "lira"]  # its networks keep no records
assert MADE


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_table_and_page_links_records_that_are_there(path):
    profile = ROOT / "results" / path.relative_to(ROOT).parts[1]
    linked = set(re.findall(r"runs/([0-9a-f]{12})/", path.read_text(encoding="utf-8")))
    assert linked and all((profile / "runs" / name / "result.json").exists() for name in linked)


def test_no_committed_record_lost_steps_to_a_kill():
    """Its weights would lack them: private, but not the number that its command gives."""
    listed = ["git", "ls-files", "results/*/privacy.json"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout: committed records cannot be told from others")
    certificates = [json.loads((ROOT / path).read_text("utf-8")) for path in done.stdout.split()]
    assert certificates and not any(each.get("lost_steps") for each in certificates)


def test_its_tables_and_counts_are_those_that_were_made():
    assert readme.regenerated(README) == README


@pytest.mark.parametrize("name", readme.BLOCKS)
def test_a_block_that_says_something_else_is_made_again(name):
    (block,) = (b for b in readme.BLOCK.finditer(README) if b["name"] == name)
    lines = block["text"].splitlines(keepends=True)
    head = "".join(lines[:2]) if lines[0].startswith("|") else ""
    rows = block["text"].removeprefix(head)
    number = re.search(r"\d+\.\d|\d+", rows)
    assert number, "no row has a number that could be another"
    other = head + rows.replace(number[0], "99.9")
    assert other != block["text"]
    assert readme.regenerated(README.replace(block["text"], other)) == README
    with pytest.raises(ConfigError, match="blocks once"):
        readme.regenerated(README.replace(f"<!-- {name} -->", ""))


def test_numbers_are_those_of_the_records_and_labels_those_of_the_artifact():
    """By another way than the README's: from result.json, of one cell of each kind."""
    cells = cells_of("quick", "rgp/table3")
    cell = cells["cifar10-dpsgd", "eps4"]
    runs = [ROOT / "results/quick/runs" / name / "result.json" for name in cell["runs"].split()]
    found = [json.loads(path.read_text("utf-8"))["test_accuracy"] for path in runs]
    mean, std = statistics.fmean(found), statistics.stdev(found)
    (line,) = re.findall(r"\| CIFAR10 \| DP-SGD \| .* \|", README)
    assert line.split(" | ")[3] == f"{mean:.1f} ± {std:.1f}"
    assert line.endswith("37.4 / 46.9 / 51.7 |")


def test_the_claims_are_counted_as_on_the_page():
    page = (ROOT / "results" / "embedded" / "index.html").read_text(encoding="utf-8")
    (line,) = re.findall(r"Claims: (.*)\.</p>", page)
    of = {
        kind: sum(map(int, re.findall(rf'(\d+) <span class="badge {kind}"', line)))
        for kind in ("holds", "fails", "unclear")
    }
    told = (
        r"Of (\d+) claims judged in the embedded profile (\d+) hold in every comparison that was "
    )
    told += r"run, (\d+) do not and (\d+) are"
    assert [tuple(map(int, counts)) for counts in re.findall(told, README)] == [
        (sum(of.values()), *of.values())
    ]


def test_the_list_of_decisions_has_every_one_in_its_order_at_its_own_anchor():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(
        r"^- \[(.+)\]\((\w+\.md)#(.+)\)$", (folder / "index.md").read_text(encoding="utf-8"), re.M
    )
    pages = list(dict.fromkeys(page for _, page, _ in listed))
    assert sorted([*pages, "index.md"]) == sorted(path.name for path in folder.glob("*.md"))
    titles = [
        (title, page)
        for page in pages
        for title in re.findall(r"^## (.+)$", (folder / page).read_text(encoding="utf-8"), re.M)
    ]
    assert [(title, page) for title, page, _ in listed] == titles and len(titles) > 80
    # GitHub's anchors, as Sphinx makes them too.
    anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title, _ in titles]
    assert [anchor for _, _, anchor in listed] == anchors and len(set(titles)) == len(titles)


def rows_under(heading):
    """Return the cells of the README's table with this heading, row by row."""
    (table,) = re.findall(rf"^{re.escape(heading)}.*\n\|[- :|]*\n((?:\|.*\n)*)", README, re.M)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_the_audits_are_those_that_were_made():
    with (ROOT / "results" / "embedded" / "audit.csv").open(encoding="utf-8", newline="") as file:
        audits = list(csv.DictReader(file))
    runs = [ROOT / "results" / "embedded" / "runs" / row["run"] for row in audits if row["run"]]
    assert len(runs) == len(audits) - 1 and all((run / "result.json").exists() for run in runs)
    bounds = ("one_run", "one_run_curve", "two_worlds", "two_worlds_gaussian")
    made = [[f"{float(row[b]):.2f}" if row[b] else "–" for b in bounds] for row in audits]
    assert [row[1:] for row in rows_under("| ε ≥, where ε = 8 is accounted for")] == made
    # README says which share of ε the Gaussian bound recovers where noise is added to gradients.
    votes = ("pate", "compressive", "compressive_unmeasured")
    shares = [float(row["two_worlds_gaussian"]) / 8 for row in audits if row["method"] not in votes]
    (told,) = re.findall(r"the Gaussian bound recovers (\d+) to (\d+) %", README)
    assert told == (f"{min(shares):.0%}"[:-1], f"{max(shares):.0%}"[:-1])


def test_the_page_of_audits_says_what_was_found():
    with (ROOT / "results" / "embedded" / "audit.csv").open(encoding="utf-8", newline="") as file:
        audits = list(csv.DictReader(file))
    page = (ROOT / "docs" / "privacy" / "audits.md").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^\| bound \|.*\n\|[- |]*\n((?:\|.*\n)*)", page, re.M)
    told = [line.strip("| ").split(" | ")[1:] for line in rows.splitlines()]
    groups = [
        [a for a in audits if not a["method"].startswith(("pate", "compressive"))],
        [a for a in audits if a["method"].startswith("compressive")],
        [a for a in audits if a["method"] == "pate"],
    ]
    bounds = ("one_run", "one_run_curve", "two_worlds", "two_worlds_gaussian")
    assert told == [[span(a[bound] for a in group) for group in groups] for bound in bounds]
    assert "no bound exceeds it" in page and all(
        float(a[b] or 0) < 8 for a in audits for b in bounds
    )


def span(cells):
    """Return the least and the greatest of the numbers that there are, with two decimals."""
    numbers = sorted(float(cell) for cell in cells if cell)
    if not numbers:
        return "–"
    least, greatest = f"{numbers[0]:.2f}", f"{numbers[-1]:.2f}"
    return least if least == greatest else f"{least} to {greatest}"


def test_the_records_that_the_readme_links_are_those_its_commands_find():
    """A recipe that changes would leave a number without its command."""
    link = r"\*{0,2}\[([\d.]+)\]\(results/quick/runs/(\w+)\)"
    linked = re.findall(rf"`python run\.py (method=[^`]*)`\)? gives {link}", README)
    assert len(linked) == README.count("](results/quick/runs/") == 2
    for words, accuracy, name in linked:
        found = records.find(ROOT / "results", cli.compose(words.split()))
        assert found.directory.name == name
        assert f"{found.result['test_accuracy']:.1f}" == accuracy
