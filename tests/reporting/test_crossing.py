"""Predicted crossings: known laws give known crossings, and a page says what was measured."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpexp.linalg import reparametrized_update
from dpexp.reporting.collect.values import DONE, Value
from dpexp.reporting.judge.crossing import aligned, passes, power_law, predict
from dpexp.reporting.render import crossings as rendered
from dpexp.reporting.schema.artifact import Artifact, Axes, Column, Profile, Row
from dpexp.reporting.schema.crossing import Crossing
from dpexp.reporting.schema.validate import validate
from dpexp.types import ConfigError

SIZES = (0.1, 1.0, 4.0, 16.0)
PANELS = ("kept", "noise", "seen")
CROSSING = Crossing("Low rank passes", "low", "all", *PANELS, until=1.0)
LAWS = {
    "low": (lambda x: 0.5 * x**-0.05, lambda x: 0.3 * x**0.1),
    "all": (lambda x: 1.0, lambda x: x**0.5),
}


def cell(key, readings, seeds=None):
    mean, configs = sum(readings) / len(readings), [{"seed": each} for each in seeds or range(9)]
    return Value(
        key, DONE, mean=mean, num_seeds=len(readings), readings=tuple(readings),
        configs=tuple(configs[: len(readings)]),
    )  # fmt: skip


def figure_of(laws=LAWS, spread=(1.0,), sizes=SIZES, measured=SIZES):
    """A figure whose cells follow two laws a row; `spread` multiplies the noise of each seed."""
    columns = [
        Column(f"{panel}-{x}", (panel, f"size = {x}"), panel=panel, x=x)
        for panel in PANELS
        for x in sizes
    ]
    artifact = Artifact(
        "dpexp", "figure1", "t", "p", ("Method",),
        tuple(Row(key, (key,)) for key in laws), tuple(columns),
        {"paper": Profile(seeds=(0,))}, ("test_accuracy",), crossings=(CROSSING,),
        figure=Axes("size", x_name="size", log_x=True),
    )  # fmt: skip
    values = {}
    for row, (kept, noise) in laws.items():
        for x in measured:
            noises = [factor * noise(x) for factor in spread]
            values[row, f"kept-{x}"] = cell((row, f"kept-{x}"), [kept(x)] * len(spread))
            values[row, f"noise-{x}"] = cell((row, f"noise-{x}"), noises)
            seen = [aligned(kept(x), each) for each in noises]
            values[row, f"seen-{x}"] = cell((row, f"seen-{x}"), seen)
    return artifact, values


def literal_crossing(factor=1.0):
    """The laws' crossing by bisection of the squared cosines, without the project's functions."""
    low, high = 0.1, 1e3
    for _ in range(200):
        x = math.sqrt(low * high)
        ahead = 0.25 * x**-0.1 / (1 + (0.3 * factor) ** 2 * x**0.2) - 1 / (1 + factor**2 * x)
        low, high = (low, x) if ahead > 0 else (x, high)
    return low


def test_known_laws_cross_where_they_do():
    artifact, values = figure_of()
    found = predict(CROSSING, artifact, values)
    assert found.at == pytest.approx(literal_crossing(), rel=1e-6)
    assert found.seen == (4.0, 16.0)
    assert 4.0 < found.at < 16.0
    for point in found.points:
        assert point.predicted == pytest.approx(point.measured, rel=1e-9)
    assert [point.is_fitted for point in found.points] == [True, True, False, False]


def test_only_points_up_to_until_are_fitted():
    artifact, values = figure_of()
    values["low", "kept-16.0"] = cell(("low", "kept-16.0"), [0.001])
    found = predict(CROSSING, artifact, values)
    assert found.at == pytest.approx(literal_crossing(), rel=1e-6)


def test_each_seed_has_its_own_crossing():
    spread = (0.8, 1.0, 1.2)
    found = predict(CROSSING, *figure_of(spread=spread))
    assert found.by_seed == pytest.approx([literal_crossing(each) for each in spread], rel=1e-6)
    assert predict(CROSSING, *figure_of()).by_seed == ()


def test_seeds_are_told_apart_by_their_number_not_by_their_place():
    """One run failed: the cell's first reading is of the second seed."""
    spread = (0.8, 1.0, 1.2)
    artifact, values = figure_of(spread=spread)
    noise = LAWS["low"][1](1.0)
    values["low", "noise-1.0"] = cell(("low", "noise-1.0"), [noise, 1.2 * noise], seeds=[1, 2])
    found = predict(CROSSING, artifact, values)
    assert found.by_seed == pytest.approx([literal_crossing(each) for each in spread[1:]], rel=1e-6)
    few = predict(CROSSING, *figure_of(spread=spread, measured=(1.0, 4.0)))
    assert math.isnan(few.at) and few.by_seed == () and few.fitted == ()


