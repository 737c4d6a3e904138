"""Claims: what they may say, what their verdicts rest on, and that each can hold and can fail."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from dpexp import cli
from dpexp.records.predictions import PREDICTIONS, packed
from dpexp.reporting import collect
from dpexp.reporting.judge import claims, errors
from dpexp.reporting.schema import spec
from dpexp.reporting.schema.artifact import CURVES, MAPS
from dpexp.types import ConfigError
from tests.marks import long, some_long
from tests.reporting.shown import edit

CLAIM = '{says: "Better above Plain", above: [better], below: [plain]}'
ALIKE = '{says: "Alike", of: [[better, plain]], within: 20}'


def published(task):
    """Return a task's settings in conf."""
    return yaml.safe_load((cli.CONF / "task" / f"{task}.yaml").read_text())


def estimate(difference, error, freedom=1e9):
    return errors.Estimate(
        difference, errors.PAIRED, (), (error**2, freedom), 0.0, (1, 1), (100, 100)
    )


@pytest.mark.parametrize(
    ("difference", "margin", "number", "verdict"),
    [
        (2.0, 0.0, 1, claims.HOLDS),
        (1.9, 0.0, 1, claims.UNCLEAR),
        (-2.0, 0.0, 1, claims.FAILS),
        (-2.0, 0.0, 2, claims.UNCLEAR),  # one of two, at half the level
        (-2.3, 0.0, 2, claims.FAILS),
        (2.0, 0.0, 50, claims.HOLDS),  # that all hold needs no correction
        (-0.5, -2.5, 1, claims.HOLDS),
        (-0.6, -2.5, 1, claims.UNCLEAR),
        (-4.5, -2.5, 1, claims.FAILS),
        (11.0, 10.0, 1, claims.UNCLEAR),
    ],
)
def test_a_comparison_is_judged_by_the_bounds(difference, margin, number, verdict):
    found = estimate(difference, 1.0)
    assert claims.compare(("a", "x"), 5.0, found, margin, number).verdict == verdict


@pytest.mark.parametrize("margin", [3.0, 0.0])
def test_no_printed_interval_contradicts_its_verdict(margin):
    found = estimate(margin + 2.0, 1.0)
    comparison = claims.compare(("a", "x"), 5.0, found, margin)
    assert comparison.verdict == claims.HOLDS and margin < comparison.low < margin + 0.05
    assert f"({margin:+.1f} to " in comparison.words(1)  # it is above, by less than is shown
    other = claims.compare(("a", "x"), 5.0, estimate(margin + 1.95, 1.0), margin)
    assert other.verdict == claims.UNCLEAR and other.low < margin
    assert f"({margin - 0.1:+.1f} to " in other.words(1)


def test_what_is_not_there_is_not_run():
    assert claims.compare(("a", "x"), 5.0, None, 0.0).verdict == claims.NOT_RUN


def keep(made, right):
    """Let each run have predictions of its accuracy, drawn by `right` from its run's number."""
    for number, value in enumerate(made.values.values()):
        for directory, result in zip(value.directories, value.results, strict=True):
            arrays = packed(result.get("run", ""), {"test_accuracy": right(number, result)})
            np.savez(directory / PREDICTIONS, **arrays)


def first_right(number, result):
    return np.arange(100) < result["test_accuracy"]


def fingerprint(value, name):
    for result in value.results:
        result["data_fingerprint"] = name


