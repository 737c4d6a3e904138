"""Layers one step beside the usual ones: the right gradient for each example, or a remedy."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import dpexp
from dpexp.data import cross_entropy
from dpexp.data.given import examples_of, task_of
from dpexp.distributed.ranks import Ranks
from dpexp.methods.dpsgd import DPSGD
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.training.probing import check_model
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)

CPU = torch.device("cpu")
GEN = torch.Generator().manual_seed(0)
NUMBERS = torch.rand(24, 6, generator=GEN)
SERIES = torch.rand(24, 5, 6, generator=GEN)
TOKENS = torch.randint(1, 9, (24, 5), generator=GEN)
TARGETS = torch.randint(3, (24,), generator=GEN)


class Net(nn.Module):
    """Parts by name, and how they are used."""

    def __init__(self, use, **parts):
        super().__init__()
        self.use, self.out = use, nn.Linear(6, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.out(self.use(self, x))


def bag(use=lambda m, x: m.table(x), **options):
    return Net(use, table=nn.EmbeddingBag(10, 6, **options))


def halves(m, x):
    return m.table(x, per_sample_weights=torch.full(x.shape, 0.5, dtype=m.table.weight.dtype))


def with_offsets(m, x):
    return m.table(x.flatten(), torch.arange(len(x)) * x.shape[1])


def numbers(*shape):
    return nn.Parameter(0.4 * torch.randn(*shape))


def steps(m, x):
    for weight in m.weights:
        x = torch.tanh(x @ weight + m.more["bias"])
    return x


def complex_product(m, x):
    kind = torch.complex128 if x.dtype == torch.float64 else torch.complex64
    return (x.to(kind) @ torch.view_as_complex(m.weight)).abs()


def adapted(m, x):
    return m.plain(x) + x @ m.down.T @ m.up.T


def frozen(layer):
    return layer.requires_grad_(False)


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.scale = numbers(3, 6), nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        return self.scale * F.cosine_similarity(x[:, None], self.each[None], dim=2)


RIGHT = {
    "a bag": (bag, TOKENS),
    "a bag of sums": (lambda: bag(mode="sum"), TOKENS),
    "a bag of maxima": (lambda: bag(mode="max"), TOKENS),
    "a bag with padding": (lambda: bag(padding_idx=1), TOKENS),
    "a bag with constant weights": (lambda: bag(halves, mode="sum"), TOKENS),
    "a bag with learnt weights": (
        lambda: Net(
            lambda m, x: m.table(x, per_sample_weights=m.weights(x)[..., 0]),
            table=nn.EmbeddingBag(10, 6, mode="sum"),
            weights=nn.Embedding(10, 1),
        ),
        TOKENS,
    ),
    "a sparse table": (
        lambda: Net(lambda m, x: m.table(x).mean(1), table=nn.Embedding(10, 6, sparse=True)),
        TOKENS,
    ),
    "lists and dicts of parameters": (
        lambda: Net(
            steps,
            weights=nn.ParameterList([numbers(6, 6) for _ in "123"]),
            more=nn.ParameterDict({"bias": numbers(6)}),
        ),
        NUMBERS,
    ),
    "complex numbers of two parts": (
        lambda: Net(complex_product, weight=numbers(6, 6, 2)),
        NUMBERS,
    ),
    "an adapter of one's own": (
        lambda: Net(adapted, plain=frozen(nn.Linear(6, 6)), down=numbers(2, 6), up=numbers(6, 2)),
        NUMBERS,
    ),
    "prototypes": (Prototypes, NUMBERS),
    "a bilinear layer": (
        lambda: Net(lambda m, x: m.layer(x[:, :3], x[:, 3:]), layer=nn.Bilinear(3, 3, 6)),
        NUMBERS,
    ),
    "a cell": (
        lambda: Net(lambda m, x: m.cell(x[:, 1], m.cell(x[:, 0])), cell=nn.GRUCell(6, 6)),
        SERIES,
    ),
    "a whole transformer": (
        lambda: Net(
            lambda m, x: m.layer(x, x).mean(1),
            layer=nn.Transformer(6, 2, 1, 1, 8, 0.0, batch_first=True),
        ),
        SERIES,
    ),
    "a spectral norm in eval mode": (
        lambda: Net(
            lambda m, x: m.layer(x), layer=parametrizations.spectral_norm(nn.Linear(6, 6))
        ).eval(),
        NUMBERS,
    ),
}
"""Models, and what they read."""


def one_by_one(model, inputs, targets, clip_norm):
    """Return the mean of clipped gradients, each of one example by autograd."""
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    total = {name: torch.zeros_like(each) for name, each in named.items()}
    for i in range(len(inputs)):
        loss = cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1])
        found = torch.autograd.grad(loss, [*named.values()], materialize_grads=True)
        found = [each.to_dense() for each in found]
        norm = torch.stack([each.square().sum() for each in found]).sum().sqrt()
        for name, each in zip(named, found, strict=True):
            total[name] += each * min(1.0, clip_norm / float(norm))
    return {name: each / len(inputs) for name, each in total.items()}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("clip_norm", few([1e-3, 1e6], [1e-3]))
def test_every_example_has_the_gradient_that_it_has_alone(name, clip_norm):
    make, inputs = RIGHT[name]
    torch.manual_seed(1)
    model = make().double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    given = examples_of((inputs, TARGETS), "train")
    task = task_of(given, given, num_classes=3, delta=1e-3, dataset_size=24)
    method = DPSGD("all", "")
    assert check_model(model, method.trainable(model), task, CPU) is None
    alone = one_by_one(copy.deepcopy(model), inputs, TARGETS, clip_norm)
    state = method.start(model)
    mechanism = whole_batch(24, method.releases(state, clip_norm))
    with PrivateGradient(model, method, mechanism, Ranks(0, 1, CPU), 5) as gradient:
        found = gradient(state, given, 0).gradients
    largest = max(float(each.abs().max()) for each in alone.values())
    assert found.keys() == alone.keys()
    for each in alone:
        assert float((found[each] - alone[each]).abs().max()) <= 1e-10 * largest, each


def linear(dtype=torch.float32):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def own_count():
    def use(m, x):
        m.calls += m.training
        return x @ torch.diag(m.weight)

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = numbers(6)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            return use(self, x)

    return nn.Sequential(Counting(), nn.Linear(6, 3))


REFUSED = {
    "spectral norm": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)),
        NUMBERS,
        r"Take torch.nn.utils.parametrizations.weight_norm .*, or hand over the model in eval mode",
    ),
    "a buffer that counts": (
        own_count,
        NUMBERS,
        "its buffer 'calls': .* Hold the buffer fixed, .* or freeze the layer",
    ),
    "a bag with offsets": (lambda: bag(with_offsets), TOKENS, "Give it a row an example"),
    "a sparse bag": (lambda: bag(mode="sum", sparse=True), TOKENS, "table has sparse=True. Leave"),
    "a bag by frequency": (
        lambda: bag(scale_grad_by_freq=True),
        TOKENS,
        "table has scale_grad_by_freq, .* Leave it out",
    ),
    "a table by frequency": (
        lambda: Net(lambda m, x: m.table(x).mean(1), table=nn.Embedding(10, 6, 0, None, 2.0, True)),
        TOKENS,
        "table has scale_grad_by_freq, .* Leave it out",
    ),
    "complex weights": (
        lambda: Net(
            lambda m, x: m.layer(x.to(torch.cfloat)).abs(),
            layer=nn.Linear(6, 6, dtype=torch.cfloat),
        ),
        NUMBERS,
        "layer.weight is in torch.complex64. Hold its real and imaginary parts as two parameters",
    ),
    "a half model": (lambda: linear(torch.float16), NUMBERS, r"Pass model.float\(\), and inputs"),
    "a double model": (lambda: linear(torch.float64), NUMBERS, "or a model in float32"),
    "double inputs": (linear, NUMBERS.double(), "that precision, or a model in float64"),
    "half inputs": (linear, NUMBERS.half(), r"It is in torch.float32. .* in that precision\.$"),
    "whole inputs": (linear, TOKENS.repeat(1, 2)[:, :6], "Pass floats if it takes numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_train_is_refused_with_what_to_do_instead(name, tmp_path):
    make, inputs, said = REFUSED[name]
    parts = (inputs, TARGETS), (inputs[:8], TARGETS[:8])
    with pytest.raises(ConfigError, match=said) as refused:
        dpexp.train(
            make(), *parts, eps=8, epochs=1, batch_size=8, lr=0.1, results=tmp_path, device="cpu"
        )
    assert "\n" not in str(refused.value) and not [*tmp_path.rglob("result.json")]


def test_a_frozen_table_may_have_any_options(tmp_path):
    """A method that leaves tables as they are takes no gradient of them."""
    model = bag(with_offsets, sparse=True, mode="sum")
    model.table.requires_grad_(False)
    parts = (TOKENS, TARGETS), (TOKENS[:8].flip(1), TARGETS[:8])
    run = dpexp.train(
        model, *parts, eps=8, epochs=1, batch_size=8, lr=0.1, results=tmp_path, device="cpu"
    )
    assert "table.weight" in run.certificate["frozen"] and run.epsilon <= 8