@pytest.mark.parametrize("odd", [-0.1, 0.0, math.nan])
def test_a_seed_that_cannot_be_fitted_is_listed(odd):
    """A mean above 0 may hold a number that is not."""
    artifact, values = figure_of(spread=(1.0, 1.0, 1.0))
    kept = cell(("low", "kept-1.0"), [0.6, 0.9, 0.0])
    values["low", "kept-1.0"] = replace(kept, readings=(0.6, 0.9, odd))
    found = predict(CROSSING, artifact, values)
    assert found.left_out == () and len(found.by_seed) == 3
    assert found.by_seed[2] == math.inf
    assert ", none)" in said(artifact, values)


def test_a_cell_with_a_diverged_seed_is_neither_fitted_nor_measured():
    artifact, values = figure_of(spread=(1.0, 1.0))
    for panel in ("kept", "seen"):
        values["low", f"{panel}-1.0"] = replace(values["low", f"{panel}-1.0"], diverged=1)
    found = predict(CROSSING, artifact, values)
    assert found.left_out == (1.0,)
    assert [point.measured[0] for point in found.points if point.x == 1.0] == [None]


def test_all_four_numbers_are_fitted_at_the_same_sizes_and_what_is_left_out_is_said():
    sizes = (0.1, 0.5, 1.0, 4.0)
    for broken in (0.0, -0.1, math.nan, None):
        artifact, values = figure_of(sizes=sizes, measured=sizes)
        if broken is None:
            del values["low", "kept-0.5"]
        else:
            values["low", "kept-0.5"] = cell(("low", "kept-0.5"), [broken])
        # A number that would bend the other row's law, if it were fitted there.
        values["all", "noise-0.5"] = cell(("all", "noise-0.5"), [30.0])
        found = predict(CROSSING, artifact, values)
        assert found.at == pytest.approx(literal_crossing(), rel=1e-6)
        assert found.fitted == (0.1, 1.0) and found.left_out == (0.5,)
        assert "size = 0.1 and 1 (not 0.5, where" in said(artifact, values)


def said(artifact, values):
    shown = SimpleNamespace(artifact=artifact, values=values, changes=artifact.profiles["paper"])
    return rendered.crossings(shown)[0][0]


def test_a_sentence_claims_no_more_than_was_looked_at():
    first, second = LAWS["low"], (lambda x: 0.1, lambda x: x**0.1)
    ahead = said(*figure_of({"low": first, "all": second}))
    assert "size = 0.1 and 1: from the smallest on. Measured, single seeds: from" in ahead
    behind = said(*figure_of({"low": second, "all": first}))
    assert "size = 0.1 and 1: from no size on. Measured, single seeds: not up to" in behind
    # Ahead between two sizes alone, which is not from any size on.
    humped = {"low": (lambda x: 0.5, lambda x: x), "all": (lambda x: 0.36, lambda x: 0.6 * x**0.9)}
    assert predict(CROSSING, *figure_of(humped)).at == math.inf
    assert predict(CROSSING, *figure_of(humped)).points[0].predicted[0] > 0.36
    artifact, values = figure_of(sizes=(0.1, 1.0, 2.0), measured=(0.1, 1.0, 2.0))
    assert "on, beyond the largest, 2. Measured" in said(artifact, values)
    # Another panel's sizes are not the cosines'.
    wide = Column("other", ("other", "size = 500"), panel="other", x=500.0)
    artifact = replace(artifact, columns=(*artifact.columns, wide))
    assert "on, beyond the largest, 2. Measured" in said(artifact, values)


def test_a_line_that_is_always_or_never_ahead_and_too_few_points():
    first, second = LAWS["low"], (lambda x: 0.1, lambda x: x**0.1)
    assert predict(CROSSING, *figure_of({"low": first, "all": second})).at == 0
    never = predict(CROSSING, *figure_of({"low": second, "all": first}))
    assert never.at == math.inf
    assert never.seen == (16.0, math.inf)
    few = predict(CROSSING, *figure_of(measured=(1.0, 4.0)))
    assert math.isnan(few.at)
    assert few.seen == (4.0, math.inf)
    assert predict(CROSSING, *figure_of(measured=())).seen is None


