"""A sweep ends with a table of its jobs."""

import csv
import re

import pytest

from dpexp.cli import command_line, sweeps, verbosity
from dpexp.types import ConfigError
from tests.runs import execute

BRIEF = ["task=digits", "profile=embedded", "model=linear", "epochs=0.2"]


def rows_of(folder):
    (path,) = folder.glob("multirun/*/table.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_ends_with_what_varied_and_what_came_out(shell, tmp_path):  # noqa: F811
    """And its last line on stdout is the last run's directory, as of any run."""
    done = shell("-m", "method=dpsgd,nonprivate", "eps=8", "seed=0,-1", *BRIEF)
    assert done.returncode == 2  # of the jobs that failed
    directories = done.stdout.split()
    rows = rows_of(tmp_path)
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("dpsgd", "0"),
        ("dpsgd", "-1"),
        ("nonprivate", "0"),
        ("nonprivate", "-1"),
    ]
    assert [row["folder"] for row in rows if row["folder"]] == directories
    good, bad, free, _ = rows
    assert float(good["test_accuracy"]) > 0 and 0 < float(good["epsilon"]) <= 8
    assert float(good["seconds"]) > 0
    assert bad["test_accuracy"] == "failed" and bad["why"].startswith("Expected seed to be a whole")
    assert free["epsilon"] == ""

    assert "epsilon is of one run" not in done.stderr  # a single run has one
    *table, path = done.stderr.splitlines()[-6:]
    assert path.endswith("table.csv") and re.split(r" {2,}", table[0]) == [
        *("method", "seed", "test_accuracy", "epsilon", "time", "folder")
    ]
    assert directories[0] in table[1] and "failed" in table[2] and "Expected seed" in table[2]
    assert len(list(tmp_path.glob("multirun/*/*"))) == 1  # notes of single jobs are gone


@pytest.mark.long
def test_a_sweep_says_which_epsilon_is_no_guarantee_and_what_none_counts(
    shell,  # noqa: F811
    tmp_path,
):
    done = shell("-m", "method=dpsgd", "eps=8", "sampling=poisson,shuffle", *BRIEF)
    assert done.returncode == 0
    drawn, sliced = rows_of(tmp_path)
    assert not drawn["deviations"] and "not a guarantee" in sliced["deviations"]
    heads, first, second, footnote, path, note = done.stderr.splitlines()[-6:]
    assert "deviations" not in heads and path.endswith("table.csv")
    assert f"{sliced['epsilon']} [1]" in second and "[1]" not in first
    assert footnote == f"[1] {sliced['deviations']}"
    assert "None counts that 2 runs read the same data, nor a choice among them" in note


@pytest.mark.long
def test_a_sweep_that_is_interrupted_shows_the_jobs_that_are_done(tmp_path, programs):
    program = f"""
import os, sys
from dpexp.cli import run
os.chdir({str(tmp_path)!r})
original, calls = run.execute, []
def second_is_stopped(config):
    calls.append(config)
    if len(calls) == 2:
        raise KeyboardInterrupt
    return original(config)
run.execute = second_is_stopped
sys.argv = ["run.py", "-m", "method=dpsgd", "eps=2,4,8", *{BRIEF!r}]
run.main()
"""
    done = programs.run(["-c", program])
    assert done.returncode == 130, done.stderr
    (row,) = rows_of(tmp_path)
    assert float(row["test_accuracy"]) > 0


def test_a_run_by_itself_has_no_table(shell, tmp_path):  # noqa: F811
    done = shell("method=dpsgd", "eps=8", *BRIEF)
    assert done.returncode == 0 and not (tmp_path / "multirun").exists()


def test_a_table_of_jobs_of_several_metrics_names_each(tmp_path):
    directory = execute(tmp_path, "method=dpsgd", "eps=8", *BRIEF)
    other = execute(tmp_path, "method=dpsgd", "eps=8", "task=regression", "profile=embedded")
    notes = [{"words": [f"task={k}"], "value": str(d)} for k, d in enumerate((directory, other))]
    notes.append({"words": ["task=2"], "value": "/nowhere"})
    first, second, gone = sweeps.table(notes)
    assert (first["metric"], second["metric"]) == ("test_accuracy", "relative_loss")
    assert gone["score"] == "no record"
    marks = sweeps.footnotes([first, second, gone])
    lines = sweeps.aligned([sweeps._on_screen(row, marks) for row in (first, second, gone)])
    assert len(lines) == 4
    assert lines[0].split() == ["task", "score", "metric", "epsilon", "time", "folder"]


