"""Runs that begin with the weights of other runs say so, and draw other noise."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import dpexp
from dpexp.cli import begun, verify
from dpexp.types import ConfigError
from tests.own_data import save_csv
from tests.texts import save_distilbert, sentences

SHORT = "epochs=1 batch_size=70 micro_batch=35 device=cpu weights=keep model.dropout=0"


@pytest.fixture
def words(tmp_path):
    """A small classifier of transformers on texts of one's own; where kept runs are."""
    save_distilbert(tmp_path / "models")
    labels = [["bad", "good"][i % 2] for i in range(90)]
    rows = [list(row) for row in zip(sentences(90, 1), labels, strict=True)]
    path = save_csv(tmp_path / "reviews.csv", [["text", "label"], *rows])
    return (
        f"task=texts data={path} dataset_size=70 task.test_size=20 {SHORT} model=hf "
        f"task.max_length=16 task.classes=[bad,good] results={tmp_path}/results method=dpsgd"
    )


def test_kept_weights_are_not_taken_for_public_ones(words, tmp_path, capsys):
    first = dpexp.run(words, f"eps=8 repo=tiny/bert model_root={tmp_path}/models")
    (kept,) = (tmp_path / "results").glob("*/runs/*")
    again = f"{words} eps=2 repo={kept.name} model_root={kept.parent}"
    with pytest.raises(ConfigError, match=f"another seed than that of run {kept.name}, which"):
        dpexp.run(again)
    second = dpexp.run(again, "seed=1")
    (said,) = [word for word in second.certificate["deviations"] if "began" in word]
    assert said.startswith(f"began with the weights of run {kept.name}: ")
    assert not any("began" in word for word in first.certificate["deviations"])
    assert verify.main([str(second.directory)]) == 0
    assert f"weights of run {kept.name}" in capsys.readouterr().out
    card = (second.directory / "README.md").read_text()
    assert "differentially private (" not in card and "No privacy is claimed: began with" in card
    assert "differentially private (" in (kept / "README.md").read_text()
    assert dpexp.run(again, "seed=1").directory == second.directory  # it is looked up
    third = f"{words} eps=2 repo={second.directory.name} model_root={kept.parent}"
    with pytest.raises(ConfigError, match=f"another seed than that of run {kept.name}, which"):
        dpexp.run(third)
    copy = shutil.copytree(second.directory, tmp_path / "models" / "mine" / "copy")
    third = dpexp.run(f"{words} eps=2 repo=mine/copy model_root={tmp_path}/models seed=2")
    (said,) = [word for word in third.certificate["deviations"] if "began" in word]
    assert said.startswith(
        f"began with the weights of run {second.directory.name}, and it with those of {kept.name}: "
    )
    assert verify.main([str(third.directory)]) == 0
    (tmp_path / "models" / "tiny" / "bert" / "result.json").write_text("{}")  # another program's
    dpexp.run(words, f"eps=2 repo=tiny/bert model_root={tmp_path}/models seed=3")
    (copy / "privacy.json").write_text("{")
    with pytest.raises(ConfigError, match="a run's record, or with a whole one") as raised:
        dpexp.run(f"{words} eps=2 repo=mine/copy model_root={tmp_path}/models seed=3")
    assert "\n" not in str(raised.value)


def test_no_run_in_a_row_repeats_the_noise_of_an_earlier_one(tmp_path):
    gen = torch.Generator().manual_seed(0)
    train = (torch.randn(60, 20, generator=gen), torch.arange(60) % 2)

    def trained(model, seed, **settings):
        return dpexp.train(
            model, train, train, eps=0.5, epochs=1, batch_size=60, seed=seed, results=tmp_path,
            settings={"schedule": "constant", **settings}, optimizer="sgd_plain", lr=1.0,
        )  # fmt: skip

    first = trained(nn.Sequential(nn.Flatten(), nn.Linear(20, 2)), 0)
    second = trained(first.model, 1)
    with pytest.raises(ConfigError, match=f"than that of run {first.directory.name}, which"):
        trained(second.model, 0)
    with pytest.raises(ConfigError, match=f"than that of run {second.directory.name}, which"):
        trained(second.model, 1)
    third = trained(second.model, 2)
    (said,) = [word for word in third.certificate["deviations"] if "began" in word]
    assert f"of run {second.directory.name}, and it with those of {first.directory.name}" in said
    assert verify.main([str(third.directory)]) == 0
    secret = trained(second.model, 1, noise="secret")
    assert any("began" in word for word in secret.certificate["deviations"])


@pytest.mark.long
def test_weights_of_a_run_under_another_name_are_refused(tmp_path):
    """timm adds the usual kind of weights to an architecture's name, and so finds the folder."""
    root, rng = tmp_path / "pictures", np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 6)):
        for name in ("a", "b"):
            (root / part / name).mkdir(parents=True)
            for at in range(count):
                picture = Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
                picture.save(root / part / name / f"{at}.png")
    (tmp_path / "models").mkdir()
    words = f"task=images data={root} dataset_size=24 batch_size=12 epochs=1 eps=8 method=dpsgd "
    words += f"model=timm model_root={tmp_path}/models results={tmp_path}/results weights=keep"
    first = dpexp.run(words, "name=test_vit model.pretrained=false")
    named = tmp_path / "models" / "timm" / "test_vit.r160_in1k"
    shutil.copytree(first.directory, named)
    with pytest.raises(ConfigError, match=f"run {first.directory.name} trained them") as raised:
        dpexp.run(words, "name=test_vit seed=1")
    assert "\n" not in str(raised.value)
    second = dpexp.run(words, "name=test_vit.r160_in1k seed=1")
    words = f"weights of run {first.directory.name}: "
    assert any(words in each for each in second.certificate["deviations"])


@pytest.mark.parametrize("settings", [{"encoder": "owner/mine"}, {"encoder": "mine"}], ids=str)
def test_an_encoder_that_a_run_trained_is_no_public_one(settings, words, tmp_path):
    run = dpexp.run(words, f"eps=8 repo=tiny/bert model_root={tmp_path}/models")
    shutil.copytree(run.directory, tmp_path / "models" / settings["encoder"])
    config = {
        "model": {"_target_": "dpexp.models.linear.Linear"},
        "features": {**settings, "model_root": str(tmp_path / "models")},
        "privacy": {"noise": True}, "seed": 1, "results": str(tmp_path / "results"),
    }  # fmt: skip
    assert begun.settled(config)["trained_in"] == [run.directory.name]
    with pytest.raises(ConfigError, match="another seed"):
        begun.settled({**config, "seed": 0})
    assert begun.settled({**config, "seed": 0, "privacy": {"noise": "secret"}})["trained_in"]
