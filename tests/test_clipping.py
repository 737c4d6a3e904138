"""Clipping rules: what each does to a gradient, and that none lets an example exceed C."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import dpexp
from dpexp import cli
from dpexp.cli.verify import verify
from dpexp.grad_sample.linear import LinearGrads
from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.privacy.clipping import Flat, Normalize, PerLayer, bounds_of, groups_of, require_groups
from dpexp.privacy.privatize import ClippedSum
from dpexp.training.probing import check_rule
from dpexp.training.train import first_look
from dpexp.types import GROUP, ConfigError, Key, Release
from tests.marks import long
from tests.runs import one_thread, with_words  # noqa: F401 (a fixture)

C = 0.7
KEYS = [Key("gradient", name) for name in ("a.weight", "a.bias", "b.weight", "c.d.weight")]
SHAPES = [(3, 4), (3,), (5,), (2, 2)]
RULES = {"flat": Flat(), "normalize": Normalize(0.01), "per_layer": PerLayer()}


def sums_of(rule, blocks, micro_batch=4, dtype=torch.float32, releases=None):
    """Clip and sum blocks [n, ...], some examples at a time."""
    shapes = dict(zip(KEYS, SHAPES, strict=True))
    releases = releases or (Release("gradient", 24, C),)
    total = ClippedSum(shapes, releases, torch.empty(0, dtype=dtype), clipping=rule)
    for begin in range(0, len(blocks[0]), micro_batch):
        some = [block[begin : begin + micro_batch] for block in blocks]
        total.take({key: MaterializedGrads(one) for key, one in zip(KEYS, some, strict=True)})
        total.close_micro_batch(len(some[0]))
    return total


def draw(count, seed, scales):
    gen = torch.Generator().manual_seed(seed)
    return [
        scale * torch.randn(count, *shape, generator=gen)
        for scale, shape in zip(scales, SHAPES, strict=True)
    ]


def literal(rule, blocks):
    """The papers' formulas, an example at a time in float64."""
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    for example in zip(*(block.double() for block in blocks), strict=True):
        if rule == "per_layer":
            layers = [example[:2], example[2:3], example[3:]]
        else:
            layers = [example]
        weights = []
        for layer in layers:
            norm = math.sqrt(sum(float(part.square().sum()) for part in layer))
            bound = C / math.sqrt(len(layers))
            weight = C / (norm + 0.01) if rule == "normalize" else min(1, bound / norm)
            weights += [weight] * len(layer)
        for sum_, weight, part in zip(total, weights, example, strict=True):
            sum_ += weight * part
    return total


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scales", [(1, 1, 1, 1), (1e-3, 10, 1, 1e-6), (0.01, 0.01, 0.01, 0.01)])
def test_a_rule_is_its_papers_formula(rule, scales):
    blocks = draw(9, 0, scales)
    found = sums_of(RULES[rule], blocks).sums
    for key, expected in zip(KEYS, literal(rule, blocks), strict=True):
        # Weights leave room for rounding: a thousandth of the clip norm.
        torch.testing.assert_close(found[key].double(), expected, rtol=3e-3, atol=3e-3 * C)


@pytest.mark.parametrize("rule", RULES)
def test_a_search_finds_no_example_that_moves_the_sum_by_more_than_c(rule):
    """Hill climbing over one example's scales, beside others and alone."""
    gen = torch.Generator().manual_seed(1)
    worst = 0.0
    for start in range(6):
        logs = 6 * torch.randn(4, generator=gen)
        reached = 0.0
        for _ in range(40):
            tried = logs + torch.randn(4, generator=gen)
            blocks = draw(1, start, (10.0**tried).tolist())
            others = draw(5, 100 + start, (1, 1, 1, 1))
            both = [torch.cat(pair) for pair in zip(others, blocks, strict=True)]
            less, more = (sums_of(RULES[rule], some).sums for some in (others, both))
            moved = sum(float((more[k].double() - less[k].double()).square().sum()) for k in KEYS)
            if math.sqrt(moved) >= reached:
                logs, reached = tried, math.sqrt(moved)
        worst = max(worst, reached)
    assert 0.5 * C < worst <= C * (1 + 1e-7)


