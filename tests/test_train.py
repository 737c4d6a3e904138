"""Whole runs on real digits: their record, looking up, stopping and going on, sharing, refusing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import run
from dpexp import checkpoint, records
from dpexp.mechanism import PrivacyError
from dpexp.mechanism.sampling import poisson
from dpexp.methods.dpsgd import DPSGD
from dpexp.ranks import Ranks
from dpexp.train import estimate, train
from dpexp.types import ConfigError
from tests.runs import execute, of, one_thread  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ["task=digits", "profile=embedded", "device=cpu"]
DIGITS = [*DEFAULT, "model=wrn10_1", "batch_size=360"]  # a quarter of the data a step
SHORT = ["method=dpsgd", *DIGITS, "epochs=3", "eval_every=0.5"]


# The record


def test_a_run_leaves_every_field_of_its_contract(tmp_path):
    words = ["method=rgp", *DIGITS, "eps=8", "epochs=3", "eval_every=1", "seed=3"]
    directory = execute(tmp_path, *words)
    config = run.compose([*words, f"results={tmp_path}"])
    assert directory == tmp_path / "embedded" / "runs" / records.run_id(config)
    assert sorted(os.listdir(directory)) == [
        "config.yaml",
        "metrics.jsonl",
        "privacy.json",
        "result.json",
    ]
    assert yaml.safe_load((directory / "config.yaml").read_text()) == config
    lines, result, privacy = of(directory)

    assert [line["step"] for line in lines] == [4, 8, 12]
    for line in lines:
        assert line["epoch"] == pytest.approx(line["step"] * 360 / 1437)
        assert 0 < line["epsilon"] <= 8 and line["train_loss"] > 0
        assert 0 <= line["clip_fraction"] <= 1 and 0 <= line["test_accuracy"] <= 100
        assert line["nonfinite"] == 0
    assert [line["epsilon"] for line in lines] == sorted(line["epsilon"] for line in lines)

    said = {
        "method": "rgp",
        "model": "wrn10_1",
        "task": "digits",
        "profile": "embedded",
        "seed": 3,
        "eps": 8,
        "delta": 1e-4,
        "metric": "test_accuracy",
        "test_accuracy": lines[-1]["test_accuracy"],
        "epochs": 3,
        "steps": 12,
        "ranks": 1,
    }
    assert {key: result[key] for key in said} == said
    for key in ("wall_s", "examples_per_s", "peak_memory_mb"):
        assert result[key] > 0
    assert result["device"] and result["versions"]["torch"] == torch.__version__
    assert len(result["data_fingerprint"]) == 64
    assert "git_commit" in result

    assert privacy["neighbouring"] == "add or remove one example"
    assert (privacy["sampling"], privacy["dataset_size"]) == ("poisson", 1437)
    assert privacy["q"] == pytest.approx(360 / 1437)
    assert privacy["steps"] == privacy["noise_draws"] == 12
    assert privacy["noise_multiplier"] > 0
    (release,) = privacy["releases"]
    assert release["sensitivity"] == 1 and release["dimension"] > 640
    assert 0.99 * 8 < privacy["epsilon"]["prv"] <= 8 < privacy["epsilon"]["rdp"]
    assert (privacy["target_epsilon"], privacy["delta"]) == (8, 1e-4)
    assert privacy["trainable"]["head.weight"] == 640
    assert all(name.endswith(".weight") for name in privacy["trainable"])
    assert privacy["frozen"] == {} and privacy["deviations"] == []
    assert privacy["replayable"] is True


def test_what_does_not_train_is_named_as_frozen(tmp_path):
    words = ["method=linear", *DIGITS, "epochs=0.5", "noise=true", "clip=true", "eps=4"]
    _, _, privacy = of(execute(tmp_path, *words))
    assert privacy["trainable"] == {"head.weight": 640}
    assert "stem.weight" in privacy["frozen"]
    assert privacy["releases"][0]["dimension"] == 640


def test_a_second_call_looks_the_run_up_and_writes_nothing(tmp_path):
    directory = execute(tmp_path, *SHORT)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    began = time.monotonic()
    # Settings that change no result name the same run.
    assert execute(tmp_path, *SHORT, "micro_batch=77", "checkpoint.every=0") == directory
    assert time.monotonic() - began < 1
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    assert after == before


@pytest.mark.parametrize(
    ("words", "at_least"),
    [(["method=nonprivate"], 90.0), (["method=rgp", "eps=8"], 35.0)],
    ids=["nonprivate", "rgp"],
)
def test_a_model_learns(tmp_path, words, at_least):
    _, result, _ = of(execute(tmp_path, *DEFAULT, *words, "epochs=20", "eval_every=20"))
    assert result["test_accuracy"] > at_least  # chance is 10


def test_empty_draws_are_steps_and_are_counted(tmp_path):
    words = [*DIGITS, "method=rgp", "eps=1", "batch_size=2", "epochs=0.02"]
    lines, result, privacy = of(execute(tmp_path, *words))
    draws = [len(poisson(0, step, 1437, 2 / 1437)) for step in range(privacy["steps"])]
    assert 0 in draws  # or this test shows nothing
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"] == 15
    assert lines[-1]["epsilon"] <= 1


def test_an_example_that_is_not_finite_is_counted_and_spoils_nothing(tmp_path):
    config = run.compose([*DIGITS, "method=rgp", "epochs=1", f"results={tmp_path}"])
    cpu = torch.device("cpu")
    parts = run.build_parts(config, cpu)
    inputs = parts.task.train.inputs.clone()
    inputs[7, 0, 2, 2] = float("nan")
    poisoned = replace(parts.task, train=replace(parts.task.train, inputs=inputs))
    train(config, replace(parts, task=poisoned), Ranks(0, 1, cpu))
    lines, result, privacy = of(records.locate(tmp_path, config))
    drawn = sum(bool((poisson(0, step, 1437, 360 / 1437) == 7).any()) for step in range(4))
    assert lines[-1]["nonfinite"] == drawn > 0
    assert lines[-1]["train_loss"] is None  # the plain sum of losses is not finite
    assert privacy["noise_draws"] == 4
    assert all(parameter.isfinite().all() for parameter in parts.model.parameters())


# Stopping and going on


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return of(execute(tmp_path_factory.mktemp("unbroken"), *LONG))


LONG = ["method=rgp", *DIGITS, "epochs=6", "eval_every=0.25", "method.warm_up_steps=8"]


def stop(results, number):
    """Start a run, send it a signal halfway, and give its directory and exit code."""
    command = [sys.executable, "run.py", *LONG, f"results={results}", "checkpoint.every=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    directory = records.locate(results, run.compose(LONG))
    metrics = directory / "metrics.jsonl"
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            if metrics.exists() and len(metrics.read_text().splitlines()) >= 10:
                process.send_signal(number)
                break
            time.sleep(0.005)
        said = process.stderr.read()
    assert not (directory / "result.json").exists(), "too fast to be stopped"
    return directory, process.returncode, said


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that SIGTERM stopped."""
    return stop(tmp_path_factory.mktemp("stopped"), signal.SIGTERM)


