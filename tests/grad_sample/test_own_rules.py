"""Rules that a user registers for layers of their own: what they give, and what is refused."""

import json
import os
import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import dpexp
from dpexp import cli, grad_sample, records
from dpexp.grad_sample import Tape
from dpexp.methods.dpsgd import DPSGD
from dpexp.privacy.verification.record import verify_record
from dpexp.types import ConfigError
from tests.grad_sample.test_rules import assert_rule_holds, hooked, per_example_by_torch_func
from tests.marks import some_long
from tests.runs import own_model
from tests.steps import sums_of

CODE = '''
"""Layers of a user's own, their rules, and a model of them."""

import torch
from torch import nn

from dpexp import grad_sample


class Scaled(nn.Linear):
    """A linear layer whose weight is scaled by its number of inputs."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight / self.in_features**0.5, self.bias)


@grad_sample.rule(Scaled)
def scaled(layer, x, dh):
    weight = torch.einsum("n...p,n...d->npd", dh, x) / layer.in_features**0.5
    return {"weight": weight, "bias": dh.flatten(1, -2).sum(1) if dh.ndim > 2 else dh}


class Bend(nn.Module):
    """Two parameters: y = tanh(gain x + shift), by coordinate."""

    def __init__(self, size):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return torch.tanh(self.gain * x + self.shift)


@grad_sample.rule(Bend, parameters=("gain", "shift"))
def bend(layer, x, dh):
    inner = dh * (1 - layer(x).square())
    return {"gain": inner * x, "shift": inner}


class Net(nn.Module):
    """Images through both of them."""

    def __init__(self, input_shape, num_classes, hidden):
        super().__init__()
        self.first = Scaled(torch.Size(input_shape).numel(), hidden)
        self.bend = Bend(hidden)
        self.head = Scaled(hidden, num_classes, bias=False)

    def forward(self, x):
        return self.head(self.bend(self.first(x.flatten(1))))
'''
YAML = "_target_: {module}.Net\nname: mine\nhead: head\nhidden: 12\n"


@dataclass
class Brought:
    module: object
    word: str


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A user's file and YAML, in folders of their own."""
    root, name = tmp_path_factory.mktemp("brought"), f"layers_{os.getpid()}"
    with own_model(root, name, CODE, YAML) as word:
        yield Brought(__import__(name), word)


def images(n, *shape):
    return torch.randn(n, *shape, dtype=torch.float64)


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("kind", ["scaled", "without bias", "at positions", "two parameters"])
def test_per_example_gradients_are_torch_funcs(brought, kind, n):
    torch.manual_seed(n)
    layer, shape = {
        "scaled": (brought.module.Scaled(4, 3), (4,)),
        "without bias": (brought.module.Scaled(4, 3, bias=False), (4,)),
        "at positions": (brought.module.Scaled(4, 3), (6, 4)),
        "two parameters": (brought.module.Bend(4), (4,)),
    }[kind]
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    if n:
        assert_rule_holds(layer, images(n, *shape), n, (per_example_by_torch_func,))
    else:
        x = images(0, *shape)
        layer_grads = hooked(layer.double(), x, torch.zeros_like(layer(x)))
        for name, parameter in layer.named_parameters():
            assert layer_grads.gradient(name).materialize().shape == (0, *parameter.shape)


def test_a_factor_before_the_clip_is_on_every_gradient(brought):
    layer, x = brought.module.Bend(4).double(), images(3, 4)
    layer_grads = hooked(layer, x, images(3, 4))
    for name in ("gain", "shift"):
        once, thrice = (
            layer_grads.gradient(name).materialize(),
            layer_grads.scaled(3.0).gradient(name).materialize(),
        )
        torch.testing.assert_close(thrice, 3 * once)


