"""One's own model, by each door: it is found, takes the task's examples, and trains."""

import json

import pytest
import torch

from dpexp import cli, records
from dpexp.cli.architectures import IMAGES, TEXTS
from dpexp.models.mode import in_mode
from dpexp.privacy.verification.record import verify_record
from dpexp.types import ConfigError
from tests.doors import IMAGE, TEXT, parts, save
from tests.marks import few, pairs_long

RANDOM = "model.pretrained=false"
ENCODERS = (*TEXTS, "Bart")


OF_OTHER_KINDS = ["Bert", "Albert", "DebertaV2", "ModernBert", "XLNet", "T5", "GPT2", "Bart"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", few(ENCODERS, OF_OTHER_KINDS))
def test_a_text_gets_the_same_outputs_whatever_stands_beside_it(tmp_path, name):
    repo = save(tmp_path, name)
    built = parts(tmp_path, *TEXT, f"repo={repo}", RANDOM)
    lengths = built.task.train.encoded.lengths
    short, long = int(lengths.argmin()), int(lengths.argmax())
    assert lengths[short] < lengths[long]
    model = built.model.double()
    with in_mode(model, is_training=False), torch.no_grad():
        both = model(built.task.train.batch(torch.tensor([short, long])).inputs)
        alone = model(built.task.train.batch(torch.tensor([short])).inputs)
    assert both.shape == (2, 2)
    torch.testing.assert_close(both[:1], alone, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(both[0], both[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("method", "name"),
    pairs_long(
        *(["rgp", "lsg"], ["DistilBert", "GPT2"]),
        short=lambda method, name: (method == "rgp") == (name == "GPT2"),
    ),
)
def test_a_run_is_named_for_its_model_found_again_and_verified(tmp_path, name, method):
    repo = save(tmp_path, name, drop=0.1)
    words = [*TEXT, f"repo={repo}", RANDOM, f"model_root={tmp_path}", f"results={tmp_path}"]
    words += [f"method={method}", "method.rank=2"]
    config = cli.compose(words)
    record = records.read(cli.execute(config))
    assert record.result["model"] == config["model"]["name"] == f"hf:{repo} of random weights"
    assert record.result["model_as_run"]["dropout"]
    head = {"DistilBert": "classifier", "GPT2": "score"}[name]
    assert f"{head}.weight" in record.privacy["trainable"]
    assert verify_record(record).findings == ()
    before = (record.directory / "result.json").read_bytes()
    assert cli.execute(config) == record.directory
    assert (record.directory / "result.json").read_bytes() == before
    assert list(record.result["pretrained_sha256"]) == [repo]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", few(IMAGES, ["ViT", "ConvNextV2"]))
def test_an_image_model_takes_what_the_task_has(tmp_path, name):
    """Of one channel and 8 x 8 pixels, at the size that it is told to be resized to."""
    repo = save(tmp_path, name)
    words = [*IMAGE, "model=hf", f"repo={repo}", RANDOM, "model.resize=32"]
    words += [f"model_root={tmp_path}", f"results={tmp_path}", "epochs=0.1"]
    words += ["method=rgp", "method.rank=2"]
    record = records.read(cli.execute(cli.compose(words)))
    assert verify_record(record).findings == () and record.metrics[-1]["nonfinite"] == 0
    assert "one channel repeated" in record.result["model_as_run"]["images"]


@pytest.mark.filterwarnings("ignore")
def test_images_are_normalised_by_the_models_own_constants_or_the_tasks(tmp_path):
    repo = save(tmp_path, "ViT", weights=True, image_size=8, patch_size=4)
    own = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / repo / "preprocessor_config.json").write_text(json.dumps(own))
    words = [*IMAGE, "model=hf", f"repo={repo}", "model.head=classifier"]
    models = {how: parts(tmp_path, *words, f"model.normalise={how}") for how in ("own", "task")}
    task = models["own"].task
    indices = torch.arange(3)
    x = task.train.batch(indices).inputs
    library = models["task"].model
    with in_mode(library, is_training=False), torch.no_grad():
        got = models["own"].model.eval()(x)
        mean, std = (torch.tensor(own[f"image_{k}"]).view(3, 1, 1) for k in ("mean", "std"))
        pixels = x * task.train.std[0] + task.train.mean[0]
        expected = library(pixel_values=(pixels.expand(-1, 3, -1, -1) - mean) / std)
        as_the_task = library(pixel_values=x.expand(-1, 3, -1, -1))
        torch.testing.assert_close(library(x), as_the_task)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, as_the_task)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "ViT",
            [*IMAGE, "model.args.patch_size=16"],
            r"to take the task's examples of shape \[2, 1, 8, 8\]",
        ),
        ("ViT", TEXT, "a model that classifies texts.*is a vit, which classifies images alone"),
        ("Bert", [*IMAGE, "model=hf"], "classifies images.*is a bert, which classifies texts"),
        ("Bert", [*TEXT, "model.args.num_hidden_layer=1"], "Did you mean num_hidden_layers"),
        ("Bert", [*TEXT, "model.args.num_labels=3"], "to have 2 labels, the task's .* got 3"),
        ("Bert", [*TEXT, "model.dropout=1.5"], r"Expected model.dropout in \[0, 1\)"),
        ("Bert", [*TEXT, "model.dropout=true"], "model.dropout: got True|dropout"),
        ("Bert", [*TEXT, "task.max_length=50"], "Expected task.max_length <= 40"),
        ("Bert", [*TEXT, "model.args.vocab_size=20"], "an embedding of at least 57 tokens"),
        ("Bert", [*TEXT, "model.pretrained=true"], "readable weights in .* Fetch the folder again"),
        (
            "Bert",
            [*TEXT, "model.pretrained=true", "model.args.num_attention_heads=5"],
            "readable weights in .* or set model.args as it was trained",
        ),
        ("Bert", [*TEXT, "model.pretrained=perhaps"], "pretrained.*bool|pretrained"),
        ("ConvNext", [*IMAGE, "model.resize=0"], "Expected model.resize to be a side"),
        ("ConvNext", [*IMAGE, "model.resize=big"], "Expected model.resize|resize"),
        ("ConvNext", [*IMAGE, "model.normalise=mine"], "model.normalise to be one of own, task"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, name, words, said):
    repo = save(tmp_path, name)
    words = [word for word in words if word != "model=hf"]
    words = ["model=hf", f"repo={repo}", RANDOM, *words, f"results={tmp_path}"]
    with pytest.raises(ConfigError, match=said) as raised:
        cli.execute(cli.compose([*words, f"model_root={tmp_path}"]))
    assert "\n" not in str(raised.value)
