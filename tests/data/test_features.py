"""Frozen features: what an encoder gives, once, wherever it lies; and where it does not."""

import json
import logging
import re
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import torchvision
from safetensors.torch import save_file
from torch import nn
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

from dpexp import cli
from dpexp.cli import lookup
from dpexp.cli.cost_model import CostModel
from dpexp.data import features, kept, preprocessing
from dpexp.data.digits import digits
from dpexp.data.encoders import Encoder, beside
from dpexp.data.features import encode
from dpexp.data.public import generated
from dpexp.data.regression import regression
from dpexp.data.shapes import shapes
from dpexp.types import ConfigError, MissingData

CPU = torch.device("cpu")
SIZE = 16


@pytest.fixture(scope="module")
def vit():
    """A tiny transformer for images, as initialised."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
    return ViTModel(ViTConfig(**sizes, intermediate_size=32, image_size=SIZE, patch_size=4)).eval()


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return torchvision.models.resnet18().eval()


@pytest.fixture
def models(vit, tmp_path):
    """A model_root with the transformer in it."""
    vit.save_pretrained(tmp_path / "models" / "someone" / "vit")
    return tmp_path / "models"


@pytest.fixture
def task(conf):
    """A few digits."""
    whole = digits(**conf("digits"))
    some = torch.arange(12)
    return replace(whole, train=whole.train.take(some), test=whole.test.take(some[:5]))


@pytest.fixture
def encoded(models, task):
    def call(task=task, **changes):
        settings = {
            "name": "hub",
            "encoder": "someone/vit",
            "image_size": SIZE,
            "mean": [0.5, 0.4, 0.3],
            "std": [0.2, 0.3, 0.4],
            "also": [],
            "model_root": str(models),
        }
        return encode(task, CPU, **settings | changes)

    return call


def expected(module, examples):
    """Encode one image after the other, from pixels in [0, 1]."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    rows = []
    for image in examples.inputs.float():
        image = image / 255 if examples.inputs.dtype == torch.uint8 else image
        image = image if len(image) == 3 else torch.cat([image] * 3)
        image = F.interpolate(image[None], (SIZE, SIZE), mode="bilinear", antialias=True)
        with torch.no_grad():
            row = module((image - mean) / std).flatten()
        row = row - row.mean()
        rows.append(row / row.norm())
    return torch.stack(rows)


def pooled(vit):
    return lambda image: vit(pixel_values=image).pooler_output


def test_features_are_the_encoders_centred_and_of_norm_one(encoded, task, vit):
    got = encoded()
    for part, of in ((got.train, task.train), (got.test, task.test)):
        torch.testing.assert_close(part.inputs, expected(pooled(vit), of), rtol=1e-4, atol=1e-5)
        assert torch.equal(part.targets, of.targets)
        # The trainer takes them as they are.
        assert torch.equal(part.batch(torch.arange(len(part))).inputs, part.inputs)
    assert got.input_shape == (24,) and (got.num_classes, got.name) == (10, "digits")
    assert got.fingerprint != task.fingerprint == replace(task).fingerprint


def test_colours_and_public_images_are_encoded_too(encoded, conf, vit):
    task = shapes(**conf("shapes", dataset_size=6, test_size=4))
    task = generated(task, name="shapes", size=5, noise=0.2, data_seed=0)
    got = encoded(task)
    for part, of in ((got.train, task.train), (got.public, task.public)):
        torch.testing.assert_close(part.inputs, expected(pooled(vit), of), rtol=1e-4, atol=1e-5)
    assert got.fingerprint != encoded(replace(task, public=None)).fingerprint


