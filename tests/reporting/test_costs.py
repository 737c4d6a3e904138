"""Columns of what a step costs, beside accuracies."""

import re

import pytest

from dpexp.cli.groups import CONF
from dpexp.reporting import collect
from dpexp.reporting.collect import costs
from dpexp.reporting.render.markdown import markdown
from dpexp.reporting.render.table import Table
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError
from tests.reporting.shown import edit

HEAD = "step,time,low,high,memory,note\n"


@pytest.fixture
def table4():
    return spec.load(CONF, "dpexp", "table4")


def test_a_step_stands_in_the_row_that_it_is_of(table4, tmp_path):
    (tmp_path / "bench").mkdir()
    lines = "np,1.004,1,1,1.0,\ndpsgd,1.2345,1.2,1.3,1.1,\nrgp,,,,,does not run: too large\n"
    (tmp_path / "bench" / "cpu-recipes-vision.csv").write_text(HEAD + lines)
    artifact = costs.filled(table4, tmp_path)
    words = {column.key: column.words for column in artifact.columns if column.bench}
    of_images = words["step-scratch"]
    assert (of_images["np"], of_images["dpsgd"]) == (
        "1.00,\N{NO-BREAK SPACE}1.00",
        "1.23,\N{NO-BREAK SPACE}1.10",
    )
    assert of_images["rgp"] == "does not run: too large" and of_images["gep"] == "–"
    assert set(words["step-sst2"].values()) == {"not measured"}
    page = markdown(Table(artifact, "quick", collect.collect(artifact, [])))
    (row,) = re.findall(r"^\| DP-SGD +\| plain .*$", page, re.M)
    assert "| 1.23,\N{NO-BREAK SPACE}1.10 " in row
    assert "[cpu-recipes-vision](../../bench/cpu-recipes-vision.md)" in page


def test_no_run_is_of_such_a_column(table4):
    keys = {column.key for column in table4.measured_columns}
    assert "scratch-eps8" in keys and not keys & {"step-scratch", "step-sst2"}


@pytest.mark.parametrize("more", ["words: {plain: a}", "overrides: [eps=2]", "metric: accuracy"])
def test_a_column_of_costs_has_nothing_else(more, conf):
    first = (conf / "artifact" / "demo" / "table9.yaml").read_text().split("columns:\n")[1]
    line = f"  - {{key: step, label: a step, bench: cpu, {more}}}\n"
    edit(conf, "table9", (first.splitlines(keepends=True)[0], line + first.splitlines(True)[0]))
    with pytest.raises(ConfigError, match="Column step: "):
        spec.load(conf, "demo", "table9")