def test_runs_that_kept_predictions_of_the_same_data_are_paired(make):
    made = make(name="table9")
    keep(made, first_right)
    for value in made.values.values():
        fingerprint(value, "data")
    (found,) = claims.judge(made.artifact, made.values)
    assert found.sentence() == (
        "**unclear**: it holds in 0 of 2 comparisons; smallest difference +15.0 (-4.6 to +52.1), "
        "paired on 100 examples, 2 and 2 seeds"
    )
    fingerprint(made.values["plain", "eps2"], "other data")
    (found,) = claims.judge(made.artifact, made.values)
    kinds = [comparison.estimate.kind for comparison in found.comparisons]
    assert kinds == [errors.UNPAIRED, errors.PAIRED]
    assert ", unpaired on 100 and 100 examples, 2 and 2 seeds" in found.sentence()
    fingerprint(made.values["plain", "eps2"], "data")
    made.values["plain", "eps2"].results[1]["data_fingerprint"] = "other data"  # of one seed
    (found,) = claims.judge(made.artifact, made.values)
    assert found.comparisons[0].estimate.kind in (errors.UNPAIRED, errors.SEEDS)


def test_runs_that_trained_on_other_data_are_paired_if_their_tests_are_the_same(make):
    made = make(name="table9")
    keep(made, first_right)
    for number, value in enumerate(made.values.values()):
        fingerprint(value, f"with public examples {number}")
        for result in value.results:
            result["test_fingerprint"] = "tests"
    (found,) = claims.judge(made.artifact, made.values)
    assert [one.estimate.kind for one in found.comparisons] == [errors.PAIRED] * 2
    for result in made.values["plain", "eps2"].results:
        result["test_fingerprint"] = "other tests"
    (found,) = claims.judge(made.artifact, made.values)
    assert [one.estimate.kind for one in found.comparisons] == [errors.UNPAIRED, errors.PAIRED]
    for value in made.values.values():
        for seed, result in enumerate(value.results):
            result |= {"test_fingerprint": "tests", "data_fingerprint": f"seed {seed}"}
    (found,) = claims.judge(made.artifact, made.values)
    assert [one.estimate.kind for one in found.comparisons] == [errors.PAIRED] * 2


def test_accuracies_on_held_out_examples_are_paired_by_these_examples(make):
    made = make(name="table9")
    (claim,) = made.artifact.claims
    artifact = replace(made.artifact, claims=(replace(claim, metric="holdout_accuracy"),))
    for number, value in enumerate(made.values.values()):
        fingerprint(value, f"with public examples {number}")
        for directory, result in zip(value.directories, value.results, strict=True):
            right = np.arange(400) < 4 * round(result["test_accuracy"])
            arrays = packed(result.get("run", ""), {"holdout_accuracy": right})
            np.savez(directory / PREDICTIONS, **arrays)
            result |= {"holdout_accuracy": 100 * right.mean(), "holdout_fingerprint": "held out"}
            result["test_fingerprint"] = f"tests {number}"
    (found,) = claims.judge(artifact, made.values)
    assert [one.estimate.kind for one in found.comparisons] == [errors.PAIRED] * 2
    assert "paired on 400 examples" in found.sentence()
    for value in made.values.values():  # equal tests say nothing of what is held out
        for result in value.results:
            result["test_fingerprint"] = "tests"
    for result in made.values["plain", "eps2"].results:
        result["holdout_fingerprint"] = "others held out"
    (found,) = claims.judge(artifact, made.values)
    assert [one.estimate.kind for one in found.comparisons] == [errors.UNPAIRED, errors.PAIRED]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda number, result: np.arange(100) < result["test_accuracy"] - 1,  # of another moment
        lambda number, result: np.arange(100 + 100 * (number % 2)) < result["test_accuracy"],
    ],
)
def test_predictions_that_do_not_give_the_number_are_not_taken(make, spoil):
    made = make(name="table9")
    keep(made, spoil)
    (found,) = claims.judge(made.artifact, made.values)
    assert errors.PAIRED not in [comparison.estimate.kind for comparison in found.comparisons]


