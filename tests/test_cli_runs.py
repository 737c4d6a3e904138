"""What a person asks of `python run.py ...`, and gets: runs, sweeps, help and completion."""

import json
import os
import re
import warnings
from datetime import date

import pytest
import yaml

from dpexp import cli
from dpexp.cli import idle, validate
from dpexp.cli.errors import GROUPS, HELP
from tests.marks import few, long
from tests.test_cli import (
    BRIEF,
    DIGITS,
    METHODS,
    the_error,
)


def test_the_last_line_is_the_runs_directory(shell, tmp_path):
    words = ["method=rgp", *BRIEF]
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    directory = tmp_path / done.stdout.splitlines()[-1]
    assert directory.parent == tmp_path / "results" / "embedded" / "runs"
    assert (directory / "result.json").exists()
    assert "trainable" in done.stderr and "noise multiplier" in done.stderr
    assert "test_accuracy=" in done.stderr and "Warning" not in done.stderr
    assert os.listdir(tmp_path) == ["results"]  # nothing else is left lying about
    again = shell(*words)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    _, line = again.stderr.splitlines()
    assert line.startswith("done before: test_accuracy ") and "of 8 at delta" in line
    assert f"the record was made on {date.today()} at " in line and str(directory.name) in line
    result = json.loads((directory / "result.json").read_text())  # as of a run that diverged
    (directory / "result.json").write_text(json.dumps(result | {"test_accuracy": None}))
    again = shell(*words)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "\ndone before: test_accuracy no number" in again.stderr


@pytest.mark.parametrize("rank", [{}, long({"RANK": "first"})])
def test_a_process_that_torchrun_did_not_start_is_not_taken_for_a_rank(shell, rank):
    line = the_error(shell("method=rgp", *BRIEF, WORLD_SIZE="2", **rank))
    assert "Expected RANK to be a number, as torchrun sets it" in line


OF_BUILDERS = {"artifact", "hydra", "recipe", "scale", "tuned"}
"""Folders of conf from which no run chooses."""


def test_help_names_every_group_that_a_run_chooses_from():
    groups = {path.name for path in cli.CONF.iterdir() if path.is_dir()} - OF_BUILDERS
    assert set(GROUPS.findall(HELP.read_text())) == groups


def test_help_names_the_choices_and_the_commands(shell):
    done = shell("--help")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    for said in (f"method: {', '.join(METHODS)}", "task: cifar10, cifar100"):
        assert said in done.stdout
    for said in ("python run.py -m", "profile=embedded", "--cfg job", "eps: 8.0", "micro_batch:"):
        assert said in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--help", "method=gep", "task=svhn"),
        pytest.param(("method=gep", *DIGITS, "--help"), marks=pytest.mark.long),
    ],
)
def test_help_is_of_what_is_chosen_wherever_it_is_asked_for(shell, words):
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    chosen = dict(word.split("=") for word in words if "=" in word)
    tree = yaml.safe_load(done.stdout.partition("key=value ==")[2].partition("Tables and fig")[0])
    assert tree["method"]["name"] == chosen.get("method", "rgp")
    assert tree["task"]["name"] == chosen.get("task", "cifar10")


def test_a_small_profile_says_where_it_leaves_a_run_large():
    config = cli.compose(["method=rgp", "task=cifar10", "profile=embedded"])
    assert "200 epochs, a total of 10,000,000 examples" in validate.unscaled(config)
    assert "digits" in validate.unscaled(config)
    for words in (["task=cifar10", "profile=quick"], ["task=digits", "profile=embedded"]):
        assert validate.unscaled(cli.compose(["method=rgp", *words])) == ""
    assert validate.unscaled(cli.compose(["method=rgp", "task=cifar10"])) == ""


def test_what_a_run_does_not_read_is_told_of():
    def told(*words):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            config = cli.compose(["task=digits", "profile=embedded", *words])
            idle.warn(config, words)
        return [str(each.message).partition(" ")[0] for each in warned]

    assert told("method=pate", "epochs=3", "++batch_size=7", "seed=2") == [
        "epochs=3",
        "++batch_size=7",
    ]
    assert told("method=nonprivate", "privacy.clip_norm=7") == ["privacy.clip_norm=7"]
    assert told("method=rgp", "privacy.clip_norm=7", "epochs=3") == []


def test_cfg_job_prints_the_whole_config_and_runs_nothing(shell, tmp_path):
    done = shell("method=rgp", "task=cifar10", "--cfg", "job")
    assert done.returncode == 0 and done.stderr == ""
    for said in ("name: wrn28_4", "dataset_size: 50000", "rank: 16", "lr: 0.5", "name: paper"):
        assert said in done.stdout
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("tasks", few(["digits", "digits,shapes"], ["digits"]))
def test_a_sweep_runs_methods_and_tasks(shell, tmp_path, tasks):
    words = ["method=linear,nonprivate", f"task={tasks}", "profile=embedded", "epochs=0.1"]
    done = shell("-m", *words, "model=linear")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("results/")]
    assert len(set(lines)) == 2 * len(tasks.split(","))
    assert all((tmp_path / line / "result.json").exists() for line in lines)
    assert sorted(os.listdir(tmp_path)) == ["multirun", "results"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("method=", " ".join(f"method={name}" for name in METHODS)),
        long("method=rgp task=dig", "task=digits"),
        ("method=rgp task=digits batch", "batch_size="),
        long("method=rgp task=digits optimizer.l", "optimizer.lr="),
        long("ep", "epochs= eps="),
    ],
)
def test_the_shell_can_complete(shell, line, offered):
    words = f"python run.py {line}"
    done = shell("-sc", "query=bash", COMP_LINE=words, COMP_POINT=str(len(words)))
    assert (done.returncode, done.stdout.strip()) == (0, offered), done.stderr


def test_a_look_up_says_what_was_spent_and_what_sets_the_run_apart(shell):
    """A look-up named no deviation: an audited run's model looked as one for use."""
    words = ["task=digits", "profile=embedded", "model=linear", "device=cpu", "epochs=1", "eps=8"]
    words += ["method=dpsgd"]
    done, again = (shell(*words, "attack=loss_threshold").stderr.splitlines()[-1] for _ in "12")
    assert done.startswith("done: ") and again.startswith("done before: ")
    for said in (r"eps \S+ of 8 at delta 0.0001\b", r"\(attacked: .* are not covered\)"):
        assert re.search(said, done) and re.search(said, again), (done, again)
