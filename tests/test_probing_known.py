"""A network of ours is tried once in a process, unless something was done to it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpexp import cli
from dpexp.grad_sample import rules, shared_inputs
from dpexp.grad_sample.hooking import hook_at_parent, hooked_at_parent
from dpexp.models.cnn import CNN
from dpexp.training.probing import check, known
from dpexp.training.probing.made_up import make_up
from dpexp.training.train import first_look
from dpexp.types import ConfigError
from tests.marks import long
from tests.steps import CPU, composed


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(known, "_FOUND", {})


def built(*words):
    return cli.build_parts(composed("dpsgd", "model=cnn", *words), CPU)


def test_a_network_of_ours_is_tried_once(monkeypatch):
    assert first_look(built(), CPU) is None
    monkeypatch.setattr(check, "_tried", None)
    assert first_look(built("seed=1"), CPU) is None


def test_the_next_one_is_hooked_as_the_first(monkeypatch):
    first, second = built(), built("seed=1")
    hook_at_parent(first.model, "head")  # as the check does with what is not called on examples
    for each in (first, second):
        assert first_look(each, CPU) is None
        monkeypatch.setattr(check, "_tried", None)
    assert hooked_at_parent(second.model) == hooked_at_parent(first.model) == {"head"}


@pytest.mark.parametrize(
    "words", [(), long(("task=sentiment", "model=bert_tiny"))], ids=["images", "texts"]
)
def test_what_its_trial_saw_of_inputs_is_known_of_the_next_one(words, monkeypatch):
    first, second = built(*words), built(*words, "seed=1")
    with shared_inputs.trial():  # as where a module has positions beside its examples
        shared_inputs.example_inputs(first.model.head, [torch.zeros(4, 1), torch.zeros(3, 1)], 4)
        shared_inputs.require_tried_once_for_all("head", first.model.head)
    for each in (first, second):
        assert first_look(each, CPU) is None
        monkeypatch.setattr(check, "_tried", None)
    seen = shared_inputs.seen_in(first.model)
    assert shared_inputs.seen_in(second.model) == seen and any(each.tried for each in seen.values())
    assert seen["head"].shared == {1} and seen["head"].is_repeated


def mixed(x):
    return x - x.mean(0)


def in_a_hook(parts, monkeypatch):
    parts.model.head.register_forward_pre_hook(lambda module, inputs: mixed(inputs[0]))


def in_a_hook_of_all(parts, monkeypatch):
    def before(module, inputs):
        return mixed(inputs[0]) if isinstance(module, nn.Linear) else None

    own = nn.modules.module._global_forward_pre_hooks  # what register_... fills
    monkeypatch.setattr(nn.modules.module, "_global_forward_pre_hooks", {**own, -1: before})


def in_an_instance(parts, monkeypatch):
    own = parts.model.head.forward
    parts.model.head.forward = lambda x: own(mixed(x))


def in_a_class(parts, monkeypatch):
    own = CNN.forward
    monkeypatch.setattr(CNN, "forward", lambda self, x: own(self, mixed(x)))


def in_a_part(parts, monkeypatch):
    parts.model.head = nn.Sequential(parts.model.head, nn.BatchNorm1d(10, affine=False))


def in_a_weights_hook(parts, monkeypatch):
    parts.model.head.weight.register_hook(lambda gradient: 2 * gradient)


def in_what_the_loss_calls(parts, monkeypatch):
    own = functional.cross_entropy
    monkeypatch.setattr(
        functional, "cross_entropy", lambda x, *rest, **words: own(mixed(x), *rest, **words)
    )


def in_a_rule(parts, monkeypatch):
    own = rules._RULES[nn.Linear]  # what a decorator fills
    swapped = lambda layer, x, dh: {"weight": dh.flip(0)[:, :, None] * x[:, None], "bias": dh}  # noqa: E731
    monkeypatch.setitem(rules._RULES, nn.Linear, own._replace(rule=swapped))


PLACES = [
    *(in_a_hook, in_a_hook_of_all, in_an_instance, in_a_class, in_a_part),
    *(in_a_weights_hook, in_what_the_loss_calls, in_a_rule),
]


@pytest.mark.parametrize("place", PLACES)
def test_what_is_done_to_the_next_one_is_found(place, monkeypatch):
    assert first_look(built(), CPU) is None
    parts = built()
    place(parts, monkeypatch)
    with pytest.raises(
        ConfigError, match="keep examples apart|by nothing but its own forward pass"
    ):
        first_look(parts, CPU)


def test_another_mode_shape_or_precision_is_tried():
    parts = built()
    others = [built(), built("task=shapes"), built()]
    others[0].model.eval()
    others[2].model.double()
    for count, each in enumerate([parts, *others], 1):
        assert first_look(each, CPU) is None
        assert len(known._FOUND) == count


def one_less(parts, say):
    say["parameters"] = say["parameters"][:-1]


def another_loss(parts, say):
    say["loss"] = lambda outputs, targets: outputs.mean()


def a_weight_frozen(parts, say):
    parts.model.head.weight.requires_grad_(False)


def another_device(parts, say):
    say["device"] = torch.device("meta")


def weights_in_another_layout(parts, say):
    parts.model.conv2.weight.data = parts.model.conv2.weight.data.mT.contiguous().mT


def coarser_products(parts, say):
    torch.set_float32_matmul_precision("medium")


def other_examples(parts, say):
    say["examples"].crowd.inputs.add_(1)


CHANGES = [one_less, another_loss, a_weight_frozen, another_device, other_examples]
CHANGES += [weights_in_another_layout, coarser_products]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_decides_a_check_is_in_the_key(change):
    parts = built()
    model, task = parts.model, parts.task
    say = {
        "parameters": parts.method.trainable(model),
        "examples": make_up(task, model, CPU, torch.float32),
        "loss": task.loss,
        "device": CPU,
    }

    def key():
        asked = replace(task, loss=say["loss"])
        return known.key_of(model, say["parameters"], asked, say["examples"], say["device"])

    before, products = key(), torch.get_float32_matmul_precision()
    assert key() == before is not None
    try:
        change(parts, say)
        assert key() != before
    finally:
        torch.set_float32_matmul_precision(products)
