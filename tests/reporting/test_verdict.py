"""An artifact's verdict, and tables that hold words, several metrics, or lack numbers."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpexp.reporting import collect
from dpexp.reporting.judge import verdict
from dpexp.reporting.render import markdown
from dpexp.reporting.render.csv_files import csv_text
from dpexp.reporting.render.latex import latex
from dpexp.reporting.render.table import Table, unbroken
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError
from tests.reporting.conftest import DEMO
from tests.reporting.shown import edit


@pytest.fixture(scope="module")
def conf_of_all(tmp_path_factory):
    """The demo's table, read by many examples of one test."""
    folder = tmp_path_factory.mktemp("conf") / "artifact" / "demo"
    folder.mkdir(parents=True)
    (folder / "table9.yaml").write_text(DEMO, encoding="utf-8")
    return folder.parents[1]


@pytest.fixture
def made(make):
    return partial(make, name="table9")


def judged(table):
    return verdict.of(table.artifact, table.profile, table.values)


def shown(conf, profile, means):
    """Return the demo's table as if its published cells had come out so."""
    artifact = spec.load(conf, "demo", "table9")
    values = {}
    for row in artifact.rows:
        for column in artifact.columns:
            cell = (row.key, column.key)
            published = artifact.published.get(cell)
            mean = means.get(cell)
            status = "not run" if mean is None else "done"
            values[cell] = collect.Value(
                cell,
                status,
                mean=mean,
                published=published.value if published else None,
                readings=() if mean is None else (mean,),
            )
    return Table(artifact, profile, values)


@pytest.mark.parametrize(
    ("difference", "size"),
    [(0.0, "within 1"), (-1.0, "within 1"), (0.7 + 0.3, "within 1"), (1.1, "within 3"),
     (-3.0, "within 3"), (3.01, "beyond"), (None, "not run")],
)  # fmt: skip
def test_a_difference_has_a_size(difference, size):
    assert verdict.size(difference) == size


def test_published_cells_are_counted_by_size_under_the_paper_profile(conf):
    means = {("plain", "eps2"): 50.9, ("plain", "eps4"): 57.5, ("better", "eps2"): 80.0}
    found = judged(shown(conf, "paper", means))
    assert found.cells == {"within 1": 1, "within 3": 1, "beyond": 1, "not run": 0}
    assert {word: n for word, n in found.claims.items() if n} == {"unclear so far": 1}
    assert found.sentence == (
        "Of 3 published cells, 1 within 1 point, 1 more within 3, 1 beyond, 0 not run; "
        "of 1 claim, 1 unclear so far (where there is one seed, of its model)."
    )
    elsewhere = judged(shown(conf, "embedded", means))
    assert (
        elsewhere.sentence
        == "Of 1 claim, 1 unclear so far (where there is one seed, of its model)."
    )
    assert not elsewhere.is_comparable


def test_what_a_profile_has_no_run_for_is_not_waited_for(conf):
    """A claim is open while runs are missing, not because of columns that are skipped for good."""
    table = shown(conf, "embedded", {("plain", "eps2"): 50.0, ("better", "eps2"): 70.0})
    assert judged(table).judged[0].word == "unclear so far"
    skip = {
        cell: replace(value, status="not run here", published=None)
        for cell, value in table.values.items()
        if cell[1] == "eps4"
    }
    (verdict,) = judged(replace(table, values={**table.values, **skip})).judged
    assert verdict.word == "unclear"
    assert "in 0 of 1 comparison, 1 more not run here; " in verdict.sentence()
    every = {cell: replace(value, status="not run here", mean=None, readings=())
             for cell, value in table.values.items()}  # fmt: skip
    found = judged(replace(table, values=every))
    assert found.judged[0].sentence() == "not run here"
    assert found.sentence == "Of 1 claim, 1 not run here."


@given(st.data())
def test_rows_and_columns_that_have_nothing_are_left_out_of_what_is_printed(conf_of_all, data):
    table = shown(conf_of_all, "embedded", {})
    cells = [*table.values]
    kinds = data.draw(st.lists(st.sampled_from("svp"), min_size=len(cells), max_size=len(cells)))
    values = {
        cell: collect.Value(
            cell,
            "done" if kind == "v" else "not run here",
            mean=1.0 if kind == "v" else None,
            published=1.0 if kind == "p" else None,
        )
        for cell, kind in zip(cells, kinds, strict=True)
    }
    table = replace(table, values=values)
    printed = {
        (row.key, column.key): value for row, cells in table.printed() for column, value in cells
    }
    full = {cell for cell, kind in zip(cells, kinds, strict=True) if kind != "s"}
    if full:
        rows, columns = {row for row, _ in full}, {column for _, column in full}
        assert printed.keys() == {cell for cell in cells if cell[0] in rows and cell[1] in columns}
    else:
        assert printed.keys() == {*cells}
    assert all(values[cell] is value for cell, value in printed.items())
    assert len(table.head()) == len(table.frame(lambda value, _: "").columns)
    assert latex(table).count("\\\\\n") == len({row for row, _ in printed}) + 1


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("SVHN, ε = 2", "SVHN, ε\u00a0=\u00a02"),
        (
            "noise multiplier 1.5, q < 0.1, ε ≤ 8",
            "noise multiplier 1.5, q\u00a0<\u00a00.1, ε\u00a0≤\u00a08",
        ),
        ("= 2", "= 2"),
        ("a = b = c", "a\u00a0=\u00a0b\u00a0=\u00a0c"),
        ("Method", "Method"),
    ],
)
def test_an_equation_in_a_heading_stays_on_one_line(label, shown):
    assert unbroken(label) == shown