def test_the_clipped_sum_is_that_of_torch_funcs_gradients(brought):
    torch.manual_seed(0)
    model = brought.module.Net((1, 4, 4), 3, 6).double()
    x, y, clip_norm = images(7, 1, 4, 4), torch.arange(7) % 3, 0.3
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, x_i, y_i):
        return nn.functional.cross_entropy(functional_call(model, weights, (x_i[None],)), y_i[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    norms = sum(g.flatten(1).square().sum(1) for g in each.values()).sqrt()
    shares = (clip_norm / norms).clamp(max=1.0)
    assert (shares < 1).any()
    released, outcome = sums_of(model, DPSGD("all", "head"), x, y, clip_norm, micro_batch=3)
    assert {key.parameter for key in released} == set(each)
    for key, block in released.items():
        expected = torch.tensordot(shares, each[key.parameter], dims=1)
        torch.testing.assert_close(block.view_as(expected), expected, rtol=1e-6, atol=1e-9)


EVERYTHING = {"first.weight", "first.bias", "bend.gain", "bend.shift", "head.weight"}
MATRICES = {"first.weight", "head.weight"}
TRAINED = {
    "dpsgd": (EVERYTHING, []),
    "sparse_dpsgd": (EVERYTHING, []),
    "dp_powersgd": (EVERYTHING, ["method.rank=2"]),
    "gep": (EVERYTHING, ["method.m=20", "method.k=8"]),
    "rgp": (MATRICES, ["method.rank=2"]),
    "lsg": (MATRICES, ["method.rank=2"]),
}


@pytest.mark.parametrize("method", some_long(TRAINED, ["dpsgd", "dp_powersgd", "rgp", "gep"]))
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_such_layers_trains_privately_end_to_end(brought, tmp_path, method):
    trained, own = TRAINED[method]
    words = [brought.word, f"method={method}", "model=mine", "task=digits", "profile=embedded"]
    words += ["batch_size=200", "micro_batch=64", "epochs=1", "eps=8", "device=cpu"]
    words += ["privacy.clip_norm=0.01", *own]
    record = records.read(cli.execute(cli.compose([*words, f"results={tmp_path}"])))
    found = verify_record(record)
    assert found.findings == () and 7 < found.epsilon <= 8
    assert set(record.privacy["trainable"]) == trained
    assert set(record.privacy["frozen"]) == EVERYTHING - trained
    last = record.metrics[-1]
    assert last["nonfinite"] == 0 and last["clip_fraction"] > 0.9


def test_the_pages_example_is_a_rule_that_holds():
    text = (cli.CONF.parent / "docs" / "models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (example,) = (block for block in blocks if "@grad_sample.rule" in block)
    theirs = {"__name__": "theirs"}
    exec(example, theirs)
    torch.manual_seed(0)
    assert_rule_holds(theirs["Scaled"](3, 2), images(5, 3), 0, (per_example_by_torch_func,))


# What is refused


def refused(model, parameters=None):
    with pytest.raises(ConfigError) as told:
        Tape(model, parameters or [name for name, _ in model.named_parameters()], lambda *_: None)
    return str(told.value)


def once(model, *inputs):
    caught = {}
    with Tape(model, [name for name, _ in model.named_parameters()], caught.__setitem__) as tape:
        tape.expect(len(inputs[0]))
        tape.backward(model(*inputs).sum())
    return caught


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.weight * x


def kind():
    """Return a type of layer that no test has registered a rule for."""
    return type("Fresh", (Plain,), {})


def by_the_book(layer, x, dh):
    return {"weight": x * dh}


def test_a_rule_holds_for_its_type_and_for_no_subclass():
    parent = kind()
    child = type("Child", (parent,), {"forward": lambda self, x: 3 * self.weight * x})
    grad_sample.rule(parent)(by_the_book)
    x = torch.ones(4, 2)
    assert (
        once(nn.Sequential(parent()), x)["0"].gradient("weight").materialize().tolist()
        == x.tolist()
    )
    each = once(nn.Sequential(child()), x)["0"].gradient("weight").materialize()
    assert each.tolist() == (3 * x).tolist()  # by torch.func, not by its parent's rule

    grad_sample.rule(child)(lambda layer, x, dh: {"weight": 3 * x * dh})
    layer_grads = once(nn.Sequential(child()), x)["0"]
    assert layer_grads.gradient("weight").materialize().tolist() == (3 * x).tolist()


def test_a_subclass_may_register_its_parents_rule():
    class Initialised(nn.Linear):
        pass

    grad_sample.rule(Initialised)(grad_sample.rule_of(nn.Linear))
    assert once(nn.Sequential(Initialised(2, 2)), torch.ones(3, 2))["0"].parameters == (
        "weight",
        "bias",
    )
    with pytest.raises(ConfigError, match="Bilinear has none"):
        grad_sample.rule_of(nn.Bilinear)


def test_a_second_rule_for_a_type_is_refused_and_the_first_one_stays():
    fresh, other = kind(), kind()
    assert grad_sample.rule(fresh)(by_the_book) is by_the_book
    with pytest.raises(ConfigError, match=r"one rule for a type .*; Fresh has .*by_the_book"):
        grad_sample.rule(other, fresh)(lambda layer, x, dh: {})
    assert grad_sample.rule_of(fresh) is by_the_book
    with pytest.raises(ConfigError):  # nothing of what was refused is registered
        grad_sample.rule_of(other)
    with pytest.raises(ConfigError, match=r"Linear has dpexp\.grad_sample\.linear\.LinearGrads"):
        grad_sample.rule(nn.Linear)(by_the_book)


@pytest.mark.parametrize("wrong", [by_the_book, "Linear", int])
def test_what_is_no_type_of_module_takes_no_rule(wrong):
    with pytest.raises(ConfigError, match=r"as in @rule\(MyLayer\)"):
        grad_sample.rule(wrong)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda layer, x, dh: {}, "got none"),
        (lambda layer, x, dh: {"wieght": x * dh}, "got none"),
        (lambda layer, x, dh: {"weight": (x * dh).sum(0)}, r"got shape \[2\]"),
        (lambda layer, x, dh: {"weight": (x * dh).T}, r"got shape \[2, 3\]"),
    ],
    ids=["nothing", "another name", "a batch's gradient", "turned"],
)
def test_a_rule_that_gives_no_gradient_of_each_example_is_refused(function, got):
    fresh = kind()
    grad_sample.rule(fresh)(function)
    with pytest.raises(ConfigError, match=r"rule for Fresh .* of shape \[3, 2\]; " + got):
        once(nn.Sequential(fresh()), torch.ones(3, 2))


