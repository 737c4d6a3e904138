"""What the writers write: markdown against a golden file, CSV in full, TeX that closes."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dpexp.privacy.certificate import SHUFFLED
from dpexp.records.record import contents
from dpexp.records.rounded import at_least, at_most
from dpexp.reporting import collect
from dpexp.reporting.render import exports, markdown, page_article
from dpexp.reporting.render.csv_files import csv_text
from dpexp.reporting.render.escape import for_latex
from dpexp.reporting.render.latex import latex
from dpexp.reporting.render.terminal import terminal
from tests.reporting.shown import edit

GOLDEN = Path(__file__).parent / "golden.md"


@pytest.fixture
def made(make):
    return partial(make, name="table9")


def test_markdown_is_the_golden_file(made, lab):
    lab.no_data = {("better", 4.0)}
    text = markdown.markdown(made(overridden=("epochs=2",)))
    ids = dict.fromkeys(re.findall(r"\b[0-9a-f]{12}\b", text))
    for number, run_id in enumerate(ids):
        text = text.replace(run_id, f"run{number:09d}")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_terminal_gets_every_value_within_its_width(made, lab, columns):
    lab.no_data = {("better", 4.0)}
    shown = made()
    title, *lines = terminal(shown, columns).splitlines()
    assert title == f"{shown.artifact.title} (profile embedded)"
    body = [line for line in lines if line and not line.startswith("Verdict")]
    assert max(map(len, body)) <= columns and not any(line.endswith("\\") for line in body)
    words = " ".join(" ".join(body).split())
    for value in shown.values.values():
        expected = value.status if value.mean is None else f"{value.mean:.1f} ± {value.std:.1f}"
        assert expected in words
    assert "paper 50.0" in words and "<br>" not in words


def test_only_the_paper_profile_is_comparable(made):
    assert "not comparable" in markdown.markdown(made())
    assert "not comparable" not in markdown.markdown(made("paper"))


def test_links_lead_from_the_table_to_the_runs(made, lab):
    shown = made()
    paths = exports.write(shown, lab.results)
    targets = re.findall(r"\]\((\.\./[^)]+)\)", paths[0].read_text(encoding="utf-8"))
    assert len(targets) == 16
    for target in targets:
        assert (paths[0].parent / target).exists()


def test_a_published_spread_stands_beside_its_value(conf, made):
    edit(conf, "table9", ("{value: 50.0, place", "{value: 50.0, std: 0.25, place"))
    assert "paper 50.0 ± 0.25 (+1.0)" in markdown.markdown(made())


def test_the_papers_multiplier_stands_beside_ours(made):
    shown = made()
    assert markdown.BY_PAPER not in markdown.markdown(shown)  # the demo paper's is not known
    values = {
        key: replace(value, papers_multiplier=1.75 if key[1] == "eps2" else None)
        for key, value in shown.values.items()
    }
    text = markdown.markdown(replace(shown, values=values))
    assert markdown.BY_PAPER in text and markdown.BESIDE in text
    rows = [line.split("|") for line in text.splitlines() if "privacy.json" in line]
    assert {row[4].strip() for row in rows if "ε = 2" in row[1]} == {"1.750"}
    assert {row[4].strip() for row in rows if "ε = 4" in row[1]} == {"–"}


def test_files_are_where_the_contract_says(made, lab):
    folder = lab.results / "embedded" / "demo"
    assert exports.write(made(), lab.results) == [
        folder / f"table9.{suffix}" for suffix in ("md", "csv", "tex")
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        "table9.csv",
        "table9.md",
        "table9.tex",
    ]


def test_csv_has_a_line_per_cell_in_full_precision(made, lab):
    lab.broken = {("better", 2.0)}
    lines = list(csv.DictReader(io.StringIO(csv_text(made()))))
    assert [line["status"] for line in lines] == [
        "done",
        "done",
        "failed",
        "done",
        "not built",
        "not built",
    ]
    assert float(lines[0]["std"]) == pytest.approx(2**0.5)
    assert (lines[0]["row"], lines[0]["column"], lines[0]["n"]) == ("plain", "eps2", "2")
    assert (lines[0]["published"], lines[0]["difference"]) == ("50.0", "1.0")
    assert lines[0]["deviations"] == SHUFFLED
    assert len(lines[0]["runs"].split()) == 2
    assert lines[2]["mean"] == lines[2]["difference"] == ""


def test_csv_tells_a_mean_that_is_no_number_from_one_that_is_missing(made):
    shown = made()
    (cell, value), *rest = shown.values.items()
    values = {cell: replace(value, mean=math.nan, std=None), **dict(rest)}
    first = next(csv.DictReader(io.StringIO(csv_text(replace(shown, values=values)))))
    assert (first["mean"], first["std"]) == ("nan", "")


def test_an_epsilon_that_is_no_guarantee_is_told_wherever_it_stands(made):
    """The demo's runs shuffle; a table in a paper's text has no page around it."""
    shown = made()
    first = for_latex(SHUFFLED)
    text = latex(shown)
    assert f"\\par\\footnotesize $^{{1}}$ {first}\n\\end{{table}}\n" in text
    (marked,) = (line for line in text.splitlines() if "Plain" in line)
    assert marked.count("$^{1}$") == 2 and text.count("$^{1}$") == 3
    bound = at_most(shown.values["plain", "eps2"].epsilon, 3)
    assert f"| {bound}, no guarantee |" in markdown.markdown(shown).replace("  ", "")
    assert markdown.certified(shown.values["better", "eps2"]) == bound
    value = shown.values["plain", "eps2"]
    assert page_article._numbers(value, has_papers=False)[0] == f"{bound}, no guarantee"


def test_tex_is_balanced_escaped_and_rectangular(made):
    text = latex(made())
    begins, ends = re.findall(r"\\begin\{(\w+)\}", text), re.findall(r"\\end\{(\w+)\}", text)
    assert begins == ends[::-1]
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    assert r"Plain\_1" in text and r"$\varepsilon$ = 2" in text
    assert text.isascii()
    rules = [text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")]
    assert rules == sorted(rules)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body} == {3}
    assert "51.0 $\\pm$ 1.4$^{1}$ (50.0)" in text


def test_a_cell_whose_model_diverged_is_marked(made, lab):
    cell = ("plain", "eps2")
    (number, *_) = made().values[cell].run_ids
    directory = lab.results / "embedded" / "runs" / number
    metrics, more = directory / "metrics.jsonl", {"nonfinite_outputs": 3}
    lines = [json.loads(line) | more for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads((directory / "result.json").read_text()) | more
    result["files"]["metrics.jsonl"] = contents(directory, "metrics.jsonl")  # as a run writes it
    (directory / "result.json").write_text(json.dumps(result))
    marked = {key for key, v in made().values.items() if collect.DIVERGED in v.deviations}
    assert marked == {cell}
    text = markdown.markdown(made())
    assert f"] {collect.DIVERGED}" in text and "51.0 ± 1.4 (n=2) [1] [2]" in text


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [(3.898, "3.90", "3.89"), (7.9923, "8.00", "7.99"), (8.0, "8.00", "8.00"),
     (0.0, "0.00", "0.00"), (-0.001, "-0.00", "-0.01"),
     (float("inf"), "inf", "inf")],
)  # fmt: skip
def test_a_bound_is_never_rounded_to_more_than_was_shown(value, above, below):
    assert (at_most(value, 2), at_least(value, 2)) == (above, below)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7.99645, "7.997"), (8.0, "8"), (0.00012341, "0.0001235"), (1999.2, "2000"), (0.0, "0"),
     (math.inf, "inf"), (2.0000001, "2.001"), (3.2, "3.2"), (1234567.0, "1.235e+06")],
)  # fmt: skip
def test_a_spent_epsilon_is_rounded_up_to_four_digits(value, expected):
    assert at_most(value) == expected
