"""Numbers of README and docs are those of the records; README is short, and its links are there."""

import csv
import json
import re
import shlex
import statistics
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from PIL import Image

from dpexp import cli, records
from dpexp.cli import picture, readme
from dpexp.cli.__main__ import COMMANDS
from dpexp.cli.number_blocks import PAGES
from dpexp.records.rounded import at_least
from dpexp.types import ConfigError

ROOT = cli.CONF.parent
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
README, RESULTS, CLAIM = (TEXTS[f"{name}.md"] for name in ("README", "docs/results", "docs/claim"))


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


@pytest.mark.parametrize("page", PAGES)
def test_its_tables_and_counts_are_those_that_were_made(page):
    assert readme.regenerated(page, TEXTS[page]) == TEXTS[page]


@pytest.mark.parametrize(("page", "name"), [(page, name) for page in PAGES for name in PAGES[page]])
def test_a_block_that_says_something_else_is_made_again(page, name):
    text = TEXTS[page]
    (block,) = (b for b in readme.BLOCK.finditer(text) if b["name"] == name)
    lines = block["text"].splitlines(keepends=True)
    head = "".join(lines[:2]) if lines[0].startswith("|") else ""
    rows = block["text"].removeprefix(head)
    number = re.search(r"\d+\.\d|\d+", rows)
    assert number, "no row has a number that could be another"
    other = head + rows.replace(number[0], "99.9")
    assert other != block["text"]
    assert readme.regenerated(page, text.replace(block["text"], other)) == text
    with pytest.raises(ConfigError, match="blocks once"):
        readme.regenerated(page, text.replace(f"<!-- {name} -->", ""))


def test_no_page_has_a_block_that_nobody_makes():
    for path in (ROOT / "docs").rglob("*.md"):
        page = path.relative_to(ROOT).as_posix()
        names = [b["name"] for b in readme.BLOCK.finditer(path.read_text(encoding="utf-8"))]
        assert page in PAGES or names in ([], ["architectures"]), page


def test_numbers_are_those_of_the_records_and_labels_those_of_the_artifact():
    """By another way than the README's: from result.json, of one cell of each kind."""
    cells = cells_of("quick", "rgp/table3")
    cell = cells["cifar10-dpsgd", "eps4"]
    runs = [ROOT / "results/quick/runs" / name / "result.json" for name in cell["runs"].split()]
    found = [json.loads(path.read_text("utf-8"))["test_accuracy"] for path in runs]
    mean, std = statistics.fmean(found), statistics.stdev(found)
    (line,) = re.findall(r"\| CIFAR10 \| DP-SGD \| .* \|", RESULTS)
    assert line.split(" | ")[3] == f"{mean:.1f} ± {std:.1f}"
    assert line.endswith("37.4 / 46.9 / 51.7 |")


@pytest.mark.parametrize(
    ("data", "shown", "table", "row", "place", "published"),
    [
        ("CIFAR10", "RGP, ε = 8", "rgp/table2", "rgp", {"column": "cifar10"}, "63.4"),
        ("SST-2", "without privacy", "rgp/table4", "full-np", {"column": "sst2"}, "93.4"),
        ("SST-2", "LSG, ε = 3.3", "lsg/figure4", "lsg", {"x": "3.3", "panel": "SST-2"}, "89.9"),
    ],
)
def test_the_readmes_cells_are_those_of_records(data, shown, table, row, place, published):
    (column, *_) = place
    by, only = ("line", {"panel": place["panel"]}) if column == "x" else ("row", {})
    cell = cells_of("quick", table, row=by, column=column, **only)[row, place[column]]
    runs = [records.read(ROOT / "results/quick/runs" / name) for name in cell["runs"].split()]
    found = [run.result["test_accuracy"] for run in runs]
    head, line = (
        next(line for line in README.splitlines() if line.startswith(f"| {first} |")).split(" | ")
        for first in ("data", data)
    )
    mean, std = statistics.fmean(found), statistics.stdev(found)
    cell = line[[name.removesuffix(" |") for name in head].index(shown)].removesuffix(" |")
    assert cell == f"{mean:.1f} ± {std:.1f} ({published})"
    eps = re.search(r"ε = ([\d.]+)", shown)
    assert {run.config["privacy"]["eps"] for run in runs} == {float(eps[1]) if eps else None}


