"""The README's numbers are those of the records and tables that it links."""

import csv
import json
import re
import subprocess

import pytest
import yaml

import run
from dpexp import records

ROOT = run.CONF.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def cells_of(profile, table, row="row", column="column", **only):
    """Read a table that was made: each cell's values by row and column."""
    path = ROOT / "results" / profile / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        cells = [cell for cell in csv.DictReader(file) if only.items() <= cell.items()]
    return {(cell[row], cell[column]): cell for cell in cells}


def artifact_rows(table):
    return yaml.safe_load((run.CONF / "artifact" / f"{table}.yaml").read_text("utf-8"))["rows"]


def shown(cell):
    std = f" ± {float(cell['std']):.1f}" if cell["std"] else ""
    return f"{float(cell['mean']):.1f}{std}"


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


def rows_under(heading):
    """Give the cells of the README's table with this heading, row by row."""
    (table,) = re.findall(rf"^{re.escape(heading)}.*\n\|[- :|]*\n((?:\|.*\n)*)", README, re.M)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def begins_alike(told, label):
    """Tell whether a row of the README, perhaps with settings, speaks of that method."""
    return told.split(",")[0].split(" (")[0] == label.split(",")[0].split(" (")[0]


TABLE3 = r"\| (?:\w+ \(for )?(SVHN|CIFAR10)\)? \| (RGP|DP-SGD) \| (.*) \|\n"


@pytest.mark.parametrize("profile", ["quick", "embedded"])
def test_table_3_is_the_one_that_was_made(profile):
    cells = cells_of(profile, "rgp/table3")
    told = re.findall(TABLE3, README)
    for row in {row for (row, _), cell in cells.items() if cell["status"] == "done"}:
        of_row = [cells[row, f"eps{eps}"] for eps in (2, 4, 6)]
        published = " / ".join(cell["published"] for cell in of_row)
        data, method = row.split("-")
        name = {"rgp": "RGP", "dpsgd": "DP-SGD"}[method]
        assert (data.upper(), name, " | ".join([*map(shown, of_row), published])) in told


def test_the_table_of_every_method_is_the_one_that_was_made():
    told = rows_under("| method | CIFAR10 (`quick`)")
    quick, embedded = (cells_of(name, "dpexp/table1").values() for name in ("quick", "embedded"))
    assert [row[1:] for row in told] == [
        [shown(a), shown(b)] for a, b in zip(quick, embedded, strict=True)
    ]
    labels = [row["labels"][0] for row in artifact_rows("dpexp/table1")]
    assert all(map(begins_alike, (row[0] for row in told), labels))


def test_the_figure_of_lsg_is_the_one_that_was_made():
    cells = cells_of("quick", "lsg/figure4", "line", "x", panel="SST-2")
    labels = {row["key"]: row["labels"][0] for row in artifact_rows("lsg/figure4")}
    told = rows_under("| method | ε = 1.2 |")
    for name, *values, _ in told:
        (row,) = (key for key, label in labels.items() if begins_alike(name, label))
        of_row = [cells[row, eps] for eps in ("1.2", "1.6", "3.3", "6.5")]
        assert values == [shown(cell) if cell["mean"] else "not run" for cell in of_row]
    assert len(told) == 4


def test_the_table_of_language_methods_is_the_one_that_was_made():
    cells = cells_of("quick", "rgp/table4", column="column")
    labels = {row["key"]: row["labels"][0] for row in artifact_rows("rgp/table4")}
    told = rows_under("| method | SST-2 | published |")
    rows = ("full-np", "rgp-np", "linear-np", "dpsgd", "rgp-random", "rgp")
    for (name, *values), row in zip(told, rows, strict=True):
        cell = cells[row, "sst2"]
        assert values == [shown(cell), cell["published"]] and begins_alike(name, labels[row])


def test_the_claims_are_counted_as_on_the_page():
    page = (ROOT / "results" / "embedded" / "index.html").read_text(encoding="utf-8")
    (line,) = re.findall(r"Claims: (.*)\.</p>", page)
    of = {
        kind: sum(map(int, re.findall(rf'(\d+) <span class="badge {kind}"', line)))
        for kind in ("holds", "fails", "unclear")
    }
    told = r"of (\d+) claims judged there (\d+) hold in every comparison that was run, "
    told += r"(\d+) do not and (\d+) are"
    assert [tuple(map(int, counts)) for counts in re.findall(told, README)] == [
        (sum(of.values()), *of.values())
    ]
    pages = (ROOT / "results" / "embedded").glob("*/*.md")
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    decided = [line for line in lines if re.match(r"- .*: \*\*(holds|does not hold)", line)]
    single = [line for line in decided if line.endswith("the spread of seeds is unknown")]
    told = re.findall(r"Of the (\d+) decided ones (\d+) rest on a single seed a side", README)
    assert told == [(str(len(decided)), str(len(single)))]


def test_decisions_are_numbered_as_a_reader_sees_them():
    """Markdown takes a list's first number and counts on by itself."""
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 80


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


def test_the_table_after_a_warm_start_is_the_one_that_was_made():
    made = cells_of("quick", "dpexp/table2")
    told = rows_under("| method | epochs | SST-2 |")
    values = [value.strip("*") for *_, value in told]
    assert values == [shown(cell) for cell in made.values()]
    first = [ROOT / "results/quick/runs" / cell["runs"].split()[0] for cell in made.values()]
    epochs = [str(records.read(run).config["epochs"]) for run in first]
    assert [row[1] for row in told] == epochs
    labels = [row["labels"][0] for row in artifact_rows("dpexp/table2")]
    assert all(begins_alike(row[0], label) for row, label in zip(told, labels, strict=True))


def test_the_records_that_the_readme_links_are_those_its_commands_find():
    """A recipe that changes would leave a number without its command."""
    link = r"\*{0,2}\[([\d.]+)\]\(results/quick/runs/(\w+)\)"
    linked = re.findall(rf"`python run\.py (method=[^`]*)`\)? gives {link}", README)
    assert len(linked) == README.count("](results/quick/runs/") == 2
    for words, accuracy, name in linked:
        found = records.find(ROOT / "results", run.compose(words.split()))
        assert found.directory.name == name
        assert f"{found.result['test_accuracy']:.1f}" == accuracy
