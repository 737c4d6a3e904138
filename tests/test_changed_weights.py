"""A run goes on with the pretrained files that it began with."""

import csv
import json

import pytest
from safetensors.torch import load_file, save_file

from dpexp.types import ConfigError
from tests.runs import execute, killed, of, one_thread  # noqa: F401 (a fixture)
from tests.texts import save_model, sentences

pytestmark = pytest.mark.filterwarnings("ignore:.*never declared public")


@pytest.fixture
def words(tmp_path):
    """Return the words of a run on texts, from a small pretrained model of transformers."""
    save_model(tmp_path / "models", "bert", longest=64)
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        rows = [(text, place % 2) for place, text in enumerate(sentences(200))]
        csv.writer(file).writerows([("text", "label"), *rows])
    data = [f"data={tmp_path / 'texts.csv'}", "task.test_size=40", "dataset_size=160"]
    data += ["task.num_classes=2", "task.max_length=16"]
    model = ["model=hf", "model.repo=tiny/bert", f"model_root={tmp_path / 'models'}"]
    short = ["batch_size=40", "epochs=3", "eval_every=1", "eps=8", "profile=embedded", "device=cpu"]
    return ["task=texts", *data, *model, *short, "method=dpsgd"]


def other_weights(folder):
    file = folder / "model.safetensors"
    weights = {name: each * 1.01 for name, each in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    return file


def another_network(folder):
    """Leave all weights as they are."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layer_norm_eps": 1e-3}))
    return file


@pytest.mark.parametrize("change", [other_weights, another_network])
def test_a_run_does_not_go_on_from_other_pretrained_files(words, change, tmp_path):
    """Its record would name files that it did not begin with."""
    killed(tmp_path, *words, at=6, every=4)
    file = change(tmp_path / "models" / "tiny" / "bert")
    with pytest.raises(ConfigError, match=f"{file.name} of tiny/bert differs") as said:
        execute(tmp_path, *words)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("change", [other_weights, another_network])
def test_without_a_checkpoint_it_begins_from_them_and_repeats_nothing(words, change, tmp_path):
    directory = killed(tmp_path, *words, at=6, every=100)
    change(tmp_path / "models" / "tiny" / "bert")
    with pytest.warns(UserWarning, match=r"6 steps after step 0 .*\(changed: .*pretrained\)"):
        execute(tmp_path, *words)
    assert of(directory)[2]["lost_steps"] == 6
