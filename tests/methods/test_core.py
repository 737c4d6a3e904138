"""RGP with a core between public bases."""

import pytest
import torch
from torch import nn

from dpexp.data import Examples
from dpexp.linalg import random_bases
from dpexp.methods.rgp_core import FLOOR, CoreRGP
from dpexp.methods.rgp_public import PublicRGP
from dpexp.privacy.seeds import generator
from dpexp.types import ConfigError
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, MATRICES, NUM, TinyNet, data
from tests.methods.test_public_carriers import CPU, PUBLIC, gradient_of, public_set


def make(**options):
    defaults = {
        "rank": 4,
        "exponent": 0.5,
        "head_scale": 0.5,
        "head": "head",
        "public_examples": PUBLIC,
        "public_labels": "true",
    }
    return CoreRGP(**defaults | options)


def prepared(method, public, step=0, state=None):
    model = TinyNet()
    with gradient_of(model, method, public) as gradient:
        state = method.start(model) if state is None else state
        gen = generator(0, "method", step, CPU)
        return method.prepare(model, state, gradient.passes(public), gen)


def public_gradients(public):
    """Explicit gradients of the examples that the first step draws."""
    drawn = torch.randint(PUBLIC, (PUBLIC,), generator=generator(0, "method", 0, CPU))
    return literal.gradients(TinyNet(), public.inputs[drawn], public.targets[drawn])


def core_of(each, state, name):
    return state["left"][name].T @ each[name].flatten(2) @ state["right"][name].T


@pytest.mark.parametrize("exponent", [0, 0.5, 1])
def test_a_step_is_the_literal_one(exponent):
    model, (x, y), public = TinyNet(), data(), public_set()
    method = make(exponent=exponent)
    with gradient_of(model, method, public) as gradient:
        got = gradient(method.start(model), Examples(x, y), 0)
    each, state = literal.gradients(model, x, y), got.state
    scale = state["scale"]
    vectors = {
        name: core_of(each, state, name) / scale[name.removesuffix(".weight")] for name in MATRICES
    }
    vectors |= {name: each[name] / scale["head"] for name in ("head.weight", "head.bias")}
    sums = {name: v.sum(0) / NUM for name, v in literal.clip(vectors, CLIP_NORM).items()}
    assert got.clipped > 0
    assert got.gradients.keys() == sums.keys()
    for name, value in sums.items():
        value = value / scale[name.rpartition(".")[0]]
        if name in MATRICES:
            value = state["left"][name] @ value @ state["right"][name]
            value = value.view_as(model.get_parameter(name))
        torch.testing.assert_close(got.gradients[name], value, **CLOSE)


@pytest.mark.parametrize("exponent", [0, 0.5, 1])
def test_scales_are_powers_of_the_public_gradients_and_make_them_one_long(exponent):
    public = public_set()
    state = prepared(make(exponent=exponent), public)
    each = public_gradients(public)
    cores = {name: core_of(each, state, name) for name in MATRICES}
    head = torch.cat([each["head.weight"].flatten(1), each["head.bias"]], dim=1)
    everything = torch.cat([*(core.flatten(1) for core in cores.values()), head], dim=1)
    floor = FLOOR * everything.square().mean()
    wanted = {
        name.removesuffix(".weight"): (core.square().mean(0) + floor) ** (exponent / 2)
        for name, core in cores.items()
    }
    wanted["head"] = (head.square().mean() + floor) ** (exponent / 2) / 0.5
    unit = state["scale"]["head"] / wanted["head"]
    for layer, scale in wanted.items():
        torch.testing.assert_close(state["scale"][layer], scale * unit, **CLOSE)
    scaled = [core / state["scale"][name.removesuffix(".weight")] for name, core in cores.items()]
    scaled.append(head / state["scale"]["head"])
    norms = torch.cat([part.flatten(1) for part in scaled], dim=1).square().sum(1)
    torch.testing.assert_close(norms.mean(), norms.new_tensor(1.0), **CLOSE)


