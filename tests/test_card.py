"""A kept model's card, as huggingface_hub reads it."""

import json

import pytest
from huggingface_hub import ModelCard, ModelCardData, metadata_load
from huggingface_hub.utils import validate_repo_id

from dpexp import records
from dpexp.cli import predict, verify
from dpexp.privacy import certificate
from dpexp.training import model_card
from tests.own_data import save_csv, save_folders
from tests.runs import execute


def front(folder):
    """Return what the hub reads of a card; its own classes take it, and every name is one."""
    path = folder / "README.md"
    said = metadata_load(path)
    card = ModelCard.load(path)
    assert card.data.to_dict() == ModelCardData(**said).to_dict() == said
    assert said["library_name"] == "dpexp" and all(isinstance(tag, str) for tag in said["tags"])
    for name in (
        *said.get("datasets", ()),
        *([said["base_model"]] if "base_model" in said else ()),
    ):
        validate_repo_id(name)
        assert "/" in name
    return said


def test_several_splits_from_files_to_record_card_and_predictions(tmp_path, monkeypatch, capsys):
    """Training shards in two splits, another one that is not read, and one to test on."""
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for split, count in (("a", 80), ("b", 40), ("hard", 30), ("rest", 5)):
        rows = [[at % 13, ["no", "yes"][at % 13 > 6]] for at in range(count)]
        (tmp_path / "houses").mkdir(exist_ok=True)
        save_csv(tmp_path / "houses" / f"{split}-00000-of-00001.csv", [["rooms", "sold"], *rows])
    words = ["method=dpsgd", "task=table", "data=houses", "task.target=sold", "eps=8", "epochs=20"]
    words += ["task.train_splits=[a,b]", "task.test_splits=[hard]", "dataset_size=120"]
    words += ["task.columns={rooms:[0,12]}", "task.classes=[no,yes]", "batch_size=60"]
    words += ["task.judged_on_training=false", "weights=keep", "device=cpu"]
    folder = execute(tmp_path / "results", *words)
    record = records.read(folder)
    assert record.config["task"]["train_splits"] == ["a", "b"]
    assert record.privacy["dataset_size"] == 120
    assert verify.main([str(folder)]) == 0
    assert "datasets" not in front(folder)  # table:houses is nothing of the hub's
    capsys.readouterr()
    assert predict.main([str(folder), "houses/hard-00000-of-00001.csv"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    words = [["no", "yes"][at % 13 > 6] for at in range(30)]
    right = sum(line.split(",")[-2] == word for line, word in zip(lines, words, strict=True))
    assert 100 * right / 30 == pytest.approx(record.result["test_accuracy"], abs=0.01)


def test_splits_of_images_are_joined_in_the_order_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    splits = {"a": {"x": 8, "y": 6}, "b": {"x": 4, "y": 4}, "test": {"x": 3, "y": 3}}
    save_folders(tmp_path / "set", splits)
    words = ["method=dpsgd", "task=images", "data=set", "task.train_splits=[b,a]", "model=linear"]
    words += ["dataset_size=22", "eps=8", "epochs=1", "weights=keep", "device=cpu"]
    folder = execute(tmp_path / "results", *words)
    assert front(folder).keys() == {"library_name", "tags"}
    assert json.loads((folder / "privacy.json").read_text())["dataset_size"] == 22


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        ({"repo": "ylecun/mnist"}, {}, {"datasets": ["ylecun/mnist"]}),
        ({"repo": None}, {"repo": "me/bert"}, {"base_model": "me/bert"}),
        ({"data": "owner/set"}, {"repo": "bert"}, {"datasets": ["owner/set"]}),
        ({"data": "mine/set"}, {"repo": "a/b/c"}, {}),
        ({"data": "/somewhere/set"}, {"repo": "me/a--b"}, {}),
        ({"data": "my set/x"}, {"repo": "-me/bert"}, {}),
        ({}, {"repo": None}, {}),
    ],
)
def test_what_is_no_name_of_the_hub_is_left_out(task, model, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "set").mkdir(parents=True)  # a folder of the same form
    (tmp_path / "README.md").write_text(model_card._front({"task": task, "model": model}, "rgp"))
    said = front(tmp_path)
    assert {key: said[key] for key in said if key not in ("library_name", "tags")} == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["eps=8"], None),
        (["eps=8", "noise=secret"], None),
        (["eps=8", "sampling=shuffle"], certificate.SHUFFLED),
        (["eps=8", "analysis=noise_norm"], certificate.ANALYSED),
        (["eps=8", "audit=one_run", "audit.canaries=mislabelled"], certificate.AUDITED),
        (["eps=8", "clip=false"], certificate.NO_CLIPPING),
        (["noise=false", "eps=null"], certificate.NO_NOISE),
    ],
    ids=str,
)
def test_a_card_claims_privacy_only_where_the_certificate_does(words, why, tmp_path):
    base = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "epochs=0.5"]
    folder = execute(tmp_path, *base, *words, "weights=keep", "device=cpu")
    card = (folder / "README.md").read_text()
    assert ("differentially private (" in card) is (why is None)
    assert ("the claim" in card) is (why is None)
    if why is not None:
        assert f"No privacy is claimed: {why}." in card


RECIPE = """method=dpsgd optimizer=sgd optimizer.lr=0.3 schedule=inverse_root augmentation=crop_flip
augmentation.multiplicity=2 clipping=normalize denoise=doppler averaging=ema
model.weight_standardization=true"""


def test_a_card_states_every_part_of_the_recipe(tmp_path):
    base = "task=digits profile=embedded model=wrn10_1 batch_size=20 epochs=0.02 weights=keep"
    folder = execute(tmp_path, *base.split(), *RECIPE.split())
    rows = dict(
        line.strip("| ").split(" | ", 1)
        for line in (folder / "README.md").read_text().splitlines()
        if line.startswith("| ") and " | " in line.strip("| ")
    )
    config = records.read(folder).config
    for part in ("method", "optimizer", "schedule", "augmentation", "clipping", "denoise"):
        assert json.loads(rows[part]) == config[part]
    assert json.loads(rows["averaging"])["name"] == "ema"
    assert rows["convolutions"] == "of standardised weights"
