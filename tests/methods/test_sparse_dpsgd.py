"""Sparse DP-SGD: its step transcribed, its masked per-example gradients, its guarantees."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from dpexp import cli
from dpexp.grad_sample.linear import LinearWeight
from dpexp.grad_sample.per_example import AT_LEAST, FactoredGrads, MaskedGrads, MaterializedGrads
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.types import ConfigError
from tests import steps
from tests.marks import few
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, TinyNet, data, step
from tests.runs import total_of

DIGITS = ["task=digits", "profile=embedded", "device=cpu"]


class NormedNet(steps.RandomNet):
    """Norms and biases besides: all that is not a matrix."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(channels=2, groups=2, hidden=5, classes=3)
        self.norm.weight.data.uniform_(0.5, 2)


NETS = {
    TinyNet: ("conv1.weight", "conv2.weight", "hidden.weight"),
    NormedNet: ("conv.weight", "hidden.weight"),
}


def data_for(net):
    x, y = data()
    return (x, y) if net is TinyNet else (x[:, :, :4, :4], y)


def make(p=0.5, mask="importance", train="all"):
    return SparseDPSGD(p, mask, train, "head")


def frozen_by_size(weight, p):
    """Name the entries outside the top (1 - p) by absolute value."""
    sizes = [abs(number) for number in weight.detach().flatten().tolist()]
    in_order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    return in_order[: int(p * len(sizes) + 1e-9)]


def sparse_step(model, frozen, x, y, trained=("",)):
    """Freeze, clip jointly, sum: lsg's Algorithm 3 on whole gradients, without noise."""
    each = literal.gradients(model, x, y)
    each = {name: g for name, g in each.items() if name.startswith(tuple(trained))}
    for name, entries in frozen.items():
        for gradient in each[name]:
            for entry in entries:
                gradient.view(-1)[entry] = 0
    return {name: g.sum(0) / NUM for name, g in literal.clip(each, CLIP_NORM).items()}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, **CLOSE)


@pytest.mark.parametrize("micro_batch", few([1, 4, NUM], [4]))
@pytest.mark.parametrize("p", few([0.3, 0.9], [0.9]))
@pytest.mark.parametrize("net", NETS)
def test_three_steps_are_the_papers(net, p, micro_batch):
    model, (x, y), state = net(), data_for(net), None
    choices = []
    for _ in range(3):
        frozen = {name: frozen_by_size(model.get_parameter(name), p) for name in NETS[net]}
        expected = sparse_step(model, frozen, x, y)
        got = step(model, make(p), x, y, state=state, micro_batch=micro_batch)
        assert got.clipped > 0
        assert_same(got.gradients, expected)
        state = got.state
        choices.append({name: set(entries) for name, entries in frozen.items()})
        with torch.no_grad():
            for name, gradient in got.gradients.items():
                model.get_parameter(name).sub_(5.0 * gradient)
    assert choices[0] != choices[2]  # chosen afresh, or the steps show less than they say


def test_with_nothing_frozen_it_is_dpsgd():
    model, (x, y) = TinyNet(), data()
    sparse, plain = make(0.0), DPSGD("all", "head")
    assert sparse.release_shapes(sparse.start(model)) == plain.release_shapes(plain.start(model))
    assert_same(step(model, sparse, x, y).gradients, step(model, plain, x, y).gradients)


def test_random_entries_are_drawn_afresh_every_step_and_all_alike():
    model, (x, y) = TinyNet(), data()
    method = make(mask="random")
    got = step(model, method, x, y)
    frozen = {
        name: (~kept).nonzero().flatten().tolist() for name, kept in got.state["entries"].items()
    }
    assert_same(got.gradients, sparse_step(model, frozen, x, y))
    counts = torch.zeros(7 * 36)
    for seed in range(400):
        gen = torch.Generator().manual_seed(seed)
        state = method.prepare(model, method.start(model), None, gen)
        counts[state["entries"]["hidden.weight"]] += 1
    assert (counts / 400 - 0.5).abs().max() < 0.125  # five standard errors of a fair coin