def test_a_group_of_parameters_is_clipped_by_itself_whatever_its_name():
    """GEP's embeddings are of groups, named after a stage or a layer."""
    keys = [Key("embedding", name, GROUP) for name in ("stem:8", "stage.0:8", "stage.1:8")]
    keys += [Key("residual", name) for name in ("stage.0.weight", "stage.0.bias", "head.weight")]
    releases = {name: Release(name, 9, C) for name in ("embedding", "residual")}
    bounds = bounds_of(groups_of(PerLayer(), keys, releases).values(), releases)
    assert sorted(bounds.values()) == [C / math.sqrt(3)] * 3 + [C / math.sqrt(2)] * 2
    require_groups(PerLayer(), keys[:2], releases)
    with pytest.raises(ConfigError, match="numbers of several layers"):
        require_groups(PerLayer(), [keys[0], *keys[3:5]], releases)


class Median(Flat):
    """Clips at the median norm of the micro-batch."""

    def weights(self, norms, bound):
        return super().weights(norms, min(bound, float(norms.median())))


class ScaleFree(Flat):
    """Normalises with a gamma that is a share of the mean norm, as if that were a constant."""

    def weights(self, norms, bound):
        return bound / (norms + 0.01 * norms[norms.isfinite()].mean())


class Remembering(Flat):
    """Follows the norms that it has seen."""

    seen = 1.0

    def weights(self, norms, bound):
        vars(self)["seen"] = 0.9 * self.seen + 0.1 * float(norms[norms.isfinite()].mean())
        return super().weights(norms, min(bound, self.seen))


class Ranked(Flat):
    """Gives the first half of a batch more than the second, or all the same number."""

    def weights(self, norms, bound):
        return super().weights(norms, bound) / torch.arange(1.0, 1 + len(norms))


class Counting(Flat):
    """Divides by how many there are."""

    def weights(self, norms, bound):
        return super().weights(norms, bound) / len(norms)


def along(norms):
    """Blocks of examples that all point one way."""
    first = torch.zeros(len(norms), *SHAPES[0])
    first[:, 0, 0] = torch.tensor(norms)
    return [first, *(torch.zeros(len(norms), *shape) for shape in SHAPES[1:])]


def test_with_the_batchs_median_one_example_would_move_the_sum_by_more_than_four_c():
    """Of four short and four long ones, all cut to the short ones' norm; with one more to C."""
    norms = [0.1] * 4 + [1.0] * 4
    less, more = (
        float(sums_of(Median(), along(some), micro_batch=9).sums[KEYS[0]][0, 0])
        for some in (norms, [*norms, 1.0])
    )
    assert 4 * C < more - less < 9 * C


@pytest.mark.parametrize("rule", [Median, ScaleFree, Remembering, Ranked, Counting])
def test_a_rule_that_looks_at_other_examples_is_refused(rule):
    with pytest.raises(ConfigError, match=f"keeps examples apart; of {rule.__name__}") as refused:
        check_rule(rule())
    assert "\n" not in str(refused.value)


def test_a_run_tries_a_rule_of_one_s_own_before_its_first_step():
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "eps=8"]
    parts = cli.build_parts(cli.compose(words), torch.device("cpu"))
    assert first_look(parts, torch.device("cpu")) is None
    with pytest.raises(ConfigError, match="keeps examples apart; of Ranked"):
        first_look(replace(parts, clipping=Ranked()), torch.device("cpu"))


class Summing(Flat):
    """Gives all one weight."""

    def weights(self, norms, bound):
        return super().weights(norms, bound).min()


class Half(Flat):
    """Gives all one weight, as a number."""

    def weights(self, norms, bound):
        return 0.5