def test_the_claims_are_counted_as_on_the_page():
    page = (ROOT / "results" / "embedded" / "index.html").read_text(encoding="utf-8")
    (line,) = re.findall(r"Claims: (.*)\.</p>", page)
    of = {
        kind: sum(map(int, re.findall(rf'(\d+) <span class="badge {kind}"', line)))
        for kind in ("holds", "fails", "unclear")
    }
    papers = r"Of (\d+) claims of the papers judged in the embedded profile (\d+) hold in every "
    papers += r"comparison that was run, (\d+) do not and (\d+) are"
    own = r"Of (\d+) claims of the suite's own (\d+) hold, (\d+) do not and (\d+) are"
    for text in (README, RESULTS):
        counts = [[int(n) for n in re.search(told, text).groups()] for told in (papers, own)]
        assert [sum(pair) for pair in zip(*counts, strict=True)] == [sum(of.values()), *of.values()]


def test_as_many_budgets_are_decided_as_comparisons_hold():
    """Of lsg's Figure 4 the page named one more than its verdict had."""
    figure = (ROOT / "results/quick/lsg/figure4.md").read_text(encoding="utf-8")
    (held,) = re.findall(r"it holds in (\d+) of 12 comparisons", figure)
    (told,) = re.findall(r"LSG is above RGP .* decided at ε = ([\d., and]*\d)", RESULTS)
    assert len(re.findall(r"\d+\.\d+", told)) == int(held)


def test_every_heading_of_the_recipes_says_of_which_data():
    """Some were an ε alone; and with more than seven columns the last are out of sight."""
    (head,) = re.findall(r"\| method, recipe \| (CIFAR10.*) \|", TEXTS["docs/later.md"])
    headings = head.split(" | ")
    assert len(headings) < 7
    assert all(
        re.match(r"(CIFAR10 from scratch|on features|fine-tuned|SST-2), ε = ", h) for h in headings
    )


def test_columns_of_numbers_are_as_narrow_as_their_numbers():
    """At the width of words the page of noise had its last two columns out of sight."""
    style = (ROOT / "docs/_static/site.css").read_text(encoding="utf-8")
    wide = [rule for rule in style.splitlines() if re.match(r"table.* td.*min-width", rule)]
    assert wide and all(":not(.text-right)" in rule or "code" in rule for rule in wide)


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
    """Return the cells of the claim's table with this heading, row by row."""
    (table,) = re.findall(rf"^{re.escape(heading)}.*\n\|[- :|]*\n((?:\|.*\n)*)", CLAIM, re.M)
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_the_audits_are_those_that_were_made():
    with (ROOT / "results" / "embedded" / "audit.csv").open(encoding="utf-8", newline="") as file:
        audits = list(csv.DictReader(file))
    runs = [ROOT / "results" / "embedded" / "runs" / row["run"] for row in audits if row["run"]]
    assert len(runs) == len(audits) - 1 and all((run / "result.json").exists() for run in runs)
    bounds = ("one_run", "one_run_curve", "two_worlds", "two_worlds_gaussian")
    made = [[at_least(float(row[b]), 2) if row[b] else "–" for b in bounds] for row in audits]
    assert [row[1:] for row in rows_under("| ε ≥, where ε = 8 is accounted for")] == made
    # The page says which share of ε the Gaussian bound recovers where noise is added to gradients.
    votes = ("pate", "compressive", "compressive_unmeasured")
    shares = [float(row["two_worlds_gaussian"]) / 8 for row in audits if row["method"] not in votes]
    (told,) = re.findall(r"the Gaussian bound recovers (\d+) to (\d+) %", CLAIM)
    assert told == (f"{min(shares):.0%}"[:-1], f"{max(shares):.0%}"[:-1])


def test_the_records_that_a_page_links_are_those_its_commands_find():
    """A recipe that changes would leave a number without its command."""
    link = r"\*{0,2}\[([\d.]+)\]\(\.\./results/quick/runs/(\w+)\)"
    linked = re.findall(rf"`python run\.py (method=[^`]*)`\)? gives {link}", RESULTS)
    assert len(linked) == RESULTS.count("](../results/quick/runs/") == 2
    for words, accuracy, name in linked:
        found = records.find(ROOT / "results", cli.compose(words.split()))
        assert found.directory.name == name
        assert f"{found.result['test_accuracy']:.1f}" == accuracy


def test_the_readme_is_two_screens():
    """All words count, those of code, tables and comments too."""
    assert len(README.split()) <= 900
    tables = re.findall(r"(?:^\|.*\n)+", README, re.M)
    assert tables and all(len(table.splitlines()) - 2 <= 8 for table in tables)
    for token in MarkdownIt().parse(README):
        if token.type == "inline" and not token.content.startswith("|"):
            # A link's address is not seen.
            seen = re.sub(r"\]\([^()]*\)", "]", token.content)
            assert len(textwrap.wrap(" ".join(seen.split()), 120)) <= 4, seen


