"""Every method has a page, whose numbers are those of records, benches and certificates."""

import ast
import csv
import json
import re
import statistics
from functools import cache

import pytest

from docs._ext import blocks, methods, records
from docs._ext.markdown import docstring
from dpexp import cli

ROOT = cli.CONF.parent
PAGES = ROOT / "docs" / "methods"
NAMES = methods.listed()
SHARING = ["bgep", "bitfit", "linear", "nonprivate", "rgp_random"]
"""Methods that are another's class with other options, and differ from a paper by themselves."""

PRIVATE = [name for name in NAMES if name not in ("linear", "nonprivate", "powersgd")]


@cache
def page_of(name):
    return blocks.generated((PAGES / f"{name}.md").read_text(encoding="utf-8"))


def test_every_method_has_a_page_that_is_listed_once():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^(\w+)$", "".join(re.findall(r"maxdepth: 1\n(.*?)```", index, re.S)), re.M
    )
    assert sorted(listed) == NAMES
    assert {path.stem for path in PAGES.glob("*.md")} == {*NAMES, "index"}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_its_parts_and_the_idea_is_short(name):
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"`method={name}`" in text and re.search(
        rf"<!-- generated: (method|rest) {name}\b", text
    )
    idea = text.partition("<!--")[0]
    assert 25 < len(idea.split()) < 130
    page = page_of(name)
    parts = ["Algorithm", "Differences from the paper", "Options", "What it releases"]
    parts += ["What a step costs", "Our numbers"]
    heads = re.findall(r"^## (.*)$", page, re.M)
    numbered = re.findall(r"^ *(\d+)\. ", docstring_of(page).partition("Differences from")[2], re.M)
    told = page.partition("## Differences from the paper")[2].partition("\n## ")[0]
    shown = re.findall(r"^(\d+)\. ", told, re.M)
    if name in SHARING:
        assert heads == parts and shown == [str(i + 1) for i in range(len(shown))]
    else:
        assert [head for head in heads if numbered or head != parts[1]] == heads
        assert {*parts} - {*heads} <= {parts[1]} and shown == numbered


def docstring_of(page):
    target = re.search(r"\[(dpexp/\S+)\]", page)[1]
    return ast.get_docstring(ast.parse((ROOT / target).read_text(encoding="utf-8")))


def test_who_shares_a_class_tells_its_own_differences():
    """Its class's are another method's: B-GEP has no pair, and RGP-random decomposes nothing."""
    assert [name for name in NAMES if methods.base_of(name)] == sorted([*SHARING, "powersgd"])
    for name in SHARING:
        base = methods.base_of(name)
        part = page_of(name).partition("## Differences from the paper")[2].partition("\n## ")[0]
        of_class = docstring(docstring_of(page_of(name)))[2]
        points = set(re.findall(r"^\d+\. (.*)$", of_class, re.M))
        assert points and not points & set(re.findall(r"^\d+\. (.*)$", part, re.M))
        assert f"It is [`method={base}`]({base}.md) with `" in page_of(name)
    assert "with `method.residual=false`." in page_of("bgep")
    assert "with `method.carriers=random`." in page_of("rgp_random")


@pytest.mark.parametrize("name", ["gep", "bgep"])
def test_the_parts_of_geps_step_are_those_of_the_page_that_is_linked(name):
    part = page_of(name).partition("## What a step costs")[2].partition("\n## ")[0]
    page = re.search(r"\]\(\.\./\.\./(results/bench/\S+\.md)\)", part)[1]
    measured = re.findall(
        r"^\| .* \| ([\d.]+) \| (\d+) % \|$", (ROOT / page).read_text("utf-8"), re.M
    )
    shown = re.findall(r"^\| .* \| ([\d.]+) \| (\d+)% \|$", part, re.M)
    assert shown == measured and len(shown) == 4


def test_what_is_released_is_what_a_certificate_says():
    for name in PRIVATE:
        part = page_of(name).partition("## What it releases")[2].partition("\n## ")[0]
        path = re.search(r"\.\./\.\./(results/\S+privacy\.json)", part)[1]
        certificate = json.loads((ROOT / path).read_text(encoding="utf-8"))
        assert records.method_of(*re.search(r"results/(\w+)/runs/(\w+)/", path).groups()) == name
        for release in certificate["releases"]:
            assert f"`{release['name']}`: {release['dimension']:,} number" in part
            assert f"sensitivity {release['sensitivity']:.4g}." in part
    for name in set(NAMES) - {*PRIVATE}:
        assert "without noise, it has no privacy" in page_of(name)


def test_what_is_one_is_told_in_the_singular():
    told = [page_of(name).partition("## What it releases")[2] for name in PRIVATE]
    told = [part.partition("\n## ")[0] for part in told]
    nouns = "numbers|times|steps|parameter tensors"
    assert not re.findall(rf"(?<![\d.,])1 (?:{nouns})\b", "\n".join(told))
    # Not for want of one: compressive SGD trains one tensor, and DP-ZO releases one number.
    assert any("\n1 parameter tensor with " in part for part in told)
    assert any(": 1 number, " in part for part in told)


def test_a_cell_is_the_mean_of_its_records_beside_the_published_value():
    """By another way than the page's: from result.json."""
    with (ROOT / "results/quick/rgp/table3.csv").open(encoding="utf-8", newline="") as file:
        (cell,) = (c for c in csv.DictReader(file)
                   if (c["row"], c["column"]) == ("cifar10-rgp", "eps4"))  # fmt: skip
    runs = [ROOT / "results/quick/runs" / run / "result.json" for run in cell["runs"].split()]
    found = [json.loads(path.read_text("utf-8"))["test_accuracy"] for path in runs]
    told = f"{statistics.fmean(found):.1f} ± {statistics.stdev(found):.1f} (paper 53.3)"
    part = page_of("rgp").partition("results/quick/rgp/table3.md")[2].partition("\n**")[0]
    (row,) = re.findall(r"^\| CIFAR10, RGP \| (.*) \|$", part, re.M)
    assert row.split(" | ")[1] == told


def test_no_page_has_another_methods_rows():
    for made in records.built():
        if made.artifact.figure is None:
            rows = {line["row"] for line in records.lines_of(made, "lsg")}
            said = {r.key: r.overrides for r in made.artifact.rows}
            assert not any(f"method={name}" in said[row] for row in rows for name in NAMES
                           if name != "lsg")  # fmt: skip


def test_every_measured_step_of_the_suite_is_on_a_page():
    others = ("Opacus", "torch.func", "forward and input", "non-private,")
    pages = "\n".join(map(page_of, NAMES))
    for path in (ROOT / "results/bench").glob("cpu-*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                step = line.get("step", "")
                if step and not step.startswith(others):
                    assert f"| {step} | {float(line['time']):.2f} |" in pages, (path.name, step)
