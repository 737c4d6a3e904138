"""Runs are named by what decides them, looked up, gone on with, or moved aside; never lost."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dpexp import records
from dpexp.records import RecordError, Run, find, git_commit, read, run_id, versions

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {
    "eps": 8.0,
    "seed": 0,
    "profile": {"name": "embedded"},
    "optimizer": {"lr": 1e-5, "betas": [0.9, 0.999]},
    "task": {"name": "digits", "data_root": "data"},
    "device": "auto",
    "results": "results",
    "wandb": {"mode": "disabled"},
}
RESULT = {"test_accuracy": 93.5, "wall_s": 2.0}
PRIVACY = {"epsilon": {"prv": 7.99}}


def finished(root, config=CONFIG):
    run = Run.open(root, config)
    run.log({"step": 1, "test_accuracy": 93.5})
    run.finish(RESULT, PRIVACY)
    return run


def test_a_run_is_named_by_what_decides_its_result():
    name = run_id(CONFIG)
    assert re.fullmatch("[0-9a-f]{12}", name)
    shuffled = dict(reversed(CONFIG.items())) | {"optimizer": {"betas": (0.9, 0.999), "lr": 1e-5}}
    assert run_id(shuffled) == name
    assert run_id(CONFIG | {"eps": 8}) == name
    assert run_id(CONFIG | {"eps": 8.5}) != name
    assert run_id(CONFIG | {"seed": 1}) != name
    assert run_id(CONFIG | {"optimizer": {"lr": 2e-5, "betas": [0.9, 0.999]}}) != name


@pytest.mark.parametrize("key", sorted(records.RESULT_NEUTRAL))
def test_how_a_run_goes_is_no_part_of_its_name(key):
    assert run_id(CONFIG | {key: "something else"}) == run_id(CONFIG)


def test_folders_are_no_part_of_a_name_at_any_depth():
    moved = CONFIG | {"task": {"name": "digits", "data_root": "/elsewhere"}}
    assert run_id(moved) == run_id(CONFIG)


def test_a_name_survives_being_written_and_read(tmp_path):
    run = Run.open(tmp_path, CONFIG)
    written = yaml.safe_load((run.directory / "config.yaml").read_text())
    assert run_id(written) == run.id and written == CONFIG


def test_a_finished_run_is_looked_up(tmp_path):
    assert find(tmp_path, CONFIG) is None and not list(tmp_path.iterdir())
    run = finished(tmp_path)
    assert run.directory == tmp_path / "embedded" / "runs" / run_id(CONFIG)
    assert Run.open(tmp_path, CONFIG).status == "finished"
    record = find(tmp_path, CONFIG)
    assert record.result == RESULT | {"run": run.id, "files": record.result["files"]}
    assert record.privacy == PRIVACY | {"run": run.id}
    assert record.metrics == [{"step": 1, "test_accuracy": 93.5}]
    assert record.config == CONFIG


@pytest.mark.parametrize(
    ("profile", "target", "folder"),
    [
        ("paper", "dpexp.data.own_images.images", "own"),
        ("paper", "dpexp.data.given.examples_of", "own"),
        ("paper", "my_tasks.birds", "own"),
        ("paper", "dpexp.data.glue.glue", "paper"),
        ("quick", "dpexp.data.own_images.images", "quick"),
    ],
)
def test_a_run_on_ones_own_data_is_kept_apart_unless_it_has_begun(
    tmp_path, profile, target, folder
):
    config = CONFIG | {"profile": {"name": profile}, "task": {"name": "a", "_target_": target}}
    assert records.locate(tmp_path, config) == tmp_path / folder / "runs" / run_id(config)
    earlier = tmp_path / profile / "runs" / run_id(config)
    earlier.mkdir(parents=True)
    assert records.locate(tmp_path, config) == earlier


def test_an_interrupted_run_is_gone_on_with(tmp_path):
    run = Run.open(tmp_path, CONFIG)
    assert run.status == "fresh"
    run.log({"step": 1})
    run.checkpoint_path.write_bytes(b"")
    assert Run.open(tmp_path, CONFIG).status == "resume"
    assert find(tmp_path, CONFIG) is None
    run.finish(RESULT, PRIVACY)
    assert not run.checkpoint_path.exists()


def test_a_run_killed_before_its_first_line_begins_again(tmp_path, recwarn):
    run = Run.open(tmp_path, CONFIG)
    (run.directory / ".unfinished-1-checkpoint.pt").write_bytes(b"torn")
    assert Run.open(tmp_path, CONFIG).status == "fresh"
    assert os.listdir(run.directory) == ["config.yaml"] and not recwarn.list


def spoil_config(directory):
    (directory / "config.yaml").write_text("eps: [8\n")


def spoil_foreign(directory):
    (directory / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"seed": 7}))


def spoil_result(directory):
    (directory / "result.json").write_text('{"test_acc')


def spoil_privacy(directory):
    (directory / "privacy.json").unlink()


def spoil_metrics(directory):
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "train_l')


def spoil_no_checkpoint(directory):
    (directory / "result.json").unlink()


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_config,
        spoil_foreign,
        spoil_result,
        spoil_privacy,
        spoil_metrics,
        spoil_no_checkpoint,
    ],
    ids=lambda function: function.__name__.removeprefix("spoil_"),
)
def test_a_damaged_directory_is_moved_aside_whole(tmp_path, spoil):
    run = finished(tmp_path)
    for number in (1, 2):
        spoil(run.directory)
        before = {path.name: path.read_bytes() for path in run.directory.iterdir()}
        with pytest.warns(UserWarning, match=rf"moved aside to {run.id}\.broken-{number}"):
            again = Run.open(tmp_path, CONFIG)
        assert again.status == "fresh" and os.listdir(again.directory) == ["config.yaml"]
        aside = run.directory.with_name(f"{run.id}.broken-{number}")
        assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
        finished(tmp_path)


def test_a_file_in_the_way_is_moved_aside(tmp_path):
    directory = records.locate(tmp_path, CONFIG)
    directory.parent.mkdir(parents=True)
    directory.write_text("not a run")
    with pytest.warns(UserWarning, match="moved aside"):
        assert Run.open(tmp_path, CONFIG).status == "fresh"
    assert directory.with_name(f"{directory.name}.broken-1").read_text() == "not a run"


def test_damaged_records_are_not_read(tmp_path):
    run = finished(tmp_path)
    for name in ("config.yaml", "result.json", "privacy.json", "metrics.jsonl"):
        path = run.directory / name
        whole = path.read_text()
        for torn in ("", "{", "[1]", "null"):
            path.write_text(torn)
            assert read(run.directory) is None
        path.write_text(whole)
    assert read(run.directory) is not None


def test_metrics_are_replaced_by_those_that_are_given_and_torn_lines_are_none(tmp_path):
    run = Run.open(tmp_path, CONFIG)
    for step in (10, 20, 30):
        run.log({"step": step, "train_loss": math.nan})
    with run.metrics_path.open("a") as file:
        file.write('{"step": 40, "train_l')
    assert [line["step"] for line in run.metrics()] == [10, 20, 30]
    run.restore_metrics(line for line in run.metrics() if line["step"] <= 20)
    run.log({"step": 30, "train_loss": 0.5})
    lines = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30]
    assert lines[0]["train_loss"] is None and lines[2]["train_loss"] == 0.5


def test_infinity_is_written_as_null(tmp_path):
    run = Run.open(tmp_path, CONFIG)
    run.log({"step": 1})
    run.finish(RESULT, {"epsilon": {"prv": math.inf}, "list": [math.nan, 1.5]})
    expected = {"epsilon": {"prv": None}, "list": [None, 1.5], "run": run.id}
    assert read(run.directory).privacy == expected


FILL = """
import resource, sys
from dpexp.records import RecordError, write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(sys.argv[1], "x" * 5000)
except RecordError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_earlier_file(tmp_path, programs):
    path = tmp_path / "result.json"
    records.write_atomically(path, "old")
    said = programs.run(["-c", FILL, str(path)]).stdout
    assert said.startswith(f"Cannot write {path}: ") and said.count("\n") == 1
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["result.json"]


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RecordError, match="Cannot make"):
        Run.open(tmp_path / "results", CONFIG)


def test_the_commit_is_named_with_its_changes(tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
        subprocess.run([*command, *arguments], check=True, capture_output=True)

    assert git_commit(tmp_path) is None
    git("init")
    assert git_commit(tmp_path) is None
    code = tmp_path / "dpexp" / "train.py"
    code.parent.mkdir()
    code.write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    commit = git_commit(code.parent)
    assert len(commit) == 40
    (tmp_path / "results.csv").write_text("1\n")
    assert git_commit(code.parent) == commit
    code.write_text("a = 2\n")
    assert git_commit(code.parent) == f"{commit}+dirty"


def test_provenance_names_what_a_result_rests_on():
    assert {"python", "torch", "opacus", "numpy", "dpexp"} <= set(versions())
    assert "threads" in records.describe_device("cpu")


def test_no_committed_record_names_a_folder_of_the_machine_that_made_it():
    configs = sorted((ROOT / "results").glob("*/runs/*/config.yaml"))
    assert len(configs) > 500
    named = [str(path) for path in configs if re.search(r"_root: ['\"]?[/~]", path.read_text())]
    assert named == []
