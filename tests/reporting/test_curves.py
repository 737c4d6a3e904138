"""Curves and pictures from genuine records: what is read, averaged, drawn, claimed, written."""

from functools import partial

import numpy as np
import pytest

from dpexp import records
from dpexp.reporting.collect import readings
from dpexp.reporting.judge import claims
from dpexp.reporting.render import exports, figure, markdown
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError
from tests.marks import long, pairs_long
from tests.reporting import conftest
from tests.reporting.conftest import arrays
from tests.reporting.shown import csv_lines, drawn, edit


@pytest.fixture
def curves(make):
    return partial(make, name="figure5")


@pytest.fixture
def maps(make):
    return partial(make, name="figure6")


def test_a_band_is_mean_and_std_on_the_x_that_all_seeds_have(curves, lab):
    shown = curves()
    assert len(lab.executed) == 2 * 3  # two panels show one run
    curve = shown.values["plain", "rank"].curve
    # Seed s saw 4 + s observations of 2 + s + epoch, seed 2 no finite one at epoch 0.75.
    assert curve.x.tolist() == [0, 0.25, 0.5]
    assert curve.mean.tolist() == [3, 3.25, 3.5]
    assert curve.std.tolist() == [1, 1, 1]
    panel = drawn(shown)["Stable rank"]
    assert panel.lines[0].get_xydata().tolist() == [[0, 3], [0.25, 3.25], [0.5, 3.5]]
    band = panel.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (2, 4.5)
    accuracy = shown.values["better", "accuracy"]
    assert (accuracy.mean, accuracy.std, accuracy.num_seeds) == (77, 2, 3)
    assert accuracy.difference == -1


def test_one_seed_has_no_band_and_says_so(curves, conf):
    edit(conf, "figure5", ("seeds: [0, 1, 2]", "seeds: [1]"))
    shown = curves()
    assert shown.values["plain", "rank"].curve.std is None
    assert not drawn(shown)["Stable rank"].collections
    assert "one seed" in shown.legend()


def test_a_record_without_the_series_says_so_and_the_rest_is_drawn(curves, conf):
    edit(conf, "figure5", ("metric: stable_rank/head", "metric: stable_rank/haed"))
    shown = curves()
    value = shown.values["plain", "rank"]
    assert value.status == "no such series: stable_rank/haed (did you mean stable_rank/head?)"
    assert (value.curve, value.mean, value.num_seeds) == (None, None, 0)
    assert drawn(shown)["Accuracy"].lines and not drawn(shown)["Stable rank"].lines
    assert f"- {value.status}: Plain, Stable rank; Better, Stable rank\n" in markdown.markdown(
        shown
    )


def test_runs_that_kept_no_arrays_are_told_alike(curves, lab):
    lab.analyses = False
    status = curves().values["plain", "rank"].status
    assert status.startswith("no such series: stable_rank/head")


def test_csv_has_a_line_a_point_of_a_curve(curves):
    found = csv_lines(curves())
    keys = [(line["line"], line["panel"], line["x"]) for line in found]
    assert keys[:4] == [("plain", "Accuracy", x) for x in ("0.5", "1", "1.5", "2")]
    assert len(found) == 2 * (4 + 3)
    end = found[keys.index(("better", "Accuracy", "2"))]
    assert (end["mean"], end["std"], end["n"], end["published"]) == ("77", "2", "3", "78.0")
    assert [line["published"] for line in found].count("") == len(found) - 1


def test_claims_reduce_curves_take_numbers_and_compare_columns(curves):
    shown = curves()
    mean, low, across = claims.judge(shown.artifact, shown.values)
    (comparison,) = mean.comparisons
    assert (comparison.difference, mean.verdict) == (15, claims.HOLDS)
    # The largest rank of the seeds: 2.75, 4 and 5.25; 5 lies one above their mean.
    assert [c.above for c in low.comparisons] == [5.0, 5.0]
    assert low.comparisons[0].difference == pytest.approx(1)
    assert low.comparisons[0].error == pytest.approx(1.25 / 3**0.5)
    assert low.verdict == claims.UNCLEAR
    sides = [(c.above, c.below) for c in across.comparisons]
    assert sides == [((row, "accuracy"), (row, "rank")) for row in ("plain", "better")]
    assert across.comparisons[0].difference == pytest.approx(62 - (2.75 + 4 + 5.25) / 3)


def test_of_several_series_a_curve_is_the_mean(curves, conf):
    edit(conf, "figure5", ("metric: stable_rank/head", "metric: [stable_rank/head, step]"))
    curve = curves().values["plain", "rank"].curve
    assert curve.x.tolist() == [0.5]  # where metrics.jsonl has step 5; of 0 it has none
    assert curve.mean.tolist() == [(3.5 + 5) / 2]


def test_log_axes_leave_out_what_has_no_logarithm(curves, conf):
    edit(conf, "figure5", ('x_label: "epochs"', 'x_label: "epochs", log_x: true, log_y: true'))
    shown = curves()
    panel = drawn(shown)["Accuracy"]
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert panel.get_ylim()[0] > 0
    ranks = drawn(shown)["Stable rank"]
    assert ranks.get_xlim()[0] > 0.2  # epoch 0 does not stretch the axis