def test_nothing_run_is_said_and_nothing_to_judge_is_not(conf):
    found = judged(shown(conf, "paper", {}))
    assert found.cells["not run"] == 3
    assert found.sentence.endswith("; of 1 claim, 1 not run.")
    edit(
        conf,
        "table9",
        ('  - {says: "Better above Plain", above: [better], below: [plain]}', "  []"),
    )
    assert judged(shown(conf, "embedded", {})).sentence == ""


def test_the_markdown_has_the_verdict_in_a_line(made):
    lines = markdown.markdown(made()).splitlines()
    assert "**Verdict**: Of 1 claim, 1 unclear." in lines


COSTS = (
    ("columns:\n", 'columns:\n  - {key: cost, label: "Time", words: {plain: "O(m|W|)"}}\n'),
    ('{key: eps4, label: "ε = 4", overrides: [eps=4]}',
     '{key: eps4, label: "s", overrides: [eps=2], metric: wall_s, decimals: 3, value_label: s}'),
    ("    eps4: {value: 60.0", "    eps4: {value: 4.5"),
    ("below: [plain]}", "below: [plain], columns: [eps2]}"),
)  # fmt: skip
"""Edits that give the demo's table a column of words and one of seconds."""


def test_a_column_of_words_has_no_runs_and_prints_them(made, conf, lab):
    edit(conf, "table9", *COSTS)
    table = made()
    assert len(lab.executed) == 2 * 2  # two metrics of one run a method and seed
    assert table.values["plain", "cost"].text == "O(m|W|)"
    text = markdown.markdown(table)
    assert r"| O(m\|W\|) |" in text
    assert "4.000 ± 0.000 (n=2) [1]<br>paper 4.500 (-0.500)" in text
    assert text.count("| small (for Big), Plain_1, ε = 2; small (for Big), Plain_1, s |") == 1
    tex = latex(table)
    assert "{lllrr}" in tex and "O(m$|$W$|$)" in tex
    assert ",cost," not in csv_text(table)


def test_a_number_that_the_record_lacks_is_told_and_not_replaced(made, conf):
    edit(conf, "table9", ("metric: test_accuracy", "metric: cost_ratio"))
    value = made().values["plain", "eps2"]
    assert (value.status, value.mean) == ("no such number: cost_ratio", None)


def test_a_row_may_have_a_metric_and_a_columns_goes_before_it(conf):
    edit(
        conf,
        "table9",
        ("task=big, method=plain]", "task=big, method=plain], metric: a, decimals: 4"),
        ('"ε = 4", overrides: [eps=4]', '"ε = 4", overrides: [eps=4], metric: [b, c]'),
    )
    artifact = spec.load(conf, "demo", "table9")
    (plain, better, _), (eps2, eps4) = artifact.rows, artifact.columns
    assert artifact.metric_of(plain, eps2) == ("a",)
    assert artifact.metric_of(plain, eps4) == ("b", "c")
    assert artifact.metric_of(better, eps2) == ("test_accuracy",)
    assert artifact.decimals_of(plain, eps4) == 4 and artifact.decimals_of(better, eps4) == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("words: {plain", "words: {plian", "Unknown row in words of column cost 'plian'"),
        ("words: {", "overrides: [eps=2], words: {", "Column cost: a column of words has no runs"),
        ("columns: [eps2]}", "columns: [cost]}", "Unknown column 'cost'"),
        (", overrides: [eps=2]}", "}", "Expected 'overrides' in column eps2"),
        (
            "method=better]",
            "method=better], words: {plain: x}",
            "Unknown word in row better",
        ),
    ],
)
def test_words_in_the_wrong_place_are_a_mistake(conf, old, new, expected):
    edit(conf, "table9", *COSTS, (old, new))
    with pytest.raises(ConfigError, match="table9.yaml") as error:
        spec.load(conf, "demo", "table9")
    assert expected in str(error.value)


def test_a_timing_artifact_says_that_it_runs_alone(conf):
    assert not spec.load(conf, "demo", "table9").alone
    edit(conf, "table9", ("row_head:", "alone: true\nrow_head:"))
    assert spec.load(conf, "demo", "table9").alone