def test_what_was_stopped_is_encoded_from_the_piece_on_where_it_was(
    encoded, task, monkeypatch, caplog
):
    monkeypatch.setattr(features, "PIECE", 4)
    caplog.set_level(logging.INFO, "dpexp")
    forward, calls = ViTModel.forward, iter(range(100))

    def stopped(self, *args, **settings):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return forward(self, *args, **settings)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ViTModel, "forward", stopped)
        encoded()
    caplog.clear()
    got = encoded()
    assert caplog.messages[0] == "someone/vit: features of 9 to 12 of 12 images"
    monkeypatch.setattr(features, "PIECE", 10**6)
    torch.testing.assert_close(got.train.inputs, encoded().train.inputs)


def test_modules_outputs_stand_beside_the_features(encoded, task, models, vit):
    """Each part centred and of norm one, then both together, as far as a kept model goes."""
    names = ("layers.0.layernorm_after", "pooler.dense")
    got = encoded(also=list(names))
    parts = [expected(pooled(vit), task.test)]
    for name in names:

        def output(image, name=name):
            given = []
            hook = vit.get_submodule(name).register_forward_hook(lambda m, i, o: given.append(o))
            vit(pixel_values=image)
            hook.remove()
            return given[0].mean(1) if given[0].ndim == 3 else given[0]

        parts.append(expected(output, task.test))
    whole = F.normalize(torch.cat(parts, 1), dim=1)
    torch.testing.assert_close(got.test.inputs, whole, rtol=1e-4, atol=1e-5)
    assert got.input_shape == (72,) and got.fingerprint != encoded().fingerprint
    preprocessing.save(got.preprocessing, models)
    images = task.test.inputs
    again = kept.load(models).examples(images)
    torch.testing.assert_close(again.inputs, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("also", "said"),
    [
        (["layer.7"], "has no 'layer.7'. Set, e.g., layers."),
        ([""], "has no ''"),
        ("layers.9", "has no 'layers.9'"),
        ([5], "to be a list of names"),
        (None, "to be a list of names"),
    ],
)
def test_modules_that_are_not_there_are_one_line(encoded, also, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        encoded(also=also)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_positions_are_averaged_and_not_channels_where_these_come_last(order):
    """As in Swin, whose blocks give [n, h, w, c]."""

    class Permuted(nn.Module):
        def forward(self, x):
            return x.permute(order)

    network = nn.Sequential(nn.Conv2d(3, 5, 1), Permuted(), nn.Flatten())
    images = torch.randn(2, 3, 4, 4)
    _, got = beside(Encoder(network, network, ()), "mine", ["1"])(images)
    torch.testing.assert_close(got, network[0](images).mean((2, 3)))


def test_one_examples_features_do_not_depend_on_the_others(encoded, task):
    inputs = task.train.inputs.clone()
    inputs[3] = 1 - inputs[3]
    other = encoded(replace(task, train=replace(task.train, inputs=inputs))).train.inputs
    changed = (encoded().train.inputs - other).abs().amax(1) > 1e-5
    assert changed.nonzero().flatten().tolist() == [3]


def test_features_are_computed_once(encoded, own_cache, models):
    def entries():
        return {path: path.stat().st_mtime_ns for path in (own_cache / "decoded").iterdir()}

    first = encoded()
    kept = entries()
    assert len(kept) == 3  # the digits, and the features of either part
    assert encoded().fingerprint == first.fingerprint and entries() == kept
    encoded(image_size=SIZE, mean=[0.5, 0.5, 0.5])
    assert len(entries()) == 5
    model = ViTModel.from_pretrained(models / "someone" / "vit")
    torch.nn.init.normal_(model.pooler.dense.weight)
    model.save_pretrained(models / "someone" / "vit")  # the same name, other weights
    assert encoded().fingerprint != first.fingerprint
    assert len(entries()) == 7


@pytest.mark.parametrize("where", ["pth", "safetensors", "timm"])
def test_a_resnets_weights_are_found_in_model_root(encoded, task, models, resnet, where):
    name = "timm/resnet18.tv_in1k" if where == "timm" else "torchvision/resnet18"
    (models / name).mkdir(parents=True)
    if where == "pth":
        torch.save(resnet.state_dict(), models / name / "resnet18-f37072fd.pth")
    else:
        save_file(resnet.state_dict(), models / name / "model.safetensors")
    got = encoded(encoder=name)
    headless = torch.nn.Sequential(*list(resnet.children())[:-1])
    assert got.input_shape == (512,)
    torch.testing.assert_close(got.test.inputs, expected(headless, task.test), rtol=1e-3, atol=1e-6)


# Encoders that are not there, or none


@pytest.mark.parametrize("is_offline", [True, False], ids=["offline", "down"])
@pytest.mark.parametrize(
    "encoder", ["torchvision/resnet152", "timm/resnet152.tv_in1k", "someone/nothing"]
)
def test_a_missing_encoder_is_one_line_that_comes_soon(
    encoded, models, tmp_path, monkeypatch, encoder, is_offline
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
    weights = torchvision.models.ResNet152_Weights.DEFAULT.value
    monkeypatch.setattr(weights, "url", "http://127.0.0.1:9/resnet152.pth", raising=False)
    begun = time.monotonic()
    with pytest.raises(MissingData) as raised:
        encoded(encoder=encoder)
    assert time.monotonic() - begun < 10
    message = str(raised.value)
    assert str(models / encoder) in message and "model_root" in message and "\n" not in message
    assert ("HF_HUB_OFFLINE is set" if is_offline else "cannot be reached") in message


def test_weights_that_cannot_be_kept_are_told_in_one_line(encoded, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "_hub_dir", "/dev/null/torch")
    (tmp_path / "resnet152.pth").write_bytes(b"weights")
    weights = torchvision.models.ResNet152_Weights.DEFAULT.value
    monkeypatch.setattr(weights, "url", (tmp_path / "resnet152.pth").as_uri(), raising=False)
    with pytest.raises(MissingData, match="could not be fetched: .*Not a directory.* model_root"):
        encoded(encoder="torchvision/resnet152")


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        ("vit", "to be owner/name"),
        ("torchvision/resnet15", "to be one of torchvision/resnet101, torchvision/resnet152"),
        ("someone/bert", "to be a model of images; someone/bert takes input_ids"),
        ("someone/broken", "Expected a model that transformers can load in .*someone/broken"),
        ("torchvision/resnet34", "Expected the weights of resnet34 in .*w.pth"),
    ],
)
def test_what_is_no_encoder_is_refused_in_one_line(encoded, models, resnet, encoder, said):
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    BertModel(BertConfig(**sizes, intermediate_size=8, vocab_size=9)).save_pretrained(
        models / "someone" / "bert"
    )
    (models / "someone" / "broken").mkdir()
    (models / "someone" / "broken" / "config.json").write_text("{")
    (models / "torchvision" / "resnet34").mkdir(parents=True)
    torch.save(resnet.state_dict(), models / "torchvision" / "resnet34" / "w.pth")
    with pytest.raises(ConfigError, match=said) as raised:
        encoded(encoder=encoder)
    assert "\n" not in str(raised.value)