def test_accuracies_without_predictions_have_the_size_of_their_test_set(make):
    made = make(name="table9")
    for value in made.values.values():
        for config in value.configs:
            config["task"]["test_size"] = 872
    (found,) = claims.judge(made.artifact, made.values)
    assert found.sentence().endswith(", unpaired on 872 and 872 examples, 2 and 2 seeds")
    for value in made.values.values():
        for config in value.configs:
            config["task"] = published("sst2")
    (again,) = claims.judge(made.artifact, made.values)
    assert again.sentence() == found.sentence()


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 10_000),
        ({"method": {"public": "test-half"}}, 5_000),
        ({"method": {"public": "task"}}, 10_000),
        ({"public": {"of_task": "cifar10", "size": 2_000}}, 8_000),
        ({"public": {"of_task": "mnist", "size": 2_000}}, 10_000),
        ({"task": {"name": "cifar10", "test_size": 7}, "method": {"public": "test-half"}}, 4),
        (
            {
                "public": {"of_task": "cifar10", "size": 2_001},
                "method": {"public": "test-half"},
            },
            4_000,
        ),
        ({"task": published("cifar10") | {"dataset_size": 49_000}}, None),
        ({"task": {"name": "a user's"}}, None),
    ],
    ids=str,
)
def test_what_others_had_of_a_test_set_is_not_counted(make, changes, size):
    made = make(name="table9")
    for value in made.values.values():
        for config in value.configs:
            config |= {"task": published("cifar10"), "method": {}, "public": {}} | changes
    (found,) = claims.judge(made.artifact, made.values)
    counts = {comparison.estimate.num_examples for comparison in found.comparisons}
    assert counts == {(size or 0, size or 0)}


def test_predictions_of_more_examples_than_the_test_set_has_are_not_taken(make):
    made = make(name="table9")
    keep(made, lambda number, result: np.tile(first_right(number, result), 4))
    for value in made.values.values():
        fingerprint(value, "data")
    (found,) = claims.judge(made.artifact, made.values)
    assert {comparison.estimate.kind for comparison in found.comparisons} == {errors.PAIRED}
    for value in made.values.values():
        for config in value.configs:
            config["task"]["test_size"] = 100
    (found,) = claims.judge(made.artifact, made.values)
    assert {comparison.estimate.kind for comparison in found.comparisons} == {errors.UNPAIRED}


def test_a_single_seed_says_so_and_without_an_error_nothing_is_clear(make):
    made = make("paper", name="table9")
    (bare,) = claims.judge(made.artifact, made.values)
    assert bare.sentence() == (
        "**unclear**: it holds in 0 of 2 comparisons; smallest difference +15.0, 1 and 1 seeds, "
        "no error is known: a single seed"
    )
    keep(made, first_right)
    (found,) = claims.judge(made.artifact, made.values)
    assert found.verdict == claims.HOLDS
    assert found.sentence().endswith("1 and 1 seeds, the spread of seeds is unknown")