@pytest.mark.parametrize("length", [400, 520])
def test_a_paragraph_is_measured_as_it_is_seen(length):
    seen = len(textwrap.wrap("word " * (length // 5), 120))
    assert (seen <= 4) == (length <= 480)


NAMES = {"CITATION"}


def test_every_abbreviation_of_the_readme_is_spelled_out_where_it_is_first_used():
    """By a bracket after it, or by standing in the bracket itself; names of files apart."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->|`[^`\n]*`|\]\([^()]*\)", "", README, flags=re.M | re.S)
    found = {*re.findall(r"\b[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)*\b|\b[A-Z]\.[A-Z]\.", prose)}
    assert {"DP-SGD", "RGP", "LSG", "SST-2"} <= found
    for word in found - NAMES:
        first = prose.index(word)
        assert prose[first + len(word) :].startswith(" (") or prose[first - 1] == "(", word


def anchors(path):
    """Return the names of a page's headings, as its links have them."""
    text = path.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {*re.findall(r'<a name="([^"]+)">', text)} | {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
    }


PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_and_a_heading_is_there(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        if "://" in link:
            continue
        place, _, heading = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not heading or heading in anchors(target), link


def test_the_picture_is_small_and_shows_the_table_that_is_committed():
    """`python -m scripts.readme picture=true` takes it anew."""
    linked = [Path(found) for found in re.findall(r"!\[[^]]+\]\(([^()]+)\)", README)]
    assert [ROOT / path for path in linked] == [picture.PICTURE]
    assert picture.PICTURE.stat().st_size < 200_000
    with Image.open(picture.PICTURE) as image:
        assert image.text["shows"] == picture.digest() and image.width >= 800
    cell = cells_of("embedded", "rgp/table3")["cifar10-rgp", "eps6"]
    assert f"<b>{float(cell['mean']):.1f}</b>" in picture.shown()


def of_language(language):
    """Return the README's blocks of a language, line by line."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def test_own_data_take_four_lines_and_these_are_tried_ones():
    """docs/data.md has the same, and each of its examples is run (tests/test_own_data.py)."""
    (lines,) = (block.splitlines() for block in of_language("sh") if "data=" in block)
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    tried = re.findall(r"^    python (run\.py .+)$", page, re.M)
    assert len(lines) == 4
    for line in lines:
        python, words = line.split(maxsplit=1)
        if python == ".venv/bin/python":
            assert words in tried
        else:
            assert python == ".venv/bin/dpexp" and shlex.split(words)[0] in COMMANDS


def test_the_readmes_python_trains_in_four_lines(tmp_path, monkeypatch, capsys):
    (block,) = of_language("python")
    assert len([line for line in block.splitlines() if line]) == 4
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    images, labels = torch.rand(600, 4), torch.arange(600) % 3
    data = {"train": (images[:550], labels[:550]), "test": (images[550:], labels[550:])}
    names = {"model": torch.nn.Linear(4, 3), "images": images[:7], **data}
    exec(block, names)
    assert names["labels"].shape == (7,) and names["run"].epsilon <= 8
    assert f"{names['run'].epsilon}" in capsys.readouterr().out


def test_the_page_of_audits_says_what_was_found():
    with (ROOT / "results" / "embedded" / "audit.csv").open(encoding="utf-8", newline="") as file:
        audits = list(csv.DictReader(file))
    page = (ROOT / "docs" / "privacy" / "audits.md").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^\| bound \|.*\n\|[- |]*\n((?:\|.*\n)*)", page, re.M)
    told = [line.strip("| ").split(" | ")[1:] for line in rows.splitlines()]
    groups = [
        [a for a in audits if not a["method"].startswith(("pate", "compressive", "dp_zo"))],
        [a for a in audits if a["method"] == "dp_zo"],
        [a for a in audits if a["method"].startswith("compressive")],
        [a for a in audits if a["method"] == "pate"],
    ]
    bounds = ("one_run", "one_run_curve", "two_worlds", "two_worlds_gaussian")
    assert told == [[span(a[bound] for a in group) for group in groups] for bound in bounds]
    assert "no bound exceeds it" in page and all(
        float(a[b] or 0) < 8 for a in audits for b in bounds
    )


def span(cells):
    """Return the least and the greatest of the bounds that there are, rounded down."""
    numbers = sorted(float(cell) for cell in cells if cell)
    if not numbers:
        return "–"
    least, greatest = at_least(numbers[0], 2), at_least(numbers[-1], 2)
    return least if least == greatest else f"{least} to {greatest}"
