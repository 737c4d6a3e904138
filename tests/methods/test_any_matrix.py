"""Low-rank methods on the matrices of any module, against one example at a time by autograd.

A search draws networks of modules that read their matrices themselves: recurrent layers, bilinear
ones, layers with rules of a user's, modules without a rule, parametrized and tied ones, tables.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from dpexp import grad_sample
from dpexp.methods.dp_grape import DPGRAPE
from dpexp.methods.dp_lora import DPLoRA
from dpexp.methods.powersgd import PowerSGD
from dpexp.models import low_rank
from dpexp.models.adapters import adapter_parameters, merged
from dpexp.models.matrices import TABLE, VECTOR, matrix_parameters
from dpexp.training.train import BY_MODEL, why_frozen
from dpexp.types import ConfigError
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, data, make_rgp, step
from tests.methods.test_lsg import algorithm_1, kernel_sums, make, unimportant
from tests.steps import sums_of

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH = 4


class Recurrent(nn.Module):
    """A recurrent layer back to the width it came with."""

    def __init__(self, kind, layers, two_ways, **more):
        super().__init__()
        self.layer = kind(WIDTH, 3, layers, batch_first=True, bidirectional=two_ways, **more)
        self.back = nn.Linear((1 + two_ways) * more.get("proj_size", 3), WIDTH)

    def forward(self, h):
        return self.back(self.layer(h)[0])


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, h):
        return self.both(h, torch.tanh(h))


class Ruled(nn.Module):
    """Has a rule of a user's own, of two matrices."""

    def __init__(self):
        super().__init__()
        self.gate, self.matrix = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 2) for _ in range(2))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, h):
        return torch.sigmoid(h @ self.gate.T) + h @ self.matrix.T + self.shift


@grad_sample.rule(Ruled, parameters=("gate", "matrix", "shift"))
def ruled(layer, x, dh):
    gate = torch.sigmoid(x @ layer.gate.T)
    of_gate = torch.einsum("n...p,n...d->npd", dh * gate * (1 - gate), x)
    matrix = torch.einsum("n...p,n...d->npd", dh, x)
    return {"gate": of_gate, "matrix": matrix, "shift": dh.flatten(1, -2).sum(1)}


class Own(nn.Module):
    """No rule, a weight of its own, a kernel-like one, and a table of positions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.mixing = nn.Parameter(torch.randn(WIDTH, 2, WIDTH) / 4)
        self.positions = nn.Parameter(torch.randn(6, WIDTH) / 4)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h):
        h = torch.tanh(h + self.positions)
        h = h @ self.weight + torch.einsum("ntd,pkd->ntp", h, self.mixing)
        return self.gain * h


class Twice(nn.Module):
    """One layer in two places, and a weight that two layers hold."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.second.weight = self.first.weight
        self.rule = Ruled()

    def forward(self, h):
        return self.second(torch.tanh(self.rule(torch.tanh(self.first(self.rule(h))))))


class Attention(nn.MultiheadAttention):
    """A subclass, which torch.func takes whole."""

    def __init__(self, **more):
        super().__init__(WIDTH, 2, batch_first=True, **more)

    def forward(self, h):
        return super().forward(h, h, h, need_weights=False)[0]


class Table(nn.Module):
    """Looks up a row for what a number rounds to, and is added."""

    def __init__(self, padding):
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, padding_idx=2 if padding else None)

    def forward(self, h):
        ids = (3 * h[..., 0].detach()).round().long().clamp(-2, 2) + 2
        return h + self.table(ids)


class Tied(nn.Module):
    """Looks up rows of a table, and compares with all of them."""

    def __init__(self):
        super().__init__()
        self.table, self.scores = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, 5, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, h):
        return self.table(self.scores(h).detach().argmax(-1)) + self.scores(h)[..., :WIDTH]


def normed(kind):
    return kind(nn.Linear(WIDTH, WIDTH))


KINDS = {
    "LSTM": lambda: Recurrent(nn.LSTM, 2, True),
    "LSTM, projected": lambda: Recurrent(nn.LSTM, 1, False, proj_size=2),
    "GRU": lambda: Recurrent(nn.GRU, 1, True),
    "RNN": lambda: Recurrent(nn.RNN, 2, False, nonlinearity="relu"),
    "bilinear": Bilinear,
    "a user's rule": Ruled,
    "no rule": Own,
    "used twice": Twice,
    "attention": Attention,
    "norm over two axes": lambda: nn.LayerNorm((6, WIDTH)),
    "weight norm": lambda: normed(parametrizations.weight_norm),
    "orthogonal": lambda: normed(parametrizations.orthogonal),
    "table": lambda: Table(False),
    "table with padding": lambda: Table(True),
    "tied table": Tied,
}