def test_a_task_without_images_is_refused(encoded, conf):
    with pytest.raises(ConfigError, match="features=hub; regression has inputs of shape"):
        encoded(regression(**conf("regression")))


# Whole runs


def test_a_run_trains_a_linear_model_on_features(models, tmp_path, resnet):
    folder = models / "torchvision" / "resnet18"
    folder.mkdir(parents=True)
    torch.save(resnet.state_dict(), folder / "w.pth")
    words = ["features=resnet152", "features.encoder=torchvision/resnet18", f"model_root={models}"]
    words += ["task=digits", "profile=embedded", "features.image_size=8", "eval_every=10"]
    accuracy = {}
    for method in ("nonprivate", "dpsgd"):
        config = cli.compose([f"method={method}", *words, "epochs=10", f"results={tmp_path}"])
        directory = cli.execute(config)
        result = json.loads((directory / "result.json").read_text())
        privacy = json.loads((directory / "privacy.json").read_text())
        assert result["model"] == "linear" and privacy["trainable"] == {"head.weight": 5120}
        accuracy[method] = result["test_accuracy"]
    assert 40 < accuracy["dpsgd"] and 60 < accuracy["nonprivate"]  # chance is 10


def test_a_look_up_compares_the_data_without_encoding_them(models, tmp_path, monkeypatch):
    """On another machine features of all images are not kept, and take up to hours."""
    words = ["method=dpsgd", "task=digits", "profile=embedded", "features=hub", "epochs=1"]
    words += ["features.encoder=someone/vit", f"features.image_size={SIZE}", f"model_root={models}"]
    config = cli.compose([*words, f"results={tmp_path}"])
    result = json.loads((cli.execute(config) / "result.json").read_text())
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "_encoded", None)
    lookup._of_data.cache_clear()
    assert lookup.compare(config, result) == ("", "")
    other = result | {"data_fingerprint": "0" * 64}
    assert "the data of digits were 000000000000… and are" in lookup.compare(config, other).other


