"""What a model computes is hashed, so that no look-up answers with another model's run."""

import importlib
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp.models.architecture import code_digest


def scaled(factor):
    return lambda x: x * factor


def network(*, held=None, level=1.0, default=1, is_frozen=False, buffer=None, hook=None):
    class Network(nn.Module):
        scale = level

        def __init__(self):
            super().__init__()
            self.held, self.layer = held, nn.Linear(3, 2)
            if buffer is not None:
                self.register_buffer("mask", buffer, persistent=False)

        def forward(self, x, factor=default):
            return self.layer(x) * factor

    torch.manual_seed(0)
    model = Network()
    model.layer.weight.requires_grad_(not is_frozen)
    if hook is not None:
        model.layer.register_forward_hook(hook)
    return model


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"held": F.relu}, {"held": F.gelu}),
        ({"held": torch.tanh}, {"held": torch.sin}),
        ({"held": lambda x: x * 2}, {"held": lambda x: x * 3}),
        ({"held": scaled(1)}, {"held": scaled(2)}),
        ({"held": scaled(torch.ones(2))}, {"held": scaled(torch.zeros(2))}),
        ({"held": torch.ones(2)}, {"held": torch.zeros(2)}),
        ({"held": np.ones(2)}, {"held": np.zeros(2)}),
        ({"held": {"ü": [torch.ones(2)]}}, {"held": {"ü": [torch.zeros(2)]}}),
        ({"level": 1.0}, {"level": 2.0}),
        ({"default": 1}, {"default": 2}),
        ({"is_frozen": True}, {}),
        ({"buffer": torch.ones(2)}, {"buffer": torch.zeros(2)}),
        ({"hook": lambda m, i, o: o}, {"hook": lambda m, i, o: o * 2}),
    ],
)
def test_what_computes_another_thing_has_another_hash(one, other):
    assert code_digest(network(**one)) == code_digest(network(**one))
    assert code_digest(network(**one)) != code_digest(network(**other))


def test_a_model_that_holds_itself_or_a_recursive_function_has_a_hash():
    def again(x):
        return again(x) if x else x

    held = [again]
    held.append(held)
    model = network(held=held)
    assert code_digest(model) == code_digest(model)


def test_the_order_of_a_set_does_not_count():
    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert repr(one) != repr(other)  # as those of words are in two processes
    assert code_digest(network(level=one)) == code_digest(network(level=other))
    assert code_digest(network(level=(one,))) == code_digest(network(level=(other,)))


MODULE = """
import math
from torch import nn
import beside_here
from beside_here import Gate, halved as half

LEVEL = {level}
UNUSED = {unused}

def scaled(x):
    return helped(x) if LEVEL else x

def helped(x):
    return x * math.pi ** {power}

class Net(nn.Linear):
    def forward(self, x):
        x = [super(Net, self).forward(scaled(each)) for each in x]
        return Gate()(half(x[0])) + beside_here.late(x[0])
"""
BESIDE = """
class Gate:
    def __call__(self, x):
        return x * {gate}

def halved(x):
    return x / {half}

def late(x):
    return later(x)

def later(x):
    return late(x) if x is None else x - {late}

def unused(x):
    return x * {unused}
"""
SAME = {"level": 1, "unused": 0, "power": 1, "gate": 1, "half": 2, "late": 0}


def of_files(folder, monkeypatch, **numbers):
    """Return the hash of a model of the user's own files, which hold these numbers."""
    texts = {"beside_here": BESIDE, "own_arch_here": MODULE}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text.format(**SAME | numbers))
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.syspath_prepend(folder)
        torch.manual_seed(0)
        found = code_digest(importlib.import_module("own_arch_here").Net(2, 2))
    for name in texts:
        del sys.modules[name]
    return found


@pytest.mark.parametrize("name", SAME)
def test_what_a_models_code_names_in_its_own_files_counts(tmp_path, monkeypatch, name):
    before = of_files(tmp_path, monkeypatch)
    assert of_files(tmp_path, monkeypatch) == before
    assert (of_files(tmp_path, monkeypatch, **{name: 7}) != before) == (name != "unused")
