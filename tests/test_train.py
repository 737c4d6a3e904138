"""Whole runs on real digits: their record, looking up, sharing, refusing."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from dpexp import cli, records
from dpexp.distributed.ranks import Ranks
from dpexp.privacy.sampling import poisson
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import execute, of, one_thread  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ["task=digits", "profile=embedded", "device=cpu"]
DIGITS = [*DEFAULT, "model=wrn10_1", "batch_size=360"]  # a quarter of the data a step
SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3", "batch_size=360"]
NARROW = ["model=cnn", "model.channels=[8,16]", "model.kernel=3"]
SHORT = ["method=dpsgd", *DEFAULT, *SMALL, "epochs=3", "eval_every=0.5"]


# The record


WORDS = ["method=rgp", *DIGITS, "eps=8", "epochs=3", "eval_every=1", "seed=3"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return execute(tmp_path_factory.mktemp("recorded"), *WORDS)


def test_a_run_leaves_its_files_and_its_config_where_its_id_says(directory):
    config = cli.compose([*WORDS, f"results={directory.parents[2]}"])
    assert directory.parts[-3:] == ("embedded", "runs", records.run_id(config))
    assert sorted(os.listdir(directory)) == [
        "config.yaml",
        "metrics.jsonl",
        "predictions.npz",
        "privacy.json",
        "released.jsonl",
        "result.json",
    ]
    assert yaml.safe_load((directory / "config.yaml").read_text()) == config


def test_metrics_have_a_line_an_evaluation_with_every_field_of_the_contract(directory):
    lines, _, _ = of(directory)
    assert [line["step"] for line in lines] == [4, 8, 12]
    for line in lines:
        assert line["epoch"] == pytest.approx(line["step"] * 360 / 1437)
        assert 0 < line["epsilon"] <= 8 and line["train_loss"] > 0
        assert 0 <= line["clip_fraction"] <= 1 and 0 <= line["test_accuracy"] <= 100
        assert line["nonfinite"] == 0
    assert [line["epsilon"] for line in lines] == sorted(line["epsilon"] for line in lines)


def test_a_result_has_every_field_of_the_contract(directory):
    lines, result, _ = of(directory)
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


def test_a_certificate_has_every_field_of_the_contract(directory):
    _, _, privacy = of(directory)
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
    assert execute(tmp_path, *SHORT, "micro_batch=77", "checkpoint.steps=1") == directory
    assert time.monotonic() - began < 1
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    assert after == before


@pytest.mark.parametrize(
    ("words", "at_least"),
    [
        long(["method=nonprivate"], 95.0),
        long(["method=rgp", "eps=8"], 85.0),
        (["method=dpsgd", "eps=8", "model=linear"], 90.0),
        (["method=rgp", "eps=8", "optimizer.lr=0.5", "seed=1", *NARROW], 70.0),
    ],
    ids=["nonprivate", "rgp", "dpsgd of a linear model", "rgp of a narrow network"],
)
def test_a_model_learns(tmp_path, words, at_least):
    _, result, _ = of(execute(tmp_path, *DEFAULT, *words, "epochs=12", "eval_every=12"))
    assert result["test_accuracy"] > at_least  # chance is 10


def test_empty_draws_are_steps_and_are_counted(tmp_path):
    words = [*DIGITS, "method=rgp", "eps=1", "batch_size=2", "epochs=0.02"]
    lines, result, privacy = of(execute(tmp_path, *words))
    draws = [len(poisson(0, step, 1437, 2 / 1437)) for step in range(privacy["steps"])]
    assert 0 in draws  # or this test shows nothing
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"] == 15
    assert lines[-1]["epsilon"] <= 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"batch_size": 0}, "Expected batch_size to be a whole number > 0; got batch_size=0"),
        ({"epochs": -1}, "Expected epochs to be a number > 0; got epochs=-1"),
        ({"checkpoint": {"seconds": None, "steps": 0}}, "checkpoint.steps to be null or a whole"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_who_calls_train_themselves_are_told_of_nonsense_too(tmp_path, setting, said):
    config = cli.compose(["method=dpsgd", *DIGITS, f"results={tmp_path}"])
    cpu = torch.device("cpu")
    with pytest.raises(ConfigError, match=said):
        train({**config, **setting}, cli.build_parts(config, cpu), Ranks(0, 1, cpu))
    assert os.listdir(tmp_path) == []


def test_an_example_that_is_not_finite_is_counted_and_spoils_nothing(tmp_path):
    config = cli.compose([*DIGITS, "method=rgp", "epochs=1", f"results={tmp_path}"])
    cpu = torch.device("cpu")
    parts = cli.build_parts(config, cpu)
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
