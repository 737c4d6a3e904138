"""The error of a difference: what it is made of, and how often a verdict by it is wrong."""

import numpy as np
import pytest
from scipy.stats import binom

from dpexp.attacks.membership import attack
from dpexp.cli import verdicts
from dpexp.cli.verdicts import Setting
from dpexp.reporting.collect.values import Value
from dpexp.reporting.judge import claims, errors, sides
from dpexp.reporting.schema.artifact import Claim
from tests.marks import long, some_long


def drawn(seed=0, **changes):
    """Draw two methods' predictions: [S, n] of either side."""
    setting = {"seeds": 3, "examples": 400, "spread": 1.0, "points": 4.0}
    return verdicts.Draws(Setting(**{**setting, **changes}), seed)()


def part(side, of_examples):
    """Return the side with these of its examples alone."""
    right = tuple(each[:, of_examples] for each in side.right)
    values = np.mean([each.mean(axis=1) for each in right], axis=0)
    return errors.Side(values, right, tuple(each.shape[1] for each in right), side.tests)


def judged(above, below, margin=0.0):
    return claims.compare(("a", "x"), ("b", "x"), errors.estimate(above, below), margin).verdict


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("points", [0.0, 20.0])
def test_swapped_sides_swap_the_verdict(seeds, points):
    above, below = drawn(seeds=seeds, points=points, spread=0.5, examples=2000)
    there, back = errors.estimate(above, below), errors.estimate(below, above)
    assert there.difference == -back.difference
    assert there.half_width(0.025) == pytest.approx(back.half_width(0.025), rel=1e-12)
    swapped = {claims.HOLDS: claims.FAILS, claims.FAILS: claims.HOLDS}
    said = judged(above, below)
    assert judged(below, above) == swapped.get(said, said)
    assert (said == claims.HOLDS) == (points > 0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_more_examples_of_the_kind_narrow_the_interval(seeds):
    above, below = drawn(seeds=seeds)
    more = [part(side, np.tile(np.arange(400), 4)) for side in (above, below)]
    wide, narrow = errors.estimate(above, below), errors.estimate(*more)
    assert narrow.difference == pytest.approx(wide.difference)
    assert narrow.half_width(0.025) < wide.half_width(0.025)
    assert narrow.examples[0] == pytest.approx(wide.examples[0] / 4, rel=0.1)


def test_the_order_of_the_examples_is_of_no_account():
    above, below = drawn()
    order = np.random.default_rng(3).permutation(400)
    there = errors.estimate(above, below)
    other = errors.estimate(part(above, order), part(below, order))
    assert other.half_width(0.025) == pytest.approx(there.half_width(0.025), rel=1e-12)
    mixed = errors.estimate(above, part(below, order))  # other examples stand side by side
    assert mixed.half_width(0.025) > there.half_width(0.025)


@pytest.mark.parametrize("seeds", some_long([1, 2, 3], [2]))
def test_pairs_are_never_wider_than_the_same_unpaired(seeds):
    for seed in range(20):
        above, below = drawn(seed, seeds=seeds, own=0.3)
        means = [side.right[0].mean(axis=0) for side in (above, below)]
        assert np.corrcoef(*means)[0, 1] > 0
        paired = errors.estimate(above, below)
        apart = errors.estimate(
            above, errors.Side(below.values, below.right, below.sizes, frozenset({"y"}))
        )
        bare = [errors.Side(side.values, (), side.sizes) for side in (above, below)]
        assert (paired.kind, apart.kind) == (errors.PAIRED, errors.UNPAIRED)
        for level in (0.025, 0.001):
            widths = [each.half_width(level) for each in (paired, apart, errors.estimate(*bare))]
            assert widths[0] < widths[1] <= widths[2]


def test_one_seed_is_judged_by_the_examples_alone():
    right = [
        100.0 * np.array([[1] * 60 + [0] * 40]),
        100.0 * np.array([[0] * 20 + [1] * 60 + [0] * 20]),
    ]
    sides = [errors.Side(each.mean(axis=1), (each,), (100,), frozenset({"t"})) for each in right]
    found = errors.estimate(*sides)
    # 20 examples either way and four more, over 100.
    assert found.error == pytest.approx(np.sqrt(44) / 100 * 100)
    assert found.lacks_seeds and found.seeds == () and found.kind == errors.PAIRED
    bare = errors.estimate(*(errors.Side(side.values, (), (100,)) for side in sides))
    assert bare.error == pytest.approx(100 * np.sqrt(2 * (100 * 0.6 * 0.4 + 2)) / 100)


def test_seeds_and_examples_both_count_and_their_interaction_once():
    above, below = drawn(examples=5000, spread=0.0)
    found = errors.estimate(above, below)
    seeds, examples = sum(term[0] for term in found.seeds), found.examples[0]
    assert 0 < found.shared < examples
    expected = max(seeds + examples - found.shared, seeds, examples)
    assert found.error == pytest.approx(np.sqrt(expected))
    assert max(seeds, examples) <= found.error**2 < seeds + examples


def test_an_error_is_no_smaller_than_the_interaction_in_it():
    one = np.tile([0.0, 100.0], 50)
    right = np.stack([one, 100.0 - one])  # two seeds that agree on nothing, and are equally good
    found = errors.estimate(errors.Side(right.mean(axis=1), (right,), (100,)), errors.number(50.0))
    assert found.seeds == ((0.0, 1.0),) and found.shared == pytest.approx(
        100**2 / 4 / 99 / 2 * 100 / 50
    )
    assert found.error == pytest.approx(np.sqrt(found.shared))


def test_a_single_seed_beside_several_strays_as_they_do():
    several, one = errors.Side(np.array([1.0, 2.0, 3.0])), errors.Side(np.array([9.0]))
    found = errors.estimate(several, one)
    assert found.seeds == (pytest.approx((1 / 3 + 1, 2.0)),) and not found.lacks_seeds
    assert errors.estimate(one, several).seeds == found.seeds


def test_equal_predictions_and_equal_seeds_are_no_certainty():
    right = 100.0 * np.ones((2, 50))
    same = errors.Side(right.mean(axis=1), (right,), (50,), frozenset({"t"}))
    found = errors.estimate(same, same)
    assert found.difference == 0 and found.error == pytest.approx(100 * 2 / 50)
    assert judged(same, same, -1.0) == claims.UNCLEAR
    assert judged(same, same, -10.0) == claims.HOLDS
    alike = errors.Side(np.array([5.0, 5.0, 5.0]))
    assert errors.estimate(alike, errors.Side(np.array([4.0, 4.0]))).error is None
    assert judged(alike, errors.number(1.0)) == claims.UNCLEAR
    one, several = errors.Side(np.array([9.0])), errors.Side(np.array([1.0, 1.1, 1.2]))
    assert judged(one, errors.Side(np.array([1.0]))) == claims.UNCLEAR
    assert (judged(one, several), judged(several, one)) == (claims.HOLDS, claims.FAILS)


def test_a_mean_of_two_test_sets_has_the_error_of_each():
    above, below = drawn(seeds=2)
    twice = [errors.Side(side.values, side.right * 2, side.sizes * 2, frozenset({"a b"}))
             for side in (above, below)]  # fmt: skip
    one, two = errors.estimate(above, below), errors.estimate(*twice)
    assert two.examples[0] == pytest.approx(one.examples[0] / 2)
    assert two.num_examples == (800, 800) and two.shared == pytest.approx(one.shared / 2)


NULL = [Setting(1, examples=300), Setting(2, examples=300, spread=3.0),
        Setting(3, examples=300, spread=1.0), Setting(3, examples=300, spread=3.0, other=0.0),
        Setting(2, examples=300, spread=2.0, paired=False),
        Setting(1, examples=1000, spread=2.0, others=5),
        Setting(3, examples=1000, spread=2.0, others=1)]  # fmt: skip


@pytest.mark.parametrize("setting", some_long(NULL, NULL[1::2]), ids=str)
def test_without_a_difference_it_holds_at_most_one_time_in_forty(setting):
    assert verdicts.share(setting, 1000, seed=5) <= 0.025 + 3 * 0.005


@pytest.mark.parametrize(
    ("seeds", "spreads"),
    [
        ((3, 3), (10, 1)),
        ((2, 3), (10, 1)),
        long((2, 5), (3, 1)),
        long((2, 10), (1, 1)),
        long((10, 2), (1, 4)),
    ],
    ids=str,
)
def test_a_small_level_is_kept_whatever_the_seeds_and_their_spreads(seeds, spreads):
    """With Satterthwaite's degrees of freedom it is exceeded 2 to 18 times over."""
    random, level, draws = np.random.default_rng(0), 0.025 / 18, 8000
    wrong = 0
    for _ in range(draws):
        above, below = (
            errors.Side(random.normal(0, spread, count))
            for count, spread in zip(seeds, spreads, strict=True)
        )
        found = errors.estimate(above, below)
        wrong += found.difference < -found.half_width(level)
    expected = level * draws
    assert wrong <= expected + 3 * expected**0.5


@pytest.mark.parametrize("level", [0.025, 0.025 / 18])
@pytest.mark.parametrize("accuracy", [80.0, 98.0, 99.0])
@pytest.mark.parametrize("examples", [300, 2000])
def test_an_accuracy_near_100_against_a_number_keeps_its_level(examples, accuracy, level):
    """About its own middle 6 % instead of 2.5 would be put above what they are, or ten times 0.14.

    Exact: the chance of every number of correct predictions is known.
    """
    too_high = too_low = 0.0
    chances = binom.pmf(np.arange(examples + 1), examples, accuracy / 100)
    for correct, chance in enumerate(chances.tolist()):
        if chance > 1e-9:
            side = errors.Side(np.array([100 * correct / examples]), sizes=(examples,))
            found = errors.estimate(side, errors.number(accuracy))
            back = errors.estimate(errors.number(accuracy), side)
            assert back.high(level) == pytest.approx(-found.low(level), abs=1e-9)
            too_high += chance * (found.low(level) > 0)
            too_low += chance * (found.high(level) < 0)
    assert max(too_high, too_low) <= 1.2 * level


@pytest.mark.parametrize("seeds", some_long([2, 5, 10], [2]))
def test_more_seeds_make_the_error_of_the_attacked_examples_no_smaller(seeds):
    """Which texts are hard is the same for all seeds; the truth is chance."""
    random, wrong = np.random.default_rng(1), 0
    for _ in range(300):
        hard = random.normal(size=(2, 120))
        found = [attack(*random.permuted(hard + 0.2 * random.normal(size=(2, 120)), axis=1))
                 for _ in range(seeds)]  # fmt: skip
        results = tuple(
            {
                "attack_success": one.percent,
                "attack_success_se": one.standard_error,
                "attack_scored_on": one.scored_on,
            }
            for one in found
        )
        value = Value(
            ("rgp", "sst2"), "done", readings=tuple(one.percent for one in found), results=results
        )
        side = sides.side(Claim("chance", (50.0,), ("rgp",)), value, ["attack_success"])
        estimate = errors.estimate(errors.number(50.0), side)
        wrong += abs(estimate.difference) > estimate.half_width(0.025)
    assert estimate.kind == errors.ONE_SIDED and estimate.num_examples == (0, 120)
    assert wrong <= 300 * (0.05 + 3 * 0.0126)


def test_an_attack_that_is_always_right_is_no_certainty():
    result = {"attack_success": 100.0, "attack_success_se": 0.0, "attack_scored_on": 40}
    value = Value(("rgp", "sst2"), "done", readings=(100.0,), results=(result,))
    side = sides.side(Claim("chance", (50.0,), ("rgp",)), value, ["attack_success"])
    assert errors.estimate(side, errors.number(99.0)).error == pytest.approx(100 * 2**0.5 / 40)


@pytest.mark.parametrize(
    "setting", [Setting(1), Setting(4, spread=0.3), Setting(5, spread=0.5)], ids=str
)
def test_two_points_on_ten_thousand_examples_are_found(setting):
    setting = verdicts.replace(setting, examples=10_000, points=2.0)
    assert verdicts.share(setting, 60, seed=5) >= 0.9


@pytest.mark.long
def test_the_script_tells_every_setting(capsys):
    assert verdicts.main(["draws=1", "others=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(map(len, (verdicts.NULLS, verdicts.FOUND, verdicts.UNPAIRED)))