def test_alike_is_tested_from_both_sides(make, conf):
    edit(conf, "table9", (CLAIM, ALIKE))
    made = make(name="table9")
    (found,) = claims.judge(made.artifact, made.values)
    assert [c.difference for c in found.comparisons] == [15, 15, -15, -15]
    assert found.verdict == claims.UNCLEAR  # 15 and its error reach beyond 20
    assert ", which has to exceed -20, by 2 and 2 seeds alone" in found.sentence()
    edit(conf, "table9", ("within: 20", "within: 60"))
    made = make(name="table9")
    assert claims.judge(made.artifact, made.values)[0].verdict == claims.HOLDS
    edit(conf, "table9", ("within: 60", "within: 1"))
    made = make(name="table9")
    close = {
        cell: replace(value, readings=(value.mean, value.mean + 0.1)) if value.readings else value
        for cell, value in made.values.items()
    }
    (found,) = claims.judge(made.artifact, close)
    assert found.verdict == claims.FAILS
    assert [c.verdict for c in found.comparisons] == [claims.HOLDS] * 2 + [claims.FAILS] * 2


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ('{says: "A", of: [[better, plain]]}', "Claim 'A': expected 'of' and 'within' together."),
        ('{says: "A", within: 2}', "Claim 'A': expected 'of' and 'within' together."),
        ('{says: "A", of: [[better, plain]], within: 0}', "expected a number above 0 as 'within'"),
        ('{says: "A", of: [[better, plain]], within: .nan}', "expected a number above 0 as 'wi"),
        ('{says: "A", of: [better, plain], within: 2}', "expected pairs under 'of'; got ['better"),
        ('{says: "A", of: [[better]], within: 2}', "expected pairs under 'of'; got [['better']]"),
        ('{says: "A", of: [], within: 2}', "Expected a list under 'of'; got []"),
        ('{says: "A", of: [[better, plian]], within: 2}', "Unknown row 'plian'"),
        ('{says: "A", of: [[1, 2]], within: 2}', "expected a key on one side of 1"),
        ('{says: "A", of: [[better, plain]], within: 2, margin: 1}', "expected no 'margin' beside"),
        ('{says: "A", above: [better]}', "Expected a list under 'below'; got None"),
        ('{says: "A", above: [better], below: [plain], margin: a}', "expected a number as margin"),
    ],
)
def test_a_claim_that_says_something_else_is_a_mistake_in_one_line(conf, new, expected):
    edit(conf, "table9", (CLAIM, new))
    with pytest.raises(ConfigError) as error:
        spec.load(conf, "demo", "table9")
    assert expected in str(error.value) and "\n" not in str(error.value)


# Every claim of every artifact, on tables made up so that it holds and so that it fails.

CLAIMS = [
    (path.parent.name, path.stem, number)
    for path in sorted((cli.CONF / "artifact").glob("*/*.yaml"))
    for number in range(len(spec.load(cli.CONF, path.parent.name, path.stem).claims))
]

LARGEST = {  # what a number can be at most; of stable ranks the smaller side of a matrix
    ("embedded", "resnet-head"): 10, ("quick", "resnet-head"): 10, ("paper", "resnet-head"): 10,
    ("embedded", "resnet-block"): 16, ("quick", "resnet-block"): 32, ("paper", "resnet-block"): 64,
    ("embedded", "bert-fc"): 64, ("quick", "bert-fc"): 384, ("paper", "bert-fc"): 768,
    ("embedded", "bert-attention"): 64, ("quick", "bert-attention"): 384,
    ("paper", "bert-attention"): 768,
}  # fmt: skip
BOUNDED = {"test_accuracy": (0, 100), "attack_success": (0, 100), "intensity_": (0, 100),
           "projection/": (0, 1), "gradient_rank/": (1, 300),
           "stable_rank/": (1, None)}  # fmt: skip


def numbered(artifact):
    """Return the columns that hold numbers, a table's average among them."""
    return [*artifact.measured_columns, *filter(None, [artifact.average])]


def limits(artifact, claim, cell, profile):
    """Return the least and the largest that a cell's number can be."""
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in numbered(artifact)}
    row, column = cell
    name = claim.metric or artifact.metric_of(rows[row], columns[column])[0]
    known = [bounds for start, bounds in BOUNDED.items() if name.startswith(start)]
    low, high = known[0] if known else (0, 1000)
    return low, LARGEST[profile, column] if high is None else high


def shown(artifact, claim, numbers):
    """Return a table's values: three seeds about each cell's number, as the kind of cell has it."""
    values = {}
    for row in artifact.rows:
        for column in numbered(artifact):
            cell = (row.key, column.key)
            seeds = (
                [numbers[cell] * (1 + 1e-6 * seed) for seed in range(3)] if cell in numbers else []
            )
            reading = {
                CURVES: lambda y: (np.arange(3.0), np.full(3, y)),
                MAPS: lambda y: np.full((2, 2), y),
            }.get(artifact.kind, float)
            results = tuple({claim.metric: y} for y in seeds)
            values[cell] = collect.Value(
                cell, "done" if seeds else "not run", num_seeds=len(seeds),
                readings=tuple(map(reading, seeds)), results=results,
            )  # fmt: skip
    return values