def test_every_matrix_but_the_classifier_is_sparsified_and_nothing_else():
    model = NormedNet()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    blocks = {
        key.parameter: shape
        for key, shape in make(0.3).release_shapes(make(0.3).start(model)).items()
    }
    sparse = {"conv.weight": (4 * 9 - 10,), "hidden.weight": (5 * 64 - 96,)}
    assert blocks == {**shapes, **sparse}
    alone = make(0.3, train="matrices")
    of_head = {name: shape for name, shape in shapes.items() if name.startswith("head.")}
    blocks = {
        key.parameter: shape for key, shape in alone.release_shapes(alone.start(model)).items()
    }
    assert blocks == {**sparse, **of_head}


def test_with_matrices_alone_it_takes_their_part_of_a_joint_step():
    model, (x, y) = NormedNet(), data_for(NormedNet)
    frozen = {name: frozen_by_size(model.get_parameter(name), 0.3) for name in NETS[NormedNet]}
    expected = sparse_step(model, frozen, x, y, trained=[*NETS[NormedNet], "head"])
    assert len(expected) == 4
    assert_same(step(model, make(0.3, train="matrices"), x, y).gradients, expected)


# MaskedGrads per-example gradients


class Counting(LinearWeight):
    """Notes how many gradients are formed at once."""

    formed_at_once: list[int] = []

    def materialize(self, x, dh):
        self.formed_at_once.append(len(x))
        return super().materialize(x, dh)


SMALL, LARGE = (8, 6), (320, 330)  # of the latter ten gradients are more than AT_LEAST


def masked(positions, entries, shape=SMALL, num=10):
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(num, positions, shape[1], generator=gen, dtype=torch.float64)
    dh = torch.randn(num, positions, shape[0], generator=gen, dtype=torch.float64)
    Counting.formed_at_once.clear()
    is_kept = torch.zeros(shape[0] * shape[1], dtype=torch.bool).index_fill_(0, entries, True)
    return MaskedGrads(FactoredGrads(Counting(), x, dh), is_kept, shape)


@pytest.mark.parametrize(
    ("positions", "shape", "pieces"), [(1, SMALL, 1), (30, SMALL, 1), (1, LARGE, 2), (90, LARGE, 2)]
)
def test_part_of_a_gradient_is_that_part_of_it_however_it_is_sliced(positions, shape, pieces):
    entries = torch.arange(0, shape[0] * shape[1], 2)
    grads = masked(positions, entries, shape)
    grads.materialize()
    assert len(Counting.formed_at_once) == pieces
    part = MaterializedGrads(grads.whole.materialize().flatten(1)[:, entries])
    weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    torch.testing.assert_close(grads.materialize(), part.values, **CLOSE)
    for some, of_part in ((grads, part), (grads.measured()[1], part)):
        torch.testing.assert_close(some.norms_squared(), of_part.norms_squared(), **CLOSE)
        for scale in (weights, None):
            torch.testing.assert_close(total_of(some, scale), total_of(of_part, scale), **CLOSE)
        few = weights > 0.5
        torch.testing.assert_close(some.select(few).materialize(), part.select(few).values, **CLOSE)
    torch.testing.assert_close(grads.measured()[0].squares, part.norms_squared(), **CLOSE)


@pytest.mark.parametrize("positions", [1, 30])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_entry_that_is_not_finite_breaks_its_examples_norm_alone(bad, positions):
    grads = masked(positions, torch.arange(6, 48))  # all rows but the first
    expected = grads.norms_squared()
    others = [i != 3 for i in range(10)]
    grads.whole.dh[3, 0, 0] = bad
    measured = grads.measured()[0].squares
    torch.testing.assert_close(measured[others], expected[others], **CLOSE)
    # What is left out counts too, formed or not: which of the two hangs on others' padding.
    assert not measured[3].isfinite()
    grads.whole.dh[3, 0, 1] = bad
    assert grads.measured()[0].squares.isfinite().tolist() == others


def test_no_more_gradients_are_formed_at_once_than_the_layers_tape_holds():
    whole, on_tape = LARGE[0] * LARGE[1], 100 * sum(LARGE)  # numbers of an example
    few = masked(100, torch.arange(whole - 1), LARGE, num=20)
    _, held = few.measured()
    assert held is few and 20 * on_tape > AT_LEAST
    assert max(Counting.formed_at_once) == 20 * on_tape // whole > AT_LEAST // whole
    many = masked(100, torch.arange(on_tape - 1), LARGE, num=20)
    _, held = many.measured()
    assert isinstance(held, MaterializedGrads) and held.values.shape == (20, on_tape - 1)
    assert sum(Counting.formed_at_once) == 20  # formed once, and not again for the sum