def copied(directory, tmp_path):
    """Copy a run's directory below another results folder."""
    there = tmp_path / "embedded" / "runs" / directory.name
    shutil.copytree(directory, there)
    return there


def assert_same_run(got, expected):
    assert got[0] == expected[0]  # every metric of every evaluation, to the last bit
    assert got[1]["test_accuracy"] == expected[1]["test_accuracy"]
    assert got[2] == expected[2]


def test_a_run_stopped_by_sigterm_ends_as_if_never_stopped(stopped, unbroken, tmp_path):
    directory, code, said = stopped
    assert code == 128 + signal.SIGTERM
    assert "run it again to go on" in said and "Traceback" not in said
    there = copied(directory, tmp_path)
    saved = checkpoint.load(there / "checkpoint.pt")["position"]
    assert 8 < saved["step"] < 24
    assert execute(tmp_path, *LONG) == there
    assert_same_run(of(there), unbroken)
    assert not list(there.glob("checkpoint*"))


def test_a_run_that_was_killed_ends_as_if_never_killed(unbroken, tmp_path):
    directory, code, _ = stop(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert execute(tmp_path, *LONG) == directory
    assert_same_run(of(directory), unbroken)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(stopped, unbroken, tmp_path):
    there = copied(stopped[0], tmp_path)
    path = there / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"checkpoint\.pt is damaged"):
        execute(tmp_path, *LONG)
    assert_same_run(of(there), unbroken)


