"""Runs keep their ids and their records when what their configs name moves."""

import importlib
from pathlib import Path

import pytest
import yaml

from dpexp import cli, records
from dpexp.records import MOVED, first_names, present_names, run_id
from tests.marks import few

ROOT = Path(__file__).resolve().parents[1]
KEPT = sorted((ROOT / "results").glob("*/runs/*/config.yaml"))
FIRST = {
    "loop": "dpexp.train",
    "task": {"_target_": "dpexp.tasks.images.hub_images", "name": "dpexp.tasks.images"},
    "parts": [{"_target_": "dpexp.schedules.Milestones", "at": [0.5, 0.75]}],
    "method": {"_target_": "dpexp.tasksome.Method", "loops": "dpexp.tasks"},
}


def config_of(path):
    with path.open("rb") as file:
        return yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def test_only_names_of_what_is_made_are_renamed():
    present = present_names(FIRST)
    assert present == {
        "loop": "dpexp.training.train",
        "task": {"_target_": "dpexp.data.images.hub_images", "name": "dpexp.tasks.images"},
        "parts": [{"_target_": "dpexp.training.schedules.Milestones", "at": [0.5, 0.75]}],
        "method": {"_target_": "dpexp.tasksome.Method", "loops": "dpexp.tasks"},
    }
    assert present_names(present) == present
    assert first_names(present) == first_names(FIRST) == FIRST
    assert run_id(present) == run_id(FIRST)


def test_a_model_that_lacked_a_setting_is_built_as_it_was():
    config = {"model": {"_target_": "dpexp.models.resnet.ResNet", "depth": 8}, "seed": 0}
    read = present_names(config)
    assert read["model"] == {**config["model"], "channels_last": False}
    assert present_names(read) == read and run_id(read) == run_id(config)
    chosen = {"model": {**config["model"], "channels_last": "auto"}}
    assert present_names(chosen) == chosen


def test_every_moved_name_is_another_ones_and_is_there():
    assert len({*MOVED.values()}) == len(MOVED)
    for name in MOVED.values():
        importlib.import_module(name)


@pytest.mark.parametrize("step", few([1, 4], [4]))
def test_every_record_is_named_by_its_config_with_first_names_and_with_present_ones(step):
    """Every fourth; at length all."""
    assert KEPT
    for path in KEPT[::step]:
        config = config_of(path)
        present = present_names(config)
        assert run_id(config) == run_id(present) == path.parent.name
        again = present_names(first_names(present))
        assert {*named(again)} == {*named(present)} and first_names(again) == first_names(present)


def named(node):
    """Yield what a config names to be made."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("_target_", "loop") if key in node)
        node = [*node.values()]
    if isinstance(node, list):
        for each in node:
            yield from named(each)


def test_a_record_of_first_names_is_found_and_read_with_present_ones():
    older = next(p for p in KEPT if config_of(p)["task"]["_target_"].startswith("dpexp.tasks."))
    found = records.find(ROOT / "results", present_names(config_of(older)))
    assert found.directory == older.parent
    assert found.config == present_names(config_of(older)) != config_of(older)


def test_a_run_begun_under_first_names_is_gone_on_with(tmp_path):
    config = cli.compose(["method=dpsgd", "task=digits", "profile=embedded"])
    begun = records.Run.open(tmp_path, first_names(config))
    begun.log({"step": 1})
    begun.checkpoint_path.write_bytes(b"")
    again = records.Run.open(tmp_path, config)
    assert (again.status, again.directory) == ("resume", begun.directory)


@pytest.mark.parametrize("schedule", ["dpexp.schedules", "dpexp.training.schedules"])
def test_a_name_may_be_given_by_either(schedule):
    words = ["method=dpsgd", "task=digits", "profile=embedded"]
    named = cli.compose([*words, f"schedule._target_={schedule}.Milestones"])
    assert named["schedule"]["_target_"] == "dpexp.training.schedules.Milestones"
    assert run_id(named) == run_id(cli.compose(words))
