"""How many examples a config fixes: the published sets' as conf declares them, parts, own data."""

import numpy as np
import pytest
import yaml

from dpexp import cli, records
from dpexp.cli.verify import verify
from dpexp.records.sizes import available, judged_examples, wrong_size
from tests.contract.cases import OWN, TASKS
from tests.own_data import save_csv
from tests.runs import execute

SETTINGS = {
    task: yaml.safe_load((cli.CONF / "task" / f"{task}.yaml").read_text())
    for task in TASKS
    if task not in OWN
}
PUBLISHED = [task for task in SETTINGS if available({"task": SETTINGS[task]}) is not None]
TESTS = {"mnist": 10_000, "cifar10": 10_000, "svhn": 26_032, "sst2": 872, "digits": 360}


def test_every_task_of_conf_but_ones_own_has_a_known_n_and_declares_it():
    drawn = {"entailment", "regression", "sentiment", "shapes"}
    assert {*SETTINGS} - {*PUBLISHED} == drawn
    for task, settings in SETTINGS.items():
        assert wrong_size({"task": settings}) == ("", True), task
        if task in PUBLISHED:
            assert settings["dataset_size"] == available({"task": settings})
    for task, count in TESTS.items():
        assert judged_examples({"task": SETTINGS[task]}, "test_accuracy") == count
    assert judged_examples({"task": SETTINGS["mnli"]}, "test_accuracy_mm") == 9_832
    assert judged_examples({"task": SETTINGS["lending_club"]}, "relative_loss") is None


@pytest.mark.parametrize("task", PUBLISHED)
def test_no_task_has_more_examples_than_there_are(task):
    settings = SETTINGS[task]
    most = settings["dataset_size"]
    for change, held, is_wrong, is_known in (
        ({"dataset_size": most + 1}, 0, True, False),
        ({"dataset_size": 10 * most}, 0, True, False),
        ({"dataset_size": most - 100}, 100, False, True),
        ({"dataset_size": most - 100}, 101, True, False),
    ):
        config = {"task": settings | change, "holdout": {"size": held} if held else None}
        differs, known = wrong_size(config)
        assert (bool(differs), known) == (is_wrong, is_known), change
    if "train_size" not in settings:
        return
    for size, kept, is_wrong in ((700, 700, False), (700, 800, True), (most + 1, most + 1, True)):
        part = {"task": settings | {"dataset_size": size, "train_size": kept}}
        assert bool(wrong_size(part)[0]) is is_wrong
    # A copy with fewer examples: N is smaller than it could be, and tests may be missing, too.
    fewer = {"task": settings | {"dataset_size": most - 1}}
    assert wrong_size(fewer) == ("", False) and judged_examples(fewer, "test_accuracy") is None
    other = {"task": settings | {"repo": "me/other", "csv": "mine.csv", "dataset_size": 10 * most}}
    assert wrong_size(other) == ("", False)


def test_pate_is_tested_on_half_of_what_public_images_leave():
    config = {
        "task": SETTINGS["cifar10"],
        "public": {"of_task": "cifar10", "size": 2_001},
        "method": {"public": "test-half"},
        "holdout": {"size": 5},
    }
    assert judged_examples(config, "holdout_accuracy") == 5
    config["task"] = config["task"] | {"dataset_size": 49_995}
    assert judged_examples(config, "test_accuracy") == 4_000


def test_of_ones_own_data_n_is_said_not_to_be_checked(tmp_path):
    rows = [[at % 7, at % 2] for at in range(60)]
    for name in ("train", "test"):
        save_csv(tmp_path / f"{name}.csv", [["x", "y"], *(rows if name == "train" else rows[:9])])
    words = ["method=dpsgd", "task=table", f"data={tmp_path}", "task.target=y", "eps=8", "epochs=1"]
    words += ["task.columns={x:[0,7]}", "task.num_classes=2", "dataset_size=60", "device=cpu"]
    directory = execute(tmp_path / "results", *words, "task.judged_on_training=false")
    code, lines = verify(directory)
    assert code == 0 and "N: that the data have so many" in lines[-1]
    assert "test_accuracy: that all test examples are among them" in lines[-1]
    assert np.isfinite(records.read(directory).result["test_accuracy"])