class Net(nn.Module):
    """Rows of an image through some of them."""

    def __init__(self, kinds):
        super().__init__()
        self.embed = nn.Linear(12, WIDTH)
        self.body = nn.ModuleList(KINDS[kind]() for kind in kinds)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = self.embed(x.transpose(1, 2).flatten(2))
        for each in self.body:
            h = torch.tanh(each(h))
        return self.head(h.mean(1))


def net(kinds, seed=0):
    torch.manual_seed(seed)
    return Net(kinds).double()


def matrices(model, *, with_tables):
    """Name them, from their shapes alone."""
    return {
        name
        for name, each in model.named_parameters()
        if not name.startswith("head.")
        and each.ndim > 1
        and len(each) > 1
        and each[0].numel() > 1
        and (with_tables or ".table." not in name)
    }


def assert_close(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, **CLOSE)


kinds = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True)
drawn = given(kinds, st.booleans(), st.integers(0, 2**16))
FEW = settings(max_examples=6, deadline=None)


@FEW
@drawn
def test_rgp_is_its_algorithm(some, embeddings, seed):
    model, (x, y) = net(some, seed), data()
    method = make_rgp(embeddings=embeddings, rank=2)
    got = step(model, method, x, y, micro_batch=4)
    left, right = got.state["left"], got.state["right"]
    assert left.keys() == matrices(model, with_tables=embeddings)
    bases = {name: (left[name], right[name]) for name in left}
    assert_close(
        got.gradients, literal.rgp(model, bases, x, y, CLIP_NORM, NUM, "head", 0.1, "both")
    )


@FEW
@drawn
def test_lsg_is_its_algorithm(some, embeddings, seed):
    model, (x, y) = net(some, seed), data()
    got = step(model, make(embeddings=embeddings, rank=2), x, y, micro_batch=4)
    left, right = got.state["left"], got.state["right"]
    assert left.keys() == matrices(model, with_tables=embeddings)
    frozen = {
        name: [unimportant(kernel_sums(model.get_parameter(name), axis), 0.5) for axis in (0, 1)]
        for name in left
    }
    bases = {name: (left[name], right[name]) for name in left}
    assert_close(got.gradients, algorithm_1(model, bases, frozen, x, y))


@FEW
@drawn
def test_dp_grape_projects_each_matrix_and_no_other(some, _, seed):
    model, (x, y) = net(some, seed), data()
    method = DPGRAPE(2, 1, "none", (0.9, 0.999), 1e-8, "all", "head")
    got = step(model, method, x, y, micro_batch=4)
    projections = got.state["projections"]
    names = matrices(model, with_tables=False)
    assert projections.keys() == {n for n in names if model.get_parameter(n)[0].numel() > 2}
    vectors = literal.gradients(model, x, y)
    for name, projection in projections.items():
        vectors[name] = vectors[name].flatten(2) @ projection.T
    sums = {name: v.sum(0) / NUM for name, v in literal.clip(vectors, CLIP_NORM).items()}
    for name, projection in projections.items():
        sums[name] = (sums[name] @ projection).view_as(model.get_parameter(name))
    assert_close(got.gradients, sums)


@FEW
@drawn
def test_dp_powersgd_projects_each_matrix_and_no_other(some, _, seed):
    model, (x, y) = net(some, seed), data()
    got = step(model, PowerSGD(1, True, False, "head"), x, y, micro_batch=4)
    expected = literal.dpsgd(model, x, y, CLIP_NORM, NUM)
    for name in matrices(model, with_tables=False):
        matrix, mine = expected[name].flatten(1), got.gradients[name].flatten(1)
        right = F.normalize(got.state["right"][name], dim=0)  # of M^T P, so P is along M Q
        torch.testing.assert_close(mine @ right @ right.T, mine, **CLOSE)
        column = F.normalize(mine @ right, dim=0)
        torch.testing.assert_close(column @ (column.T @ matrix), mine, **CLOSE)
        expected[name] = got.gradients[name]
    assert_close(got.gradients, expected)