def test_a_parameter_that_a_rule_was_not_registered_for_is_taken_by_torch_func():
    fresh = type("Shifted", (Plain,), {"forward": lambda self, x: self.weight * x + self.shift})
    grad_sample.rule(fresh)(lambda layer, x, dh: {"weight": 0 * x})  # wrong, and not asked
    layer = fresh()
    layer.register_parameter("shift", nn.Parameter(torch.zeros(2)))
    x = torch.randn(4, 2)
    found = once(nn.Sequential(layer), x)["0"]
    assert found.gradient("weight").materialize().tolist() == x.tolist()
    assert found.gradient("shift").materialize().tolist() == torch.ones(4, 2).tolist()


@pytest.mark.parametrize("wrong", ["two inputs", "a tuple", "an option"])
def test_a_layer_takes_one_tensor_and_gives_one(wrong):
    forward = {
        "two inputs": lambda self, x, y: self.weight * x * y,
        "a tuple": lambda self, x: (self.weight * x, x),
        "an option": lambda self, x, scale: self.weight * x * scale,
    }[wrong]
    kind_of_it = type("Odd", (Plain,), {"forward": forward})
    grad_sample.rule(kind_of_it)(by_the_book)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = kind_of_it()

        def forward(self, x):
            more = {"two inputs": [x], "an option": [2.0], "a tuple": []}[wrong]
            given = self.odd(x, *more)
            return given[0] if wrong == "a tuple" else given

    with pytest.raises(ConfigError, match="layer 'odd' to take one tensor and return one"):
        once(Model(), torch.ones(3, 2))


def out_of_memory(layer, x, dh):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda layer, x, dh: 1 / 0, "got ZeroDivisionError: division by zero"),
        (lambda layer, x, dh: {"weight": torch.einsum("nij,nij->nij", x, dh)}, "got RuntimeError"),
        (lambda layer, x, dh: (x * dh,), "got a tuple"),
        (lambda layer, x, dh: None, "got a NoneType"),
        (lambda layer, x, dh: {"weight": (x * dh).tolist()}, "got a dict of other things"),
        (lambda layer, x, dh: {"weight": (x * dh).cfloat()}, "got a dict of other things"),
    ],
    ids=["fails", "of other shapes", "a tuple", "nothing", "lists", "complex"],
)
def test_a_rule_that_fails_is_named_with_its_layer_and_shapes(function, got):
    fresh = kind()
    grad_sample.rule(fresh)(function)
    says = r"rule for Fresh .* layer '0' with inputs \[3, 2\] and output gradients \[3, 2\]; "
    with pytest.raises(ConfigError, match=says + got):
        once(nn.Sequential(fresh()), torch.ones(3, 2))


def test_a_rule_that_runs_out_of_memory_says_so_itself():
    """Then fewer examples are taken at once."""
    fresh = kind()
    grad_sample.rule(fresh)(out_of_memory)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        once(nn.Sequential(fresh()), torch.ones(3, 2))


@pytest.mark.parametrize("rest", [0, 1])
@pytest.mark.parametrize("at", [0, 4])
def test_a_rule_that_errs_on_two_examples_of_a_larger_batch_is_found_out(at, rest, tmp_path):
    """What it adds to one it takes from another: their sum is right, and neither is its own."""
    fresh = kind()

    def errs(layer, x, dh):
        each = x * dh
        if len(each) > 2 and len(each) % 2 == rest:
            aside = torch.zeros(len(each), 1).to(each)
            aside[at % len(each)], aside[(at + 1) % len(each)] = 5, -5
            each = each + aside
        return {"weight": each}

    grad_sample.rule(fresh)(errs)
    model = nn.Sequential(fresh(), nn.Linear(2, 3))
    data = torch.randn(12, 2), torch.arange(12) % 3
    settings = {"method": "dpsgd", "eps": 8, "epochs": 1, "batch_size": 6, "lr": 0.1}
    with pytest.raises(ConfigError, match=r"rule for Fresh .* '0.weight' .* in its batch"):
        dpexp.train(model, data, data, results=tmp_path, **settings)


def test_a_wrong_rule_is_found_out_before_the_first_step(brought, tmp_path, monkeypatch):
    """What the hooks take must add up to autograd's gradients (`dpexp.training.probing`)."""
    wrong = type("Wrong", (brought.module.Scaled,), {})
    grad_sample.rule(wrong)(
        lambda layer, x, dh: {"weight": torch.einsum("np,nd->npd", dh, x), "bias": dh}
    )
    monkeypatch.setattr(brought.module, "Scaled", wrong)
    words = [brought.word, "method=dpsgd", "model=mine", "task=digits", "profile=embedded"]
    config = cli.compose([*words, "epochs=1", "device=cpu", f"results={tmp_path}"])
    with pytest.raises(ConfigError, match=r"first|head"):
        cli.execute(config)
    assert not [*tmp_path.rglob("result.json")], json.dumps(config)
