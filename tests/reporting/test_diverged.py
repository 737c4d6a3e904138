"""Runs that diverged: shown as such, counted by nobody's n, and no claim holds by their absence."""

import csv
import io
import json
import math

import numpy as np
import pytest

from dpexp.reporting import collect
from dpexp.reporting.collect import build
from dpexp.reporting.collect.cells import Job
from dpexp.reporting.collect.outcomes import Outcome
from dpexp.reporting.judge import claims, verdict
from dpexp.reporting.render import figure, markdown, page
from dpexp.reporting.render.csv_files import csv_text
from dpexp.reporting.render.latex import latex
from dpexp.reporting.render.points import _bar
from dpexp.reporting.render.table import Table
from dpexp.reporting.render.terminal import terminal
from dpexp.reporting.schema.artifact import (
    CURVES,
    MAPS,
    POINTS,
    Artifact,
    Axes,
    Claim,
    Column,
    Profile,
    Published,
    Row,
)
from tests.marks import long

LOSSES = {("plain", "x"): [0.5, 0.51, 0.52], ("plain", "y"): [0.9, 0.91, 0.92],
          ("sparse", "x"): [0.29, 0.3, 0.31], ("sparse", "y"): [0.3, 0.31, 0.32]}  # fmt: skip
BELOW = Claim("Sparse's loss is below Plain's", ("plain",), ("sparse",))
KINDS = {
    "": None,
    POINTS: Axes("x", x_name="x"),
    CURVES: Axes("epochs", kind=CURVES, x="epoch"),
    MAPS: Axes("x", kind=MAPS, y_label="y"),
}


def artifact_of(kind="", claim=BELOW, **more):
    of_kind = {CURVES: {"panel": 1}, POINTS: {"x": 1, "panel": 0}}.get(kind, {})
    columns = tuple(
        Column(
            key, (key,), panel=key if of_kind.get("panel") else "", x=n if "x" in of_kind else None
        )
        for n, key in enumerate("xy")
    )
    return Artifact(
        "demo", "t", "T", "T", ("Method",), (Row("plain", ("Plain",)), Row("sparse", ("Sparse",))),
        columns, {"paper": Profile((0, 1, 2))}, ("test_loss",), claims=(claim,),
        figure=KINDS[kind], **more,
    )  # fmt: skip


