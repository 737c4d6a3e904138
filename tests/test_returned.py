"""What a method outside the repository returns is checked: a mistake in it is one line."""

import re
from dataclasses import replace

import pytest
import torch

from dpexp.attacks.soundness import check
from dpexp.cli.building import make_method
from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.methods.dpsgd import DPSGD
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train import train
from dpexp.types import ConfigError, Method, Release
from tests.marks import long
from tests.steps import ALONE, Setting, composed

SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3"]


class Compressing(DPSGD):
    """Returns releases that `change` has changed."""

    def __init__(self, change):
        super().__init__("all", "")
        self.change = change

    def compress(self, state, sums):
        return self.change(dict(sums))


class Reconstructing(Compressing):
    """Returns gradients and a state that `change` has changed."""

    def compress(self, state, sums):
        return sums

    def reconstruct(self, state, noisy):
        return self.change(*super().reconstruct(state, noisy))


def step(method, *words):
    setting = Setting(composed("dpsgd", *words))
    with PrivateGradient(setting.model, method, setting.mechanism, ALONE, 40) as gradient:
        return gradient(method.start(setting.model), setting.examples, 0)


def first(change):
    """Change the first of a dictionary's values."""

    def changed(values, *rest):
        key = next(iter(values))
        values = {**values, key: change(values[key])}
        return (values, *rest) if rest else values

    return changed


def without(values, *rest):
    values = dict(list(values.items())[1:])
    return (values, *rest) if rest else values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (first(lambda block: block.int()), "float32 or float64; got int32"),
        (first(lambda block: block.half()), "got float16"),
        (first(lambda block: block.tolist()), "got list"),
        (first(lambda block: block[:1]), "as `releases` declares"),
        (without, "as `releases` declares"),
        (lambda sums: {"ü": sums.popitem()[1]}, "blocks of the releases gradient; got 'ü'"),
        (lambda sums: None, "got NoneType"),
    ],
)
def test_releases_that_are_not_as_declared_are_one_line(change, said):
    with pytest.raises(ConfigError, match=said) as refused:
        step(Compressing(change))
    assert "`compress`" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (first(lambda gradient: gradient[:1]), "of shape"),
        (first(lambda gradient: gradient.double()), "in float32; got float64"),
        (first(lambda gradient: None), "got NoneType"),
        (without, "for every trainable parameter"),
        (lambda gradients, state: ({**gradients, "é": torch.zeros(1)}, state), "got é"),
        (lambda gradients, state: gradients, "next state; got dict"),
        (lambda gradients, state: (gradients, None), "got dict and NoneType"),
    ],
)
def test_gradients_that_do_not_fit_the_parameters_are_one_line(change, said):
    with pytest.raises(ConfigError, match=said) as refused:
        step(Reconstructing(change))
    assert "`reconstruct`" in str(refused.value) and "\n" not in str(refused.value)


def materialized(change):
    def changed(blocks):
        return {key: change(block.materialize()) for key, block in blocks.items()}

    return changed


class Taking(Compressing):
    """Returns blocks that `change` has changed."""

    def compress(self, state, sums):
        return sums

    def per_example_grads(self, state, layer, layer_grads):
        return self.change(super().per_example_grads(state, layer, layer_grads))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda blocks: None, "per-example gradients for each block by its Key; got NoneType"),
        (lambda blocks: {"ü": [*blocks.values()][0]}, "by its Key; got 'ü'"),
        (materialized(lambda block: block), r"as MaterializedGrads\(tensor\) of .* tensor itself"),
        (materialized(lambda block: block.tolist()), "as per-example gradients; got list"),
        (
            materialized(lambda block: MaterializedGrads(block.mean(0, keepdim=True))),
            "a row for each of 40 examples; got 1",
        ),
        (
            materialized(lambda block: MaterializedGrads(torch.cat([block, block]))),
            "a row for each of 40 examples; got 80",
        ),
    ],
)
def test_blocks_that_are_not_each_examples_are_one_line(change, said):
    """A mean over the batch was clipped as if it were one example's gradient."""
    with pytest.raises(ConfigError, match=said) as refused:
        step(Taking(change))
    assert "`per_example_grads`" in str(refused.value) and "\n" not in str(refused.value)