def test_of_several_ranks_the_first_shows_the_table(monkeypatch):
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        with sweeps.ending_with_table(["-m", "a=1,2"]) as words:
            assert (words != ["-m", "a=1,2"]) is (rank == 0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "a=1,2"], ["-m", "a=1,2", "HERE"]),
        (["a=1", "-m", "--config-dir", "x"], ["a=1", "HERE", "-m", "--config-dir", "x"]),
        (["--multirun"], ["--multirun", "HERE"]),
    ],
)
def test_what_a_sweep_adds_stands_among_the_other_words(words, expected):
    assert command_line.beside(words, ["HERE"]) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a=1", "-m", "b=2,3"], ["a=1", "b=2,3", "-m"]),
        (["--cfg", "job", "a=1"], ["a=1", "--cfg", "job"]),
        (["-c", "hydra", "~b", "--resolve", "c=2"], ["~b", "c=2", "-c", "hydra", "--resolve"]),
        (["--pack", "task", "a=1"], ["a=1", "--pack", "task"]),
        (["-cp", "x=y", "a=1"], ["a=1", "-cp", "x=y"]),
        (["a=1", "--info", "defaults", "b=2"], ["a=1", "b=2", "--info", "defaults"]),
        (["a=1", "--info", "b=2"], ["a=1", "b=2", "--info"]),
        (["a=1", "--config-dir=x=y", "b=2"], ["a=1", "b=2", "--config-dir=x=y"]),
        (["a=1", "wrod", "b=2"], ["a=1", "wrod", "b=2"]),
    ],
)
def test_options_stand_behind_the_settings_wherever_they_stood(words, expected):
    assert command_line.in_one_piece(words) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-v", "a=1"], ["a=1", verbosity.LOGGERS]),
        (["a=1", "--help", "-v"], ["a=1", verbosity.LOGGERS, "--help"]),
        (["-v", "verbose=false", "a=1"], ["a=1"]),
        (["a=1", "--verbose"], ["a=1", verbosity.LOGGERS]),
        (["verbose=True"], [verbosity.LOGGERS]),
        (["+verbose=true"], [verbosity.LOGGERS]),
        (["verbose=false", "a=verbose=true"], ["a=verbose=true"]),
    ],
)
def test_asking_for_more_is_hydras_own_word(words, expected):
    assert verbosity.translated(words) == expected


@pytest.mark.parametrize("value", ["", "1", "yes", "null"])
def test_more_or_not_is_true_or_false(value):
    with pytest.raises(ConfigError, match="Set verbose=true"):
        verbosity.translated([f"verbose={value}"])


# Optuna


SEARCH = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1"]
SEARCH += ["method=dpsgd", "eps=8", *BRIEF, "optimizer.lr=interval(0.1,1)"]


def test_a_sweeper_without_its_plugin_names_what_it_needs(shell):  # noqa: F811
    done = shell(*SEARCH)
    if done.returncode == 0:
        pytest.skip("hydra-optuna-sweeper is installed")
    assert done.returncode == 2 and "pip install -e '.[optuna]'" in done.stderr


def test_optunas_trials_are_judged_on_held_out_training_examples(shell, tmp_path):  # noqa: F811
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    done = shell(*SEARCH, "hydra.sweeper.direction=maximize")
    assert done.returncode == 0, done.stderr
    assert "Best value: " in done.stderr
    assert len(rows_of(tmp_path)) == 2 and not (tmp_path / "results").exists()
    assert done.stderr.count("on held-out training examples") == 2
    assert "note: 2 trials were trained and judged on the private training set" in done.stderr


def test_a_search_for_the_worst_is_refused(shell):  # noqa: F811
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    done = shell(*SEARCH)
    assert done.returncode == 2
    assert "Expected hydra.sweeper.direction=maximize, since trials are judged by" in done.stderr