def written(folder, kind, number):
    """Write what a run of this kind of figure recorded: of a curve, its values; else its number."""
    folder.mkdir(parents=True)
    if kind == CURVES:
        lines = [{"epoch": n, "test_loss": value} for n, value in enumerate(number)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if kind == MAPS:
        (folder / "metrics.jsonl").write_text("")
        np.savez(folder / "analysis.npz", test_loss=np.array(number, float))
    return folder


def table_of(tmp_path, losses, kind="", **more):
    """Return a table or figure from records of these numbers by cell and seed."""
    artifact = artifact_of(kind, **more)
    outcomes = []
    for cell, numbers in losses.items():
        for seed, number in enumerate(numbers):
            run = "".join(cell) + str(seed)
            job = Job(cell, "", ("test_loss",), seed, (), {"seed": seed}, run)
            result = {
                "metric": "test_loss",
                "test_loss": None if kind in (CURVES, MAPS) else number,
            }
            folder = written(tmp_path / run, kind, number)
            outcomes.append(Outcome(job, "done", result=result, privacy={}, directory=folder))
    return Table(artifact, "paper", collect.collect(artifact, outcomes))


def judged(table):
    return claims.judge(table.artifact, table.values)[0]


@pytest.mark.parametrize(
    ("odd", "said"),
    [([None, 0.3, 0.31], "1 of 3"), ([None, None, 0.3], "2 of 3"), ([None] * 3, "3 of 3"),
     ([math.nan, 0.3, 0.31], "1 of 3"), ([math.inf, 0.3, 0.31], "1 of 3")],
)  # fmt: skip
def test_a_claim_on_a_cell_with_diverged_seeds_is_unclear_and_says_how_many(tmp_path, odd, said):
    """The mean of the others would be evidence for what diverges, and "not run" hides it."""
    found = judged(table_of(tmp_path, {**LOSSES, ("sparse", "x"): odd}))
    assert found.word == claims.UNCLEAR
    assert found.sentence() == (
        f"**unclear**: it holds in 1 of 2 comparisons, 1 where {said} seeds diverged"
    )
    assert claims.NOT_RUN not in found.sentence()
    (words,) = (c.words(1) for c in found.comparisons if c.diverged)
    assert words == f"{said} seeds diverged"


def test_both_sides_may_diverge_and_a_refuted_comparison_still_refutes(tmp_path):
    losses = {("plain", "x"): [None, 0.5, 0.5], ("sparse", "x"): [None, None, 0.3]}
    found = judged(table_of(tmp_path / "a", {**LOSSES, **losses}))
    assert found.sentence().endswith("1 where 1 of 3 and 2 of 3 seeds diverged")
    refuted = {**LOSSES, **losses, ("sparse", "y"): [2.0, 2.1, 2.2]}
    found = judged(table_of(tmp_path / "b", refuted))
    assert found.word == claims.FAILS
    assert "1 where 1 of 3 and 2 of 3 seeds diverged; smallest difference -1" in found.sentence()


def test_what_nobody_ran_is_still_not_run(tmp_path):
    losses = {**LOSSES, ("sparse", "x"): [None, 0.3, 0.31]}
    del losses["plain", "x"]
    found = judged(table_of(tmp_path, losses))
    assert [c.verdict for c in found.comparisons] == [claims.NOT_RUN, claims.HOLDS]


def every_text(table, tmp_path):
    shown = page.html([page.Entry(table)], "paper", tmp_path)
    texts = [markdown.markdown(table), csv_text(table), terminal(table, 200), shown]
    return texts if table.artifact.figure else [*texts, latex(table)]


def test_a_cell_says_how_many_diverged_beside_the_mean_of_the_others(tmp_path):
    table = table_of(tmp_path, {**LOSSES, ("sparse", "x"): [None, 0.3, 0.32]})
    value = table.values["sparse", "x"]
    assert (value.num_seeds, value.diverged, value.status) == (2, 1, "done")
    assert value.mean == pytest.approx(0.31) and value.std == pytest.approx(0.02 / 2**0.5)
    for text in every_text(table, tmp_path):
        assert "diverged (1 of 3)" in text and "nan" not in text.replace("tenant", "")
    text = markdown.markdown(table)
    assert "| 0.3 ± 0.0 (n=2), diverged (1 of 3) |" in text
    assert f"- {markdown.DIVERGED}\n" in text and "not run" not in text
    (line,) = (line for line in csv.DictReader(io.StringIO(csv_text(table)))
               if (line["row"], line["column"]) == ("sparse", "x"))  # fmt: skip
    assert (line["n"], line["status"]) == ("2", "diverged (1 of 3)")


def test_a_cell_of_diverged_seeds_alone_says_that(tmp_path):
    table = table_of(tmp_path, {**LOSSES, ("sparse", "x"): [None] * 3})
    value = table.values["sparse", "x"]
    assert (value.num_seeds, value.mean, value.std, value.status) == (0, None, None, "diverged")
    for text in every_text(table, tmp_path):
        assert "diverged" in text and "diverged (" not in text
        assert "not run" not in text.replace("beyond, 0 not run", "")


def test_nothing_is_said_where_nothing_diverged(tmp_path):
    table = table_of(tmp_path, LOSSES)
    assert all("iverged" not in text for text in every_text(table, tmp_path))


def test_a_published_cell_that_diverged_is_neither_near_nor_not_run(tmp_path):
    published = {cell: Published(0.3, "there") for cell in (("sparse", "x"), ("sparse", "y"))}
    losses = {**LOSSES, ("sparse", "x"): [None, 0.3, 0.3]}
    table = table_of(tmp_path, losses, published=published)
    assert table.values["sparse", "x"].difference is None
    found = verdict.of(table.artifact, "paper", table.values)
    assert found.sizes == {("sparse", "x"): "diverged", ("sparse", "y"): "within 1"}
    assert found.sentence.startswith(
        "Of 2 published cells, 1 within 1 point, 0 more within 3, 0 beyond, 0 not run, 1 diverged; "
    )
    assert "0 not run, 1 diverged" in page.html([page.Entry(table)], "paper", tmp_path)


def test_a_row_s_average_is_over_the_seeds_that_have_one(tmp_path):
    losses = {**LOSSES, ("sparse", "x"): [None, 0.3, 0.31]}
    average = Column("avg", ("Mean",))
    claim = Claim("On average", ("plain",), ("sparse",), columns=("avg",))
    table = table_of(tmp_path, losses, average=average, claim=claim)
    value = table.values["sparse", "avg"]
    assert (value.num_seeds, value.diverged) == (2, 1)
    assert value.mean == pytest.approx((0.3 + 0.31 + 0.31 + 0.32) / 4)
    assert judged(table).sentence().endswith("1 where 1 of 3 seeds diverged")


CURVE = [3.0, 2.0, 1.0, 0.5]
NAN_AT_END = [3.0, 3.1, None, None]


def curves(tmp_path, odd, **more):
    cells = dict.fromkeys(LOSSES, [CURVE] * 3)
    return table_of(tmp_path, {**cells, ("sparse", "x"): odd}, CURVES, **more)


def test_a_curve_that_ends_in_nan_diverged_and_the_figure_has_a_gap(tmp_path):
    bounded = Claim("Bounded", (8.0,), ("sparse",), columns=("x",), reduce="max")
    table = curves(tmp_path, [CURVE, CURVE, NAN_AT_END], claim=bounded)
    value = table.values["sparse", "x"]
    assert (value.mean, value.num_seeds, value.diverged) == (0.5, 2, 1)
    found = judged(table)
    assert found.sentence().endswith("it holds in 0 of 1 comparison, 1 where 1 of 3 seeds diverged")
    picture = figure.draw(table)
    picture.canvas.draw()
    (panel,) = (axes for axes in picture.axes if axes.get_title(loc="left") == "x")
    assert np.isfinite(panel.lines[1].get_ydata()).tolist() == [True, True, False, False]
    assert "diverged (1 of 3): Sparse, x" in markdown.markdown(table)
    assert any("Diverged (1 of 3): Sparse, x." in text.get_text() for text in picture.texts)


@pytest.mark.parametrize("odd", [NAN_AT_END, [None] * 4], ids=["later", "at once"])
def test_curves_that_all_diverged_hold_no_claim(tmp_path, odd):
    bounded = Claim("Bounded", (8.0,), ("sparse",), columns=("x",), reduce="max")
    table = curves(tmp_path, [odd] * 3, claim=bounded)
    value = table.values["sparse", "x"]
    assert (value.status, value.mean, value.num_seeds) == ("diverged", None, 0)
    assert judged(table).word == claims.UNCLEAR
    figure.draw(table).canvas.draw()
    assert all("iverged" in text for text in every_text(table, tmp_path)[:2])


def test_a_spike_that_is_not_finite_is_the_largest_value(tmp_path):
    bounded = Claim("Bounded", (8.0,), ("sparse",), columns=("x",), reduce="max")
    table = curves(tmp_path, [[3.0, None, 1.0, 0.5]] * 3, claim=bounded)
    assert table.values["sparse", "x"].num_seeds == 3  # their ends are finite
    assert judged(table).word == claims.UNCLEAR


@pytest.mark.parametrize(
    ("count", "odd"), [(1, np.nan), long(3, np.nan), long(1, np.inf), (3, np.inf)]
)
def test_pictures_with_gaps_are_counted_and_drawn(tmp_path, count, odd):
    good = np.arange(4.0).reshape(2, 2) + 1
    bad = np.where(good == 2, odd, good)
    claim = Claim("Large", ("plain",), ("sparse",), reduce="mean")
    cells = {cell: [good] * 3 for cell in LOSSES}
    cells["sparse", "x"] = [bad] * count + [good] * (3 - count)
    table = table_of(tmp_path, cells, MAPS, claim=claim)
    value = table.values["sparse", "x"]
    assert (value.num_seeds, value.diverged) == (3 - count, count)
    assert np.isfinite(value.picture).all() == (count < 3)
    assert judged(table).word == claims.UNCLEAR
    figure.draw(table).canvas.draw()
    assert value.divergence in csv_text(table) and value.divergence in markdown.markdown(table)


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize("odd", [[None, 0.3, 0.31], [None] * 3])
def test_points_are_drawn_of_what_is_finite(tmp_path, monkeypatch, log_y, odd):
    monkeypatch.setitem(KINDS, POINTS, Axes("x", x_name="x", log_y=log_y))
    table = table_of(tmp_path, {**LOSSES, ("sparse", "x"): odd}, POINTS)
    figure.draw(table).canvas.draw()
    value = table.values["sparse", "x"]
    if value.mean is not None:
        assert all(math.isfinite(reach) for reach in _bar(value, value.mean, log_y))
    assert value.divergence in csv_text(table)


def test_the_line_of_a_run_that_diverged_says_so(tmp_path, monkeypatch):
    for result in ({"metric": "loss", "loss": None}, {"metric": "loss", "loss": math.inf}):
        ended = Outcome(None, "done", result=result)
        monkeypatch.setattr(build, "outcome", lambda job, results, ended=ended: ended)
        said = []
        job = Job(("r", "c"), "cell", ("loss",), 0, (), {}, "id")
        for names in (("loss",), ("of_a_curve",)):
            report = build.Report(1, tmp_path, said.append)
            report.ended(Job(job.cell, "cell", names, 0, (), {}, "id"), "", 1.0)
        assert all(": diverged (" in line for line in said)