def test_a_plan_encodes_a_few_images_that_stand_for_all(models, tmp_path, caplog):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "features=hub"]
    words += ["features.encoder=someone/vit", f"features.image_size={SIZE}", f"model_root={models}"]
    caplog.set_level(logging.INFO, "dpexp")
    cost = CostModel(tmp_path, "embedded", CPU).cost(cli.compose(words))
    assert (cost.source, cost.without) == ("timed", ("features=hub",))
    encoded = [line for line in caplog.messages if "features of" in line]
    assert encoded and set(encoded) == {"someone/vit: features of 4 images"}
    absent = CostModel(tmp_path, "embedded", CPU).cost(
        cli.compose([*words, "features.encoder=someone/else"])
    )
    assert absent.source == "no data" and "someone/else" in absent.why


def test_a_model_of_images_does_not_fit_features(models):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=wrn10_1", "features=hub"]
    words += ["features.encoder=someone/vit", f"features.image_size={SIZE}", f"model_root={models}"]
    with pytest.raises(ConfigError, match=r"inputs of shape \(24,\).*Set model=linear"):
        cli.build_parts(cli.compose(words), CPU)


def test_an_encoder_of_timm_gives_its_features(encoded, task, models):
    timm = pytest.importorskip("timm", reason="timm is an extra")
    torch.manual_seed(0)
    whole = timm.create_model("test_efficientnet", num_classes=5)
    folder = models / "timm" / "test_efficientnet.mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architecture": "test_efficientnet"}')
    save_file(whole.state_dict(), folder / "model.safetensors")
    bare = timm.create_model("test_efficientnet", num_classes=0)
    bare.load_state_dict(whole.state_dict(), strict=False)
    got = encoded(encoder="timm/test_efficientnet.mine", image_size=32)
    images = task.test.inputs.expand(-1, 3, -1, -1)
    images = F.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    with torch.no_grad():
        raw = bare.eval()((images - mean) / std)
    expected = F.normalize(raw - raw.mean(1, keepdim=True), dim=1)
    torch.testing.assert_close(got.test.inputs, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("damage", ["lacking", "torn", "unknown"])
def test_what_timm_cannot_load_is_one_line(encoded, models, damage):
    timm = pytest.importorskip("timm", reason="timm is an extra")
    name = "nothing_like_it" if damage == "unknown" else "test_efficientnet"
    folder = models / "timm" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    state = timm.create_model("test_efficientnet", num_classes=5).state_dict()
    state.pop("conv_stem.weight")
    save_file(state, folder / "model.safetensors")
    if damage == "torn":
        (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="Expected") as refused:
        encoded(encoder=f"timm/{name}", image_size=32)
    assert "\n" not in str(refused.value)