@FEW
@drawn
def test_dp_lora_puts_adapters_on_all_and_their_gradients_are_autograds(some, embeddings, seed):
    model, (x, y) = net(some, seed), data()
    names, before = matrices(model, with_tables=embeddings), copy.deepcopy(model)
    own = {"used twice": "first", "tied table": "table"}
    tied = {f"body.{k}.{own[kind]}.weight" for k, kind in enumerate(some) if kind in own}
    method = DPLoRA(1, 2.0, "*", "head", embeddings=embeddings)
    adapted = method.adapt(model)
    torch.testing.assert_close(adapted(x), before(x), **CLOSE)
    assert len(adapter_parameters(adapted)) == 2 * len(names - tied)
    for name in adapter_parameters(adapted):
        nn.init.normal_(adapted.get_parameter(name), std=0.3)
    trained = method.trainable(adapted)
    assert {*adapter_parameters(adapted), "head.weight", "head.bias"} == {*trained}
    each = literal.gradients(adapted, x, y)
    clipped = literal.clip({name: each[name] for name in trained}, CLIP_NORM)
    got, _ = sums_of(adapted, method, x, y, CLIP_NORM, 4)
    assert_close(
        {key.parameter: total for key, total in got.items()},
        {name: v.sum(0) for name, v in clipped.items()},
    )
    whole = merged(adapted)
    torch.testing.assert_close(whole(x), adapted(x), **CLOSE)
    kept = {name: type(each) for name, each in whole.named_modules()}
    assert kept == {name: type(each) for name, each in before.named_modules()}
    assert whole.state_dict().keys() == before.state_dict().keys()
    assert [*low_rank.adapted(adapted)] or {*some} <= {"table", "tied table", "table with padding"}
    torch.testing.assert_close(adapted(x), merged(adapted)(x), **CLOSE)  # it stayed as it was


def test_a_forward_pass_by_the_bases_alone_reaches_recurrent_layers():
    model, (x, y) = net(["LSTM", "GRU"]), data()
    got = step(model, make_rgp(rank=2, residual=False), x, y, micro_batch=4)
    left, right = got.state["left"], got.state["right"]
    small = copy.deepcopy(model)
    with torch.no_grad():
        for name in left:
            weight = small.get_parameter(name)
            weight.copy_((left[name] @ right[name]).view_as(weight))
    bases = {name: (left[name], right[name]) for name in left}
    assert_close(
        got.gradients, literal.rgp(small, bases, x, y, CLIP_NORM, NUM, "head", 0.1, "both")
    )


def test_what_stays_frozen_is_said_with_its_reason():
    model = net(["no rule", "table"])
    model.body[0].weight.requires_grad_(False)
    trained = set(make_rgp().trainable(model))
    frozen = [name for name, _ in model.named_parameters() if name not in trained]
    assert why_frozen(model, make_rgp(), frozen) == {
        VECTOR: ["embed.bias", "body.0.gain"],
        BY_MODEL: ["body.0.weight"],
        TABLE: ["body.1.table.weight"],
    }
    assert TABLE not in why_frozen(model, make_rgp(embeddings=True), [])
    adapted = DPLoRA(2, 2.0, "*embed*", "head").adapt(net(["no rule", "table"]))
    method = DPLoRA(2, 2.0, "*embed*", "head")
    reasons = {name: method.why_frozen(adapted, name) for name, _ in adapted.named_parameters()}
    assert reasons["embed.base_layer.weight"] == "trained by the adapter beside it"
    assert reasons["body.0.mixing"] == "not matched by method.targets"
    assert reasons["body.1.table.weight"] == TABLE


def test_embeddings_are_true_or_false():
    with pytest.raises(ConfigError, match="method.embeddings to be true or false; got 'yes'"):
        make_rgp(embeddings="yes")


def test_a_model_of_the_papers_has_the_matrices_that_it_had():
    """Tables, norms, biases and positions of a transformer stand still, as in rgp's code."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    model = nn.ModuleDict({"words": nn.Embedding(9, 8), "layer": layer, "head": nn.Linear(8, 2)})
    model["norm"] = nn.GroupNorm(2, 8)
    model.register_parameter("positions", nn.Parameter(torch.zeros(1, 5, 8)))
    assert set(matrix_parameters(model, "head")) == {
        "layer.self_attn.in_proj_weight",
        "layer.self_attn.out_proj.weight",
        "layer.linear1.weight",
        "layer.linear2.weight",
    }