# Privacy


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(2, 5)),
    p=st.floats(0, 0.99),
    mask=st.sampled_from(["importance", "random"]),
    train=st.sampled_from(["all", "matrices"]),
    log_scale=st.floats(-12, 30),
    log_weights=st.floats(-3, 4),
    log_clip=st.floats(-3, 3),
)
def test_adding_one_example_moves_the_sums_by_at_most_the_clip_norm(
    seed, sizes, p, mask, train, log_scale, log_weights, log_clip
):
    groups, hidden, classes = sizes
    torch.manual_seed(seed)
    model = steps.RandomNet(2 * groups, groups, hidden, classes)
    with torch.no_grad():
        model.head.weight *= 10**log_weights
    x, y = torch.randn(6, 2 * groups, 4, 4), torch.randint(classes, (6,))
    x[-1] *= 10**log_scale
    sums_of, clip_norm = steps.sums_of, 10**log_clip
    without, _ = sums_of(model, make(p, mask, train), x[:5], y[:5], clip_norm, micro_batch=2)
    full, _ = sums_of(model, make(p, mask, train), x, y, clip_norm, micro_batch=4)
    assert full.keys() == without.keys()
    moved = sum(float((full[key] - without[key]).square().sum()) for key in full) ** 0.5
    assert moved <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("mask", ["importance", "random"])
def test_noise_is_on_every_kept_entry_and_on_no_frozen_one(mask):
    words = ["method.p=0.3", f"method.mask={mask}", "batch_size=4"]
    setting = steps.Setting(steps.composed("sparse_dpsgd", *words), torch.float64)
    empty = setting.find_step(lambda drawn: drawn == 0)
    outcome = setting.step(empty)  # of noise alone
    drawn = []
    for name, gradient in outcome.gradients.items():
        kept = outcome.state["entries"].get(name)
        noise = gradient.flatten() if kept is None else gradient.flatten()[kept]
        assert int((gradient != 0).sum()) == len(noise) == int((noise != 0).sum())
        drawn.append(noise * setting.mechanism.batch_size / setting.mechanism.noise_multiplier)
    drawn = torch.cat(drawn).numpy()
    (release,) = setting.method.releases(setting.state, 1.0)
    assert len(drawn) == release.dimension
    assert kstest(drawn, "norm").pvalue > 1e-3
    for wrong in (0.8, 1.25):
        assert kstest(drawn / wrong, "norm").pvalue < 1e-6


# Options, and a run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"p": 1.0}, r"method\.p, the fraction that is frozen, in \[0, 1\); got method\.p=1\.0"),
        ({"p": -0.1}, r"got method\.p=-0\.1\. Set method\.p"),
        ({"p": 30}, r"got method\.p=30"),
        ({"mask": "radnom"}, r"method\.mask=radnom\. Did you mean random\?"),
        ({"mask": "carriers"}, r"method\.mask to be one of importance, random"),
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_refused_in_one_line(options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_all_classifier_is_refused():
    model = torch.nn.Sequential()
    model.head = torch.nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="weight matrices besides the classifier.*method=dpsgd"):
        make().start(model)


@pytest.mark.long
def test_a_run_learns_and_its_certificate_counts_what_is_kept(tmp_path):
    words = ["method=sparse_dpsgd", *DIGITS, "eps=8", "epochs=5", "eval_every=5"]
    directory = cli.execute(cli.compose([*words, f"results={tmp_path}"]))
    result, privacy = (
        json.loads((directory / f"{name}.json").read_text()) for name in ("result", "privacy")
    )
    assert result["test_accuracy"] > 76  # chance is 10
    assert 0.99 * 8 < privacy["epsilon"]["prv"] <= 8
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"] == 20
    (release,) = privacy["releases"]
    head = privacy["trainable"]["head.weight"]
    matrices = sum(privacy["trainable"].values()) - head
    assert release["dimension"] == head + matrices / 2
    assert (release["sensitivity"], privacy["deviations"]) == (1, [])