@pytest.mark.parametrize("rule", [Summing(), Half()])
def test_a_rule_that_gives_one_weight_for_all_is_refused(rule):
    with pytest.raises(ConfigError, match=f"each of 30 examples a weight; {type(rule).__name__}"):
        check_rule(rule)


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in (cli.CONF / "clipping").glob("*")} - {"flat"})
)
def test_every_rule_of_conf_keeps_examples_apart(name):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "eps=8"]
    parts = cli.build_parts(cli.compose([*words, f"clipping={name}"]), torch.device("cpu"))
    assert parts.clipping != Flat()
    check_rule(parts.clipping)


class Greedy(Flat):
    """A rule of a user's own that keeps no bound."""

    def __init__(self, weight):
        vars(self)["weight"] = weight

    def weights(self, norms, bound):
        return torch.full_like(norms, self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [1e6, -1e6, -1e-6, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("scale", [0, 1e-200, 1e-30, 1])
def test_no_rule_of_ones_own_can_exceed_c(weight, dtype, scale):
    example = [scale * each.to(dtype) for each in draw(1, 3, (1, 1, 1, 1))]
    alone = sums_of(Greedy(weight), example, dtype=dtype).sums
    assert math.sqrt(sum(float(s.double().square().sum()) for s in alone.values())) <= C


class Unit(Flat):
    """Brings every gradient to the clip norm, and so has an infinite weight for one of zero."""

    def weights(self, norms, bound):
        return bound / norms


@pytest.mark.parametrize("no_gradient", ["no input", "no gradient at the output", "next to none"])
@pytest.mark.parametrize("positions", [(), (1,), (40,)])
def test_an_example_without_a_gradient_adds_nothing_to_a_sum_of_unit_gradients(
    no_gradient, positions
):
    gen = torch.Generator().manual_seed(3)
    x, dh = (100 * torch.randn(6, *positions, size, generator=gen) for size in (9, 7))
    if no_gradient != "no gradient at the output":
        x[:2] *= 1e-30 if "next" in no_gradient else 0.0
    if no_gradient != "no input":
        dh[:2] *= 1e-20 if "next" in no_gradient else 0.0
    key = Key("gradient", "weight")
    totals = []
    for first in (0, 2):
        total = ClippedSum(
            {key: (7, 9)}, (Release("gradient", 63, C),), torch.empty(0), clipping=Unit()
        )
        total.take(
            {key: LinearGrads.read(nn.Linear(9, 7), x[first:], dh[first:]).gradient("weight")}
        )
        total.close_micro_batch(6 - first)
        totals.append(total.sums[key])
    torch.testing.assert_close(*totals)
    assert 0 < totals[0].norm() <= 4 * C


@pytest.mark.parametrize(
    ("weight", "taken"),
    [(1e6, "weight 1e+06 .* taken as"), (-1e9, "weight -1e+09"), (math.nan, "nan .* taken as 0")],
)
def test_a_rule_whose_weights_are_not_taken_as_they_are_is_told_of(weight, taken):
    with pytest.warns(UserWarning, match=taken.replace("+", r"\+")) as told:
        check_rule(Greedy(weight))
    assert len(told) == 1


class Turning(Flat):
    """Counts its calls: a block is measured in one group, and added in another."""

    def __init__(self):
        vars(self)["calls"] = 0

    def group(self, key):
        self.__dict__["calls"] += 1
        return key.release, (self.calls - 1) // len(KEYS) % 3 == 2 and key.parameter == "b.weight"


def test_a_block_is_added_by_the_group_that_it_was_measured_in():
    """In a group that nothing was measured in it would be added as it is."""
    alone = sums_of(Turning(), draw(1, 4, (1e3, 1e3, 1e3, 1e3))).sums
    assert math.sqrt(sum(float(s.double().square().sum()) for s in alone.values())) <= C


class Elsewhere(Flat):
    """Clips every release to the clip norm of the first one."""

    def group(self, key):
        return ("embedding",)


class Word(Flat):
    """Gives a word where a tuple is due."""

    def group(self, key):
        return key.release


@pytest.mark.parametrize("rule", [Elsewhere(), Word()])
def test_a_group_stays_within_its_release(rule):
    releases = {"embedding": Release("embedding", 9, 5 * C), "residual": Release("residual", 9, C)}
    for refuses in (groups_of, require_groups):
        with pytest.raises(ConfigError, match=r"of release residual the group .*\(key.release,\)"):
            refuses(rule, [Key("residual", "a.weight")], releases)


class Following(Flat):
    """Splits layers once it has seen a large norm."""

    def __init__(self):
        vars(self)["largest"] = 0.0

    def group(self, key):
        return (key.release, key.parameter) if self.largest > 1 else (key.release,)

    def weights(self, norms, bound):
        vars(self)["largest"] = float(norms.max())
        return super().weights(norms, bound)


def test_groups_that_follow_the_norms_are_refused():
    with pytest.raises(ConfigError, match="stay the same; those of Following change"):
        require_groups(Following(), KEYS, {"gradient": Release("gradient", 24, C)})


class Unguarded(Flat):
    """Divides by norms of zero, too, of which nothing is left whatever they are multiplied by."""

    def weights(self, norms, bound):
        return bound / norms


@pytest.mark.parametrize("rule", [*map(Greedy, (0.0, 1e-9, -1e-9)), Unguarded()])
def test_one_that_keeps_the_bound_is_not(rule, recwarn):
    check_rule(rule)
    assert not recwarn


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_what_is_not_finite_adds_nothing_and_what_is_huge_stays_bounded(rule, bad):
    blocks = draw(6, 2, (1, 1, 1, 1))
    without = sums_of(RULES[rule], [block[1:] for block in blocks]).sums
    blocks[2][0, 0] = bad
    total = sums_of(RULES[rule], blocks)
    moved = sum(float((total.sums[k].double() - without[k].double()).square().sum()) for k in KEYS)
    if math.isfinite(bad):
        assert total.counts.nonfinite == 0 and math.sqrt(moved) <= C * (1 + 1e-7)
    else:
        assert total.counts.nonfinite == 1 and moved < 1e-12


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("dpsgd", "normalize"),
        long("rgp", "normalize"),
        long("lsg", "per_layer"),
        ("gep", "per_layer"),  # two releases
    ],
)
def test_every_method_takes_it_and_its_record_holds(method, rule, tmp_path):
    task = "digits"
    if method == "gep":
        task = "shapes model=cnn method.m=20 method.k=8 task.dataset_size=400 batch_size=100"
    words = f"method={method} task={task} profile=embedded eps=8 epochs=0.25 device=cpu"
    run = dpexp.run(f"{words} clipping={rule} results={tmp_path}")
    assert verify(run.directory)[0] == 0
    assert run.config["clipping"]["name"] == rule
    plain = dpexp.run(f"{words} results={tmp_path}")
    assert plain.directory != run.directory
    assert plain.result["weights_sha256"] != run.result["weights_sha256"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("clipping=normalise", "normalize"),
        ("clipping=normalize clipping.gamma=0", "clipping.gamma above 0"),
        ("clipping=normalize clip=false noise=false eps=null", "clip=true"),
        ("clipping=normalize privacy.clip=false privacy.noise=false eps=null", "clip=true"),
        ("clipping=normalize method=pate", "has its own"),
        ("clipping=per_layer method=compressive task=regression", "coordinates"),
        ("clipping=per_layer method=dp_zo", "numbers of several layers"),
        ("clipping=per_layer model=linear", "numbers of several layers"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    said = f"method=dpsgd task=digits profile=embedded eps=8 epochs=0.3 results={tmp_path}"
    with pytest.raises(ConfigError, match=line) as refused:
        dpexp.run(*with_words(said.split(), words.split()))
    assert "\n" not in str(refused.value)