def test_blocks_of_different_numbers_of_examples_are_one_line():
    def mean_of_biases(blocks):
        return {
            key: MaterializedGrads(block.materialize().mean(0, keepdim=True))
            if key.parameter.endswith("bias")
            else block
            for key, block in blocks.items()
        }

    with pytest.raises(ConfigError, match="a row for each of 40 examples; got 1"):
        step(Taking(mean_of_biases), "model=cnn", "model.channels=[4,8]", "model.kernel=3")


class Declaring(DPSGD):
    """Returns something else at one step of a method."""

    def __init__(self, name, found):
        super().__init__("all", "")
        setattr(self, name, lambda *_: found)


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        ("start", None, "a state, a dictionary; got NoneType"),
        ("prepare", None, "a state, a dictionary; got NoneType"),
        ("release_shapes", {"a": (1,)}, "a shape for each block by its Key; got 'a' of tuple"),
        ("releases", Release("gradient", 3, 1.0), "a tuple of Release; got Release"),
        ("releases", (1.0,), "a tuple of Release; got one with a float"),
    ],
)
def test_a_declaration_of_another_kind_is_one_line(name, found, said, tmp_path):
    config = composed("dpsgd")
    parts = replace(Setting(config).parts, method=Declaring(name, found))
    findings = check(parts, 1.0, tries=0, climbs=0).findings
    assert any(re.search(said, each) and f"`{name}`" in each for each in findings)
    with pytest.raises(ConfigError, match=said) as refused:
        train({**config, "results": str(tmp_path)}, parts, ALONE)
    assert f"`{name}`" in str(refused.value) and "\n" not in str(refused.value)


class Half(Method):
    """Lacks steps."""

    def trainable(self, model):
        return ()


def test_a_method_that_lacks_a_step_is_one_line():
    config = {"method": {"_target_": f"{__name__}.Half", "name": "half"}}
    with pytest.raises(ConfigError, match="lacks start, per_example_grads, .*reconstruct"):
        make_method(config)


class Counting(DPSGD):
    """Counts its steps outside of its state."""

    steps = 0

    def reconstruct(self, state, noisy):
        self.steps += 1
        gradients, state = super().reconstruct(state, noisy)
        return {name: each / self.steps for name, each in gradients.items()}, state


@pytest.mark.parametrize(("kind", "is_found"), [(Counting, True), long(DPSGD, False)])
def test_a_method_that_counts_outside_of_its_state_is_found(kind, is_found):
    parts = replace(Setting(composed("dpsgd", *SMALL)).parts, method=kind("all", ""))
    findings = check(parts, 1.0, tries=0, climbs=0, steps=4).findings
    assert any("more than the state" in each for each in findings) == is_found


class Keeping(DPSGD):
    """Keeps something on itself at the first step, and reads it from the third on."""

    def start(self, model):
        return {**super().start(model), "at": 0}

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        if state["at"] == 0:
            self.factor = 1.0
        factor = self.factor if state["at"] > 1 else 1.0
        scaled = {name: factor * each for name, each in gradients.items()}
        return scaled, {**state, "at": state["at"] + 1}


def test_a_method_that_cannot_go_on_is_found():
    parts = replace(Setting(composed("dpsgd", *SMALL)).parts, method=Keeping("all", ""))
    findings = check(parts, 1.0, tries=0, climbs=0, steps=4).findings
    assert any("fails where a run goes on (AttributeError" in each for each in findings), findings


def test_a_gradient_that_is_not_a_number_is_found():
    parts = Setting(composed("dpsgd", *SMALL)).parts
    method = Reconstructing(first(lambda gradient: gradient * float("nan")))
    findings = check(replace(parts, method=method), 1.0, tries=0, climbs=0, steps=4).findings
    assert any("not finite" in each for each in findings)
