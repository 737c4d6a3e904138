"""The classifier that a library's model gets for a task begins with small weights."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dpexp.models import from_timm
from dpexp.models.classifier import begin
from dpexp.types import ConfigError
from tests.doors import IMAGE, parts

timm = pytest.importorskip("timm")

EFFICIENTNETS = {
    "timm": ["model=timm", "name=test_efficientnet"],
    "torchvision": ["model=torchvision", "name=mnasnet0_5"],
}
"""Both libraries draw a classifier's weights as for many classes."""


def model_of(door, *words):
    shape = ["model.pretrained=false", "model.fix=freeze", "model.resize=32", "seed=3"]
    return parts("nowhere", *IMAGE, *EFFICIENTNETS[door], *shape, *words).model


def head_of(model):
    """Return the last linear layer."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]


@pytest.mark.parametrize("door", EFFICIENTNETS)
def test_its_weights_are_as_small_as_said_and_its_biases_zero(door):
    head = head_of(model_of(door))
    assert head.out_features == 10 and head.bias.eq(0).all()
    off = float(head.weight.detach().pow(2).mean().sqrt()) / 0.01 - 1
    assert abs(off) < 5 / math.sqrt(2 * head.weight.numel())
    zero = head_of(model_of(door, "model.head_std=0"))
    assert zero.weight.eq(0).all() and zero.bias.eq(0).all()
    assert head_of(model_of(door, "model.head_std=null")).weight.std() > 0.1  # the library's own


@pytest.mark.parametrize("value", ["-0.1", "nan", "small"])
@pytest.mark.parametrize("door", EFFICIENTNETS)
def test_what_is_no_size_is_refused(door, value):
    with pytest.raises(ConfigError, match=r"Expected .*head_std .*Set model\.head_std"):
        model_of(door, f"model.head_std={value}")


@pytest.mark.parametrize("num_classes", [1000, 7])
def test_a_classifier_that_was_pretrained_for_as_many_classes_stays(tmp_path, num_classes):
    name = "test_efficientnet.r160_in1k"
    torch.manual_seed(0)
    there = timm.create_model(name, pretrained=False, num_classes=1000)
    folder = tmp_path / "timm" / name
    folder.mkdir(parents=True)
    save_file(there.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    model = from_timm.classifier(
        architecture=name, pretrained=True, args={}, dropout=None, resize=None, normalise="own",
        channels_last=False, model_root=str(tmp_path), num_classes=num_classes,
        input_shape=(3, 32, 32), max_length=None, task_mean=None, task_std=None, head_std=0.0,
    )  # fmt: skip
    assert torch.equal(model.conv_stem.weight, there.conv_stem.weight)
    if num_classes == 1000:
        assert torch.equal(model.classifier.weight, there.classifier.weight)
    else:
        assert model.classifier.weight.eq(0).all()


def test_several_classifiers_begin_alike_and_what_is_pretrained_before_them_stays():
    """A head of several layers, as CaFormer's, has but one that is new."""
    head = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Conv2d(6, 3, 1, bias=False))
    model = nn.ModuleDict({"head": head, "head_dist": nn.Linear(4, 3), "body": nn.Linear(4, 3)})
    before = {name: each.clone() for name, each in model.state_dict().items()}
    begin(model, ["head", "head_dist", "of an encoder's library"], 3, 1e-3)
    new = {"head.2.weight", "head_dist.weight", "head_dist.bias"}
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name]) == (name not in new)
    assert 0 < float(model.head[2].weight.abs().max()) < 0.01
    assert model.head_dist.bias.eq(0).all()


def test_caformers_pretrained_hidden_layer_is_kept():
    words = ["model=timm", "name=caformer_s18", "model.pretrained=false", "model.resize=32"]
    heads = [
        parts("nowhere", *IMAGE, *words, "seed=3", f"model.head_std={std}").model.head.fc
        for std in ("null", "0.01")
    ]
    assert torch.equal(heads[0].fc1.weight, heads[1].fc1.weight)
    assert not torch.equal(heads[0].fc2.weight, heads[1].fc2.weight)