def test_a_run_that_diverged_is_left_out_of_the_fit():
    artifact, values = figure_of(sizes=(0.1, 0.5, 1.0, 4.0), measured=(0.1, 0.5, 1.0, 4.0))
    values["low", "noise-0.5"] = cell(("low", "noise-0.5"), [math.nan])
    found = predict(CROSSING, artifact, values)
    assert found.at == pytest.approx(literal_crossing(), rel=1e-6)


def test_a_power_law_is_recovered_and_a_cosine_is_that_of_right_angles():
    law = power_law([0.1, 1.0, 7.0], [3 * x**0.4 for x in (0.1, 1.0, 7.0)])
    assert law(50.0) == pytest.approx(3 * 50**0.4)
    assert aligned(0.6, 0.0) == 0.6
    assert aligned(1.0, 1.0) == pytest.approx(math.cos(math.pi / 4))


@pytest.mark.parametrize(("share", "factor"), [(1.0, math.sqrt(2)), (0.0, 1.0)])
def test_of_two_carriers_the_prediction_is_too_high_by_root_two_at_most(share, factor):
    """Where all of the gradient is in the part that both hold, and where none is."""
    gen = torch.Generator().manual_seed(0)
    p, d, r = 60, 80, 4
    left, right = (
        torch.linalg.qr(torch.randn(size, r, generator=gen, dtype=torch.float64))[0]
        for size in (p, d)
    )
    right, core = right.T, torch.randn(r, r, generator=gen, dtype=torch.float64)
    outside = torch.randn(p, r, generator=gen, dtype=torch.float64)
    outside -= left @ (left.T @ outside)
    g = share * left @ core @ right + (1 - share) * outside @ right
    noise = 20 * float(g.norm())
    released = g @ right.T, left.T @ g
    signal = math.hypot(*(float(each.norm()) for each in released))
    std = noise / math.sqrt(r * (p + d))
    cosines = []
    for _ in range(400):
        noisy = (x + std * torch.randn(x.shape, generator=gen, dtype=x.dtype) for x in released)
        step = reparametrized_update(left, right, *noisy)
        cosines.append(float((step * g).sum() / step.norm() / g.norm()))
    predicted = aligned(1.0, noise / signal)
    assert predicted / (sum(cosines) / len(cosines)) == pytest.approx(factor, rel=0.15)


def test_the_last_of_several_crossings_counts():
    wave = passes(lambda x: math.sin(2 * math.log(x)), lambda _: 0.0, 1.0, math.exp(3.5))
    assert wave == pytest.approx(math.exp(math.pi), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"above": "lwo"}, "did you mean 'low'"),
        ({"above": "all"}, "two rows"),
        ({"kept": "kpet"}, "did you mean 'kept'"),
        ({"until": 0.5}, "at least two points"),
        ({"until": math.nan}, "at least two points"),
        ({"noise": "kept"}, "three panels"),
    ],
)
def test_a_crossing_of_what_is_not_there_is_refused(change, said):
    artifact, _ = figure_of()
    with pytest.raises(ConfigError, match=said):
        validate(replace(artifact, crossings=(replace(CROSSING, **change),)))


def test_points_that_not_all_panels_have_are_none_to_predict_from():
    artifact, _ = figure_of()
    columns = [
        replace(column, x=0.2) if (column.panel, column.x) == ("noise", 0.1) else column
        for column in artifact.columns
    ]
    with pytest.raises(ConfigError, match="at least two points .* that all panels"):
        validate(replace(artifact, columns=tuple(columns)))


def test_a_page_says_what_was_predicted_from_what_and_what_was_measured():
    artifact, values = figure_of(spread=(0.8, 1.2))
    shown = SimpleNamespace(artifact=artifact, values=values, changes=artifact.profiles["paper"])
    (sentence, (head, *lines)), *_ = rendered.crossings(shown)
    at = predict(CROSSING, artifact, values).at
    assert sentence.startswith(
        f"Low rank passes: predicted from size = 0.1 and 1: from size = {at:.2g} on (by seed: "
    )
    assert sentence.endswith("Measured, means of 2 seeds: between 4 and 16.")
    assert head == ["size", "low, predicted", "low, measured", "all, predicted", "all, measured"]
    assert [line[0] for line in lines] == ["0.1 (fitted)", "1 (fitted)", "4", "16"]