@pytest.mark.filterwarnings("ignore:Checkpoint .* is damaged")
def test_a_run_without_a_whole_checkpoint_is_moved_aside_and_begun_again(
    stopped, unbroken, tmp_path
):
    there = copied(stopped[0], tmp_path)
    for path in there.glob("checkpoint*"):
        path.write_bytes(b"not a checkpoint")
    before = (there / "metrics.jsonl").read_bytes()
    with pytest.warns(UserWarning, match=r"moved aside to .*\.broken-1"):
        execute(tmp_path, *LONG)
    assert_same_run(of(there), unbroken)
    aside = there.with_name(f"{there.name}.broken-1")
    assert (aside / "metrics.jsonl").read_bytes() == before


def tampered(there, **position):
    saved = checkpoint.load(there / "checkpoint.pt")
    saved["position"] |= position
    checkpoint.save(there / "checkpoint.pt", saved)


def test_a_run_whose_noise_was_not_drawn_once_a_step_fails(stopped, tmp_path):
    there = copied(stopped[0], tmp_path)
    draws = checkpoint.load(there / "checkpoint.pt")["position"]["noise_draws"]
    tampered(there, noise_draws=draws - 1)
    with pytest.raises(PrivacyError, match="Noise was drawn at 23 steps where 24"):
        execute(tmp_path, *LONG)
    assert not (there / "result.json").exists() and not (there / "privacy.json").exists()


def test_a_run_stopped_after_its_last_step_still_states_its_result(tmp_path):
    """The last checkpoint may be all that is left to do: no step, no evaluation."""
    command = [sys.executable, "-c", KILLED_AT_THE_END, *SHORT, f"results={tmp_path}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    directory = records.locate(tmp_path, run.compose(SHORT))
    assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 12
    assert execute(tmp_path, *SHORT) == directory
    lines, result, _ = of(directory)
    assert result["test_accuracy"] == lines[-1]["test_accuracy"]


KILLED_AT_THE_END = """
import os, signal, sys, run
from dpexp.logbook import Logbook
Logbook.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run.execute(run.compose([*sys.argv[1:], "checkpoint.every=0"]))
"""


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "privacy.json"])
def test_a_damaged_run_is_moved_aside_and_run_again(tmp_path, name):
    words = ["method=nonprivate", *DIGITS, "epochs=0.5"]
    directory = execute(tmp_path, *words)
    expected = of(directory)
    (directory / name).write_text("{")
    with pytest.warns(UserWarning, match=r"moved aside to .*\.broken-1"):
        assert execute(tmp_path, *words) == directory
    assert (directory.with_name(f"{directory.name}.broken-1") / name).read_text() == "{"
    assert_same_run(of(directory), expected)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    words = [*SHORT, f"results={tmp_path}"]
    subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, *words], cwd=ROOT, check=False)

    config = run.compose(words)
    parts = run.build_parts(config, torch.device("cpu"))
    parts.task = replace(parts.task, fingerprint="another")
    with pytest.raises(ConfigError, match="fingerprints"):
        train(config, parts, Ranks(0, 1, torch.device("cpu")))