def orders(pairs):
    """Return each cell's place so that every `above` has a higher one than its `below`."""
    cells = list(dict.fromkeys(side for pair in pairs for side in pair if isinstance(side, tuple)))
    place = dict.fromkeys(cells, 0)
    for _ in cells:
        for above, below in pairs:
            if isinstance(above, tuple) and isinstance(below, tuple):
                place[above] = max(place[above], place[below] + 1)
    return place


def verdict_of(artifact, number, numbers):
    claim = artifact.claims[number]
    values = shown(artifact, claim, numbers)
    return claims.judge(artifact, values)[number]


@pytest.mark.parametrize("profile", some_long(["embedded", "quick", "paper"], ["embedded"]))
@pytest.mark.parametrize(
    ("paper", "name", "number"),
    [long(*claim) if place % 3 else claim for place, claim in enumerate(CLAIMS)],
)
def test_every_claim_can_hold_and_can_fail(paper, name, number, profile):
    artifact = spec.load(cli.CONF, paper, name)
    claim = artifact.claims[number]
    pairs = claim.pairs(column.key for column in artifact.measured_columns)
    place = orders(pairs) if not claim.of else {cell: 1 for pair in pairs for cell in pair}
    most = max(place.values())
    bounds = {cell: limits(artifact, claim, cell, profile) for cell in place}
    edge = 0.001  # of the range, which is left free at either end

    def at(cell, share):
        low, high = bounds[cell]
        return low + (high - low) * (edge + (1 - 2 * edge) * share)

    def beside(side, bound):  # a number to exceed: the cell goes to its far or near end
        return {side: at(side, bound)}

    holding, failing = {c: at(c, p / max(1, most)) for c, p in place.items()}, []
    for above, below in pairs:
        if isinstance(above, float):
            holding |= beside(below, 0.0)
            failing.append(beside(below, 1.0))
        elif isinstance(below, float):
            holding |= beside(above, 1.0)
            failing.append(beside(above, 0.0))
        else:
            failing.append(beside(above, 0.0) | beside(below, 1.0))
    assert verdict_of(artifact, number, holding).word == claims.HOLDS
    for each in failing:  # whichever of its comparisons it is that fails
        assert verdict_of(artifact, number, holding | each).word == claims.FAILS


def test_a_look_on_the_way_is_corrected_for_the_comparisons_that_are_still_to_come():
    """Else a claim could be refuted at the full level once for every cell that is added."""
    artifact = spec.load(cli.CONF, "rgp", "table3")
    claim = artifact.claims[0]
    pairs = claim.pairs(column.key for column in artifact.measured_columns)
    assert len(pairs) > 2
    values, numbers = shown(artifact, claim, {}), dict(zip(pairs[0], (40.0, 45.0), strict=True))
    for cell, number in numbers.items():
        readings = tuple(number + seed for seed in range(3))
        results = tuple({claim.metric: each} for each in readings)
        done = {"status": "done", "num_seeds": 3, "readings": readings, "results": results}
        values[cell] = replace(values[cell], **done)

    def upper_bound(of):
        judged = {(c.above, c.below): c for c in claims.judge(artifact, of)[0].comparisons}
        return judged[pairs[0]].estimate, judged[pairs[0]].high

    begun = dict(values)
    for cell in {side for pair in pairs for side in pair} - numbers.keys():
        one = {"status": "done", "num_seeds": 1, "readings": (40.0,)}
        begun[cell] = replace(begun[cell], **one, results=({claim.metric: 40.0},))
    skipped = {
        cell: value if cell in numbers else replace(value, status=collect.values.SKIPPED)
        for cell, value in values.items()
    }
    for of, count in ((values, len(pairs)), (begun, len(pairs)), (skipped, 1)):
        found, high = upper_bound(of)
        assert high == found.high(claims.LEVEL / count)