def test_a_picture_is_the_mean_of_the_seeds_with_a_scale_of_its_own(maps, lab):
    shown = maps()
    assert len(lab.executed) == 2 * 2  # both rows show one run
    picture = shown.values["weight", "plain"].picture
    assert picture.tolist() == (np.arange(12.0).reshape(3, 4) + 1).tolist()
    axes = figure.draw(shown).axes
    images = [a.images[0] for a in axes if a.images]
    assert [image.get_clim() for image in images] == [(1, 12), (1, 12), (0.9, 1.1), (0.9, 1.1)]
    assert {image.get_cmap().name for image in images} == {"cividis"}
    labels = [a.get_ylabel() for a in axes]
    assert labels[0] == "|W|\noutput, in blocks of 4"
    assert labels[4:] == ["|W|", "|W|", "|ΔW|", "|ΔW|"]
    assert [a.get_xlabel() for a in axes[2:4]] == ["input, in blocks of 4"] * 2


def test_small_numbers_are_told_in_a_power_of_ten(maps, monkeypatch):
    shown = maps()
    value = shown.values["weight", "plain"]
    object.__setattr__(value, "picture", value.picture * 1e-5)
    labels = [axes.get_ylabel() for axes in figure.draw(shown).axes]
    assert "|W| in $10^{-4}$" in labels  # 12e-5 at most


def test_csv_has_a_line_a_row_of_a_picture(maps):
    found = csv_lines(maps())
    assert len(found) == 4 * 3
    first = found[0]
    assert (first["row"], first["column"], first["n"], first["y"]) == ("weight", "plain", "2", "0")
    assert [first[str(x)] for x in range(4)] == ["1", "2", "3", "4"]


def test_claims_on_pictures_reduce_them_or_name_a_number(maps):
    shown = maps()
    larger, accurate = claims.judge(shown.artifact, shown.values)
    assert [c.difference for c in larger.comparisons] == [5.5, 5.5]
    (comparison,) = accurate.comparisons
    assert (comparison.above, comparison.below) == (("weight", "plain"), 30.0)
    assert (comparison.difference, accurate.verdict) == (31, claims.HOLDS)


def test_a_missing_picture_says_why_in_its_place(maps, conf):
    edit(conf, "figure6", ("metric: intensity/change", "metric: intensity/chnage"))
    shown = maps()
    words = {text.get_text() for axes in figure.draw(shown).axes for text in axes.texts}
    assert words == {"no such series:\nintensity/chnage"}
    assert [line["status"][:14] for line in csv_lines(shown)].count("no such series") == 2


def test_a_picture_that_is_not_one_says_its_shape(maps, conf):
    edit(conf, "figure6", ("metric: intensity/change", "metric: epoch"))
    status = maps().values["change", "plain"].status
    assert status == "no such picture: epoch (its shape is (4,))"


NAMES = {
    "figure5": (
        ("panel: Accuracy", "panel: 'LONG0'"),
        ('value_label: "test accuracy in %"', "value_label: 'LONG1'"),
    ),
    "figure6": (("label: Plain", 'label: "LONG0"'), ('labels: ["|W|"]', 'labels: ["LONG1"]')),
}
"""Edits that give an axis and a panel a long name."""


@pytest.mark.parametrize("name", ["figure5", long("figure6")])
def test_no_part_covers_another_or_leaves_the_page(make, conf, name):
    many = "; ".join(f"word {n}" for n in range(60))
    edit(conf, name, ('scaled: "Small', f'scaled: "{many}. Small'))
    long = "a panel or an axis with a name that is far longer than it is wide"
    edit(conf, name, *NAMES[name])
    edit(conf, name, *((f"LONG{n}", f"{long} {n}") for n in range(2)))
    picture = figure.draw(make(name=name))
    picture.canvas.draw()
    page = picture.bbox
    parts = [axes.get_tightbbox() for axes in picture.axes]
    parts += [a.get_window_extent() for a in picture.get_children() if type(a).__name__ == "Legend"]
    parts += [text.get_window_extent() for text in picture.texts]
    for number, part in enumerate(parts):
        assert page.x0 <= part.x0 and part.x1 <= page.x1
        assert page.y0 <= part.y0 and part.y1 <= page.y1
        assert not any(part.overlaps(other) for other in parts[:number])