def test_a_secret_run_leaves_no_checkpoint_to_go_on_from(tmp_path):
    words = [*SHORT, "noise=secret", f"results={tmp_path}"]
    subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, *words], cwd=ROOT, check=False)
    assert list(tmp_path.rglob("config.yaml")) and not list(tmp_path.rglob("*.pt"))


# Several processes


def test_two_processes_train_what_one_does(tmp_path):
    # A small rate: a large one makes rounding grow from step to step.
    words = ["method=rgp", *DIGITS, "optimizer.lr=0.1", "epochs=2", "eval_every=0.25"]
    alone = of(execute(tmp_path / "one", *words))
    shared = of(execute(tmp_path / "two", *words, "ranks=2"))
    assert shared[1]["ranks"] == 2
    assert len(shared[0]) == len(alone[0]) == 8
    for one, two in zip(alone[0], shared[0], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
        assert (two["step"], two["epsilon"]) == (one["step"], one["epsilon"])
        assert two["clip_fraction"] == one["clip_fraction"]
    assert shared[2] == alone[2]  # the same mechanism, the same draws of noise


# Departures from the claim


def test_secret_noise_is_not_replayable_and_says_so(tmp_path, caplog):
    words = [*SHORT, "noise=secret"]
    with caplog.at_level("INFO", "dpexp"):
        one, other = (of(execute(tmp_path / name, *words)) for name in "ab")
    assert "secret randomness: the run cannot be replayed" in caplog.text
    assert [a["train_loss"] for a in one[0]] != [b["train_loss"] for b in other[0]]
    for lines, _, privacy in (one, other):
        assert privacy["replayable"] is False
        assert any("secret" in word for word in privacy["deviations"])
        assert 0 < lines[-1]["epsilon"] <= 8
        assert privacy["noise_draws"] == privacy["steps"]


def test_shuffled_batches_are_no_guarantee_and_say_so(tmp_path, caplog):
    with caplog.at_level("INFO", "dpexp"):
        lines, _, privacy = of(execute(tmp_path, *SHORT, "sampling=shuffle"))
    assert "not a guarantee" in caplog.text
    assert privacy["sampling"] == "shuffle"
    assert any("not a guarantee" in word for word in privacy["deviations"])
    assert privacy["noise_draws"] == privacy["steps"] == lines[-1]["step"] == 12


@pytest.mark.parametrize(
    "words", [["noise=false", "clip=false", "eps=null"], ["clip=false"], ["noise=false"]]
)
def test_without_noise_or_clipping_no_epsilon_is_stated(tmp_path, words):
    lines, result, privacy = of(execute(tmp_path, *DIGITS, "method=rgp", "epochs=0.5", *words))
    assert result["eps"] is None and privacy["target_epsilon"] is None
    assert set(privacy["epsilon"].values()) == {None}
    assert all(line["epsilon"] is None for line in lines)
    assert any("no privacy" in word for word in privacy["deviations"])
    assert privacy["noise_draws"] == (0 if "noise=false" in words else privacy["steps"])


def test_a_mistake_under_several_processes_is_still_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"Set method\.rank"):
        execute(tmp_path, "method=rgp", *DIGITS, "method.rank=500", "ranks=2")


# Estimates


class SlowToPrepare(DPSGD):
    """Takes a fifth of a second before every step, however few examples are drawn."""

    def prepare(self, model, state, public, gen):
        time.sleep(0.2)
        return state


def test_what_a_step_costs_without_examples_is_estimated_once_a_step():
    device = torch.device("cpu")
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "micro_batch=2"]
    config = run.compose([*words, "batch_size=300", "epochs=2"])
    parts = replace(run.build_parts(config, device), method=SlowToPrepare("all", "head"))
    seconds, _ = estimate(config, parts, Ranks(0, 1, device))
    steps = round(2 * 1437 / 300)
    assert 0.2 * steps < seconds < 0.2 * steps + 20  # not 0.2 s for every four examples: 143 s
