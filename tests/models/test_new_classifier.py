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


def test_several_classifiers_begin_alike_and_other_layers_stay():
    convolution = nn.Sequential(nn.LayerNorm(4), nn.Conv2d(4, 3, 1, bias=False))
    linear = nn.Linear(4, 3)
    before = convolution[0].weight.clone()
    begin((convolution, linear), 1e-3)
    assert 0 < float(convolution[1].weight.abs().max()) < 0.01
    assert 0 < float(linear.weight.abs().max()) < 0.01 and linear.bias.eq(0).all()
    assert torch.equal(convolution[0].weight, before)
