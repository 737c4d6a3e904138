"""What a model's author froze stays frozen, whatever the method."""

from dataclasses import replace

import pytest
import torch

from dpexp import cli, records
from dpexp.grad_sample import Tape
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.selection import one_release
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train import make_mechanism, train
from dpexp.types import ConfigError, Key
from tests.runs import of
from tests.steps import ALONE, CPU, composed

LEFT = ("conv2.weight", "conv1.bias", "head.bias")


def parts_of(method, *frozen):
    rank = ["method.rank=4"] if method.endswith("powersgd") else []
    config = composed(method, "model=cnn", *rank)
    parts = cli.build_parts(config, CPU)
    for name, weight in parts.model.named_parameters():
        weight.requires_grad_(name not in frozen)
    return config, parts


@pytest.mark.parametrize("method", ["dpsgd", "rgp", "linear"])
def test_a_classifier_that_is_frozen_whole_is_said(method):
    _, parts = parts_of(method, "head.weight", "head.bias")
    if method == "dpsgd":
        assert "head.weight" not in parts.method.trainable(parts.model)
        return
    with pytest.raises(ConfigError, match="classifier 'head' to train; all of its parameters"):
        parts.method.trainable(parts.model)


def test_the_certificate_lists_it_and_the_weights_stay(tmp_path):
    config, parts = parts_of("dpsgd", *LEFT)
    config = {**config, "results": str(tmp_path), "epochs": 0.1}
    before = {name: parts.model.get_parameter(name).clone() for name in LEFT}
    train(config, parts, ALONE)
    _, _, privacy = of(records.locate(tmp_path, config))
    assert set(privacy["frozen"]) == {*LEFT} and not {*LEFT} & set(privacy["trainable"])
    assert all(torch.equal(parts.model.get_parameter(name), before[name]) for name in LEFT)


class Greedy(DPSGD):
    """Trains what it likes."""

    def trainable(self, model):
        return tuple(name for name, _ in model.named_parameters())


def test_a_method_of_ones_own_is_held_to_it():
    _, parts = parts_of("dpsgd", *LEFT)
    names = Greedy("all", "head").trainable(parts.model)
    with pytest.raises(ConfigError, match="it trains 'conv1.bias', whose requires_grad is False"):
        Tape(parts.model, names, lambda *_: None)


class Forgetful(DPSGD):
    """Declares a block that it does not return, or returns one that it does not declare."""

    def release_shapes(self, state):
        return {**super().release_shapes(state), **dict.fromkeys(self.more, (2,))}

    def per_example_grads(self, state, layer, layer_grads):
        return {
            key: c
            for key, c in super().per_example_grads(state, layer, layer_grads).items()
            if key != self.lost
        }

    def releases(self, state, clip_norm):
        return one_release("gradient", self.release_shapes(state), clip_norm)

    def reconstruct(self, state, noisy):
        return {name: torch.zeros(shape) for name, shape in state["shapes"].items()}, state


@pytest.mark.parametrize(
    ("more", "lost", "said"),
    [
        ([Key("gradient", "ghost")], None, "every block that the method releases; ghost got none"),
        ([], Key("gradient", "conv1.bias"), "releases; conv1.bias got none"),
    ],
)
def test_a_declared_block_without_a_gradient_is_named_and_nothing_is_released(more, lost, said):
    config, parts = parts_of("dpsgd")
    method = Forgetful("all", "head")
    method.more, method.lost = more, lost
    state = method.start(parts.model)
    mechanism = make_mechanism(config, parts.task.dataset_size, method, state, ALONE)
    with PrivateGradient(parts.model, method, mechanism, ALONE, 40) as gradient:
        with pytest.raises(ConfigError, match=said):
            gradient(state, parts.task.train, 0)
    empty = replace(mechanism, batch_size=1e-12)
    with PrivateGradient(parts.model, method, empty, ALONE, 40) as gradient:
        assert gradient(state, parts.task.train, 0).examples == 0  # an empty draw has none to give