def test_bases_are_orthonormal_and_keep_what_the_best_ones_would():
    public = public_set()
    state = prepared(make(rank=2), public)
    each = public_gradients(public)
    gen = torch.Generator().manual_seed(0)
    kept, by_chance = [], []
    for name in MATRICES:
        rows = each[name].flatten(2)
        for basis, gradients in (
            (state["left"][name], rows),
            (state["right"][name].T, rows.mT),
        ):
            torch.testing.assert_close(basis.T @ basis, torch.eye(2, dtype=basis.dtype), **CLOSE)
            second_moment = (gradients @ gradients.mT).sum(0)
            best = torch.linalg.eigvalsh(second_moment)[-2:].sum()
            chance = random_bases([(*gradients.shape[1:], 2)], gen, gradients)[0][0]
            kept.append(float((basis.T @ second_moment @ basis).trace() / best))
            by_chance.append(float((chance.T @ second_moment @ chance).trace() / best))
    assert min(kept) > 0.9  # seen through two random directions
    assert sum(by_chance) / len(by_chance) < 0.7


class TwoLayerHead(TinyNet):
    """A head whose first layer has more outputs than there are classes, as BERT's."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 3)).double()


@pytest.mark.parametrize("labels", ["random", "true"])
@pytest.mark.parametrize("kind", [CoreRGP, PublicRGP])
def test_random_labels_are_classes_also_where_the_head_has_two_layers(kind, labels):
    model, (x, y) = TwoLayerHead(), data()
    method = make(public_labels=labels)
    if kind is PublicRGP:
        method = PublicRGP(2, 1, 0.1, "head", public_examples=PUBLIC, public_labels=labels)
    with gradient_of(model, method, public_set()) as gradient:
        got = gradient(method.start(model), Examples(x, y), 0)
    assert "head.2.bias" in got.gradients
    assert all(value.isfinite().all() for value in got.gradients.values())


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_public_gradients_that_say_nothing_are_refused(factor):
    public, model = public_set(), TinyNet()
    for parameter in model.parameters():
        parameter.data *= factor
    method = make()
    with (
        gradient_of(model, method, public) as gradient,
        pytest.raises(ConfigError, match="finite and not all zero"),
    ):
        gradient(method.start(model), Examples(*data()), 0)


def test_what_is_public_is_found_once_and_from_nothing_private():
    model, (x, y), public = TinyNet(), data(), public_set()
    seen = []
    for inputs in (x, 100 * x):
        method = make(public_labels="random")
        with gradient_of(model, method, public) as gradient:
            state = gradient(method.start(model), Examples(inputs, y), 0).state
            again = gradient(state, Examples(inputs, y), 1).state
        for part in ("left", "right", "scale"):
            for name, value in state[part].items():
                assert torch.equal(value, again[part][name])
        seen.append(state)
    for part in ("left", "right", "scale"):
        for name, value in seen[0][part].items():
            assert torch.equal(value, seen[1][part][name])


def test_a_smaller_head_scale_gives_the_classifier_less_of_the_vector():
    public = public_set()
    small, large = (prepared(make(head_scale=scale), public)["scale"] for scale in (0.1, 1.0))
    assert small["head"] / small["hidden"].mean() > 9 * large["head"] / large["hidden"].mean()


def test_a_layer_smaller_than_the_rank_has_a_smaller_core():
    state = prepared(make(rank=7), public_set())
    method = make(rank=7)
    shapes = {key.parameter: shape for key, shape in method.release_shapes(state).items()}
    assert shapes["conv1.weight"] == (6, 7)
    assert shapes["conv2.weight"] == (4, 7)
    assert shapes["hidden.weight"] == (7, 7)
    (release,) = method.releases(state, 1.0)
    assert release.dimension == 42 + 28 + 49 + 3 * 7 + 3


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"exponent": 1.5}, r"method\.exponent in \[0, 1\].*got 1\.5"),
        ({"head_scale": 0}, r"method\.head_scale > 0"),
        ({"public_examples": 0}, r"method\.public_examples >= 1"),
        ({"public_labels": "some"}, r"public_labels to be one of random, true"),
    ],
)
def test_options_out_of_range_are_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        make(**options)


def test_a_rank_above_every_layer_is_refused():
    with pytest.raises(ConfigError, match=r"Set method\.rank"):
        make(rank=40).start(TinyNet())
