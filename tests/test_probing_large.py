"""Large models are checked by sketches of their gradients, and in the memory of a few copies."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.cli.config_cache import Configs
from dpexp.cli.parts import build_parts
from dpexp.cli.stand_in import stand_in
from dpexp.training.probing import check_model
from dpexp.training.probing.sketch import COLUMNS, LARGEST, ROWS, WORDS, fingerprint, sketch
from dpexp.training.train import first_look
from dpexp.types import ConfigError
from tests.live import Live
from tests.marks import few
from tests.runs import one_thread  # noqa: F401
from tests.test_probing import task_of

CPU, WIDTH, DEEP = torch.device("cpu"), 300, 8
SHAPES = [(LARGEST + 1,), (257, 300), (3, 5, 7, 701), (2 * ROWS + 3, 256)]
KINDS = ["dense", "one number", "of rank one", "constant", "of one column"]


def change(kind, shape, gen):
    """Return a difference of two gradients."""
    if kind == "dense":
        return torch.randn(shape, generator=gen, dtype=torch.double)
    if kind == "constant":
        return torch.full(shape, 0.3, dtype=torch.double)
    if kind == "of rank one":
        row = torch.randn(shape[-1], generator=gen, dtype=torch.double)
        return row * torch.randn((*shape[:-1], 1), generator=gen, dtype=torch.double)
    made = torch.zeros(shape, dtype=torch.double)
    if kind == "one number":
        made.view(-1)[int(torch.randint(made.numel(), (), generator=gen))] = 1.0
    else:
        made[..., 3] = 1.0
    return made


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(st.sampled_from(SHAPES), st.integers(0, 2**31), st.floats(-12, 3))
def test_a_sketch_keeps_distances(kind, shape, seed, log_size):
    gen = torch.Generator().manual_seed(seed)
    one = torch.randn(shape, generator=gen, dtype=torch.double)
    apart = 10**log_size * change(kind, shape, gen)
    found = (sketch(one + apart) - sketch(one)).norm() / apart.norm()
    assert 0.2 < found < 2.0  # a factor's square has the mean of 16 squares, or of more
    assert torch.equal(sketch(one), sketch(one.clone()))


def test_parts_that_are_opposite_do_not_cancel():
    size = ROWS * COLUMNS
    row = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    apart = torch.cat([row, -row])
    assert 0.5 < sketch(apart).norm() / apart.norm() < 1.5
    alternating = row[:COLUMNS] * torch.tensor([1.0, -1.0]).double().repeat(ROWS)[:, None]
    assert 0.5 < sketch(alternating).norm() / alternating.norm() < 1.5


@settings(max_examples=8)
@given(st.sampled_from(SHAPES), st.integers(0, 2**31))
def test_two_of_float32_are_the_same_where_the_gradients_are(shape, seed):
    gen = torch.Generator().manual_seed(seed)
    one = torch.randn(shape, generator=gen)
    other = one.clone()
    at = int(torch.randint(one.numel(), (), generator=gen))
    other.view(-1)[at] = torch.nextafter(other.view(-1)[at], torch.tensor(torch.inf))
    assert not torch.equal(sketch(one), sketch(other))


def test_small_gradients_are_kept_whole():
    one = torch.randn(LARGEST // 8, 8)
    assert sketch(one) is one
    assert sketch(torch.randn(LARGEST + 1)).numel() <= LARGEST / 8


TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool]


@given(st.sampled_from(TYPES), st.sampled_from([1, 7, WORDS, 2 * WORDS + 5]), st.data())
def test_a_fingerprint_tells_any_change(dtype, size, data):
    gen = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    one = (100 * torch.randn(size, generator=gen)).to(dtype)
    other, at = one.clone(), data.draw(st.integers(0, size - 1))
    if dtype == torch.bool:
        other[at] = ~other[at]
    elif dtype.is_floating_point:
        other[at] = torch.nextafter(other[at], torch.tensor(torch.inf, dtype=dtype))
    else:
        other[at] += 1
    assert fingerprint(one) == fingerprint(one.clone())
    assert fingerprint(one) != fingerprint(other)


def test_what_is_equal_has_one_fingerprint_and_another_shape_or_order_has_not():
    one = torch.arange(6.0).view(2, 3)
    assert fingerprint(one) == fingerprint(one.t().contiguous().t())
    assert fingerprint(torch.zeros(3)) == fingerprint(-torch.zeros(3))
    assert fingerprint(torch.tensor([torch.nan])) == fingerprint(torch.tensor([torch.nan]))
    assert fingerprint(torch.tensor(2.0)) != fingerprint(torch.tensor([2.0]))
    others = (one.view(-1), one.view(3, 2), one.flip(0), one.flip(1), one.double())
    assert all(fingerprint(one) != fingerprint(other) for other in others)


class Deep(nn.Module):
    """Wide layers, each larger than what is kept whole, with something wrong between them."""

    def __init__(self, wrong=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEEP))
        self.head = nn.Linear(WIDTH, 3)
        self.wrong = wrong

    def forward(self, x):
        for place, layer in enumerate(self.layers):
            h = layer(x)
            if place == DEEP // 2 and self.wrong is not None:
                h = self.wrong(self, x, h)
            x = x + torch.tanh(h)
        return self.head(x)


def check(model, shape=(WIDTH,)):
    names = [name for name, _ in model.named_parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return check_model(model, names, task_of(shape), CPU)


def moves(model, x, h):
    model.layers[1].weight.data[17, 5] += 1e-6 * x.detach().sum()
    return h


WRONG = {
    "mixes a little": (lambda model, x, h: h + 1e-6 * h.mean(0), "keep examples apart"),
    "mixes one unit": (
        lambda model, x, h: torch.cat([h[:, :9] - h[:, :9].mean(0), h[:, 9:]], 1),
        "keep examples apart",
    ),
    "uses a weight twice": (lambda model, x, h: h + 1e-3 * x @ model.layers[2].weight, "nothing"),
    "moves a weight": (moves, "leaves every parameter as it is; 'weight'"),
}


@pytest.mark.parametrize("name", few(WRONG, ["mixes one unit", "moves a weight"]))
def test_what_is_wrong_in_a_large_model_is_found(name):
    wrong, said = WRONG[name]
    with pytest.raises(ConfigError, match=said):
        check(Deep(wrong))


def test_a_check_takes_the_memory_of_a_few_copies():
    model = Deep()
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    with Live() as live:
        assert check(model) is None
    # One copy in float64, and its gradients by autograd, are two of float32 each.
    assert live.most < 6.5 * size


class Peaked(nn.Module):
    """Attention that is all on one token, so that a query's gradient is no more than rounding.

    The order in which gradients are added depends on what requires one, as a kernel's may.
    """

    def __init__(self, scale, width=8):
        super().__init__()
        names = ("query", "key", "value", "head")
        self.layers = nn.ModuleDict({name: nn.Linear(width, width) for name in names})
        self.ways = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.scale = scale

    def forward(self, x):
        inputs = {"query": x[:, :1], "key": x, "value": x}
        q, k, v = (self.layers[name](each)[:, None] for name, each in inputs.items())
        h = x[:, 0] + F.scaled_dot_product_attention(q, k, v, scale=self.scale)[:, 0, 0]
        order = 1 if self.ways[0].weight.requires_grad else -1
        return self.layers["head"](sum(torch.tanh(way(h)) for way in [*self.ways][::order]) + h)


@pytest.mark.parametrize("scale", few([1, 20, 60, 80, 90, 100, 200, 1000], [1, 90, 1000]))
def test_attention_that_is_all_on_one_token_is_not_blamed(scale):
    torch.manual_seed(0)
    assert check(Peaked(scale), (4, 8)) is None


@pytest.mark.long
@pytest.mark.parametrize("model", ["bert", "roberta", "minilm"])
@pytest.mark.parametrize("method", ["dpsgd", "rgp", "dp_lora"])
def test_published_encoders_are_not_blamed(method, model):
    words = [f"method={method}", "task=sst2", f"model={model}", "eps=8", "profile=paper"]
    parts = build_parts(stand_in(Configs().compose(words), 1), CPU)
    assert first_look(parts, CPU) is None