@pytest.mark.parametrize("name", ["figure5", long("figure6")])
def test_the_same_values_give_the_same_files_and_all_are_written(make, lab, name):
    shown = make(name=name)
    files = figure.pictures(shown)
    assert files == figure.pictures(shown)
    written = exports.write(shown, lab.results)
    assert [path.suffix for path in written] == [".md", ".csv", ".svg", ".png"]
    assert f"]({name}.svg)" in written[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("figure5", "kind: curves", "kind: curvs", "Unknown kind of figure 'curvs': did you mean"),
        ("figure5", "x: epoch, ", "", "Expected 'x' in a figure of curves."),
        ("figure5", "x: epoch", "x_name: ε, x: epoch", "Expected no 'x_name' in a figure of curv"),
        ("figure5", "panel: Accuracy,", "panel: Accuracy, x: 2,", "x belongs to points"),
        ("figure5", "panel: Accuracy", "panel: Stable rank", "expected one column a panel"),
        ("figure5", "reduce: mean", "reduce: median", "Unknown reduction in claim 'Better above"),
        ("figure5", "above: [5, 5], below: [plain, better]", "above: [5], below: [4]", "a key on"),
        ("figure5", "rows: [plain, better]}", "rows: [plian]}", "Unknown row 'plian'"),
        ("figure5", "columns: [rank]", "columns: [rank], rows: [plain]", "columns or rows, not b"),
        ("figure6", ', y_label: "output, in blocks of 4"', "", "Expected 'y_label' in a figure of"),
        ("figure6", "blocks of 4}", "blocks of 4, log_x: true}", "neither log_x nor log_y"),
        ("figure6", "reduce: mean", "margin: 0", "expected reduce: mean, min or max, or a metric"),
        ("figure6", "claims:", "published: {weight: {plain: {value: 1, place: P}}}\nclaims:",
         "Expected nothing published in a figure of maps"),
        ("figure4", "x_name: ε", "x_name: ε, y_label: y", "Expected no 'y_label' in a figure of p"),
        ("figure4", "below: [plain]", "below: [plain], reduce: max", "expected no 'reduce'"),
    ],
)  # fmt: skip
def test_a_figure_that_is_wrong_says_where(conf, name, old, new, expected):
    if "blocks of 4}" in old:
        old, new = old.replace("4}", '4"}'), new.replace("4, log", '4", log')
    edit(conf, name, (old, new))
    with pytest.raises(ConfigError, match=f"{name}.yaml") as error:
        spec.load(conf, "demo", name)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_seeds_without_a_common_x_or_shape_are_no_curve_and_no_picture():
    with pytest.raises(records.NoSeries, match="no x in common"):
        readings.join([(np.array([0.0]), np.ones(1)), (np.array([1.0]), np.ones(1))])
    with pytest.raises(records.NoSeries, match="shapes differ"):
        readings.pictures_mean([np.ones((2, 3)), np.ones((3, 2))])
    same = [(np.array([0.1 + 0.2]), np.ones(1)), (np.array([0.3]), np.ones(1))]
    assert readings.join(same).x.size == 1  # rounding does not part them


@pytest.mark.parametrize(
    ("how", "expected"), [("last", 2), ("first", 7), ("mean", 4), ("min", 2), ("max", 7)]
)
def test_reductions(how, expected):
    curve = (np.arange(3.0), np.array([7.0, 3.0, 2.0]))
    assert readings.reduced(curve, how) == expected
    assert readings.reduced(7.0, how) == 7.0


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_reduction_is_of_all_it_needs(odd):
    """The largest of a curve that diverged is not the largest of what came before."""
    curve = (np.arange(4.0), np.array([7.0, odd, 3.0, 2.0]))
    assert [readings.reduced(curve, how) for how in ("first", "last")] == [7, 2]
    assert all(np.isnan(readings.reduced(curve, how)) for how in ("mean", "min", "max"))


@pytest.mark.parametrize("how", ["last", "first", "mean", "min", "max"])
@pytest.mark.parametrize("nothing", [np.full(3, np.nan), np.zeros(0)], ids=["nan", "empty"])
def test_a_curve_or_a_picture_without_a_finite_number_gives_none(how, nothing):
    assert np.isnan(readings.reduced((np.arange(float(len(nothing))), nothing), how))
    assert np.isnan(readings.reduced(nothing.reshape(1, -1), how))


ODD = {
    "nan": lambda values: np.full_like(values, np.nan),
    "inf": lambda values: np.full_like(values, np.inf),
    "every other nan": lambda values: np.where(np.indices(values.shape).sum(0) % 2, values, np.nan),
    "tiny": lambda values: np.full_like(values, 1e-300),
    "empty": lambda values: values[:0],
}


SHORT = [("nan", "figure5"), ("every other nan", "figure6"), ("empty", "figure5")]
SHORT += [("empty", "figure6"), ("tiny", "figure6")]


@pytest.mark.parametrize(
    ("odd", "name"), pairs_long(ODD, ["figure5", "figure6"], short=lambda *pair: pair in SHORT)
)
def test_whatever_an_analysis_kept_is_shown_and_judged(make, monkeypatch, name, odd):
    def kept(seed):
        return {
            key: ODD[odd](np.asarray(array, float)) if "/" in key else array
            for key, array in arrays(seed).items()
        }

    monkeypatch.setattr(conftest, "arrays", kept)
    shown = make(name=name)
    for judged in claims.judge(shown.artifact, shown.values):
        assert "\n" not in judged.sentence()
    assert markdown.markdown(shown) and csv_lines(shown)
    figure.draw(shown).canvas.draw()
