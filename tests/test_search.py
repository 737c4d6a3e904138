"""Settings are tried on training examples that were held out, and on nothing else."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpexp import cli
from dpexp.cli import search, sweeps, tune
from dpexp.types import ConfigError
from tests.marks import some_long
from tests.runs import one_process, one_thread  # noqa: F401

SHORT = ["profile=embedded", "method=dpsgd", "task=digits", "model=linear", "epochs=2"]
SHORT += ["batch_size=360", "device=cpu"]


def task():
    return cli.build_task(cli.compose(SHORT), torch.device("cpu"))


def test_what_is_held_out_is_a_fifth_of_the_training_set_and_none_of_it_is_trained_on():
    whole = task()
    got, again = search.held_out(whole), search.held_out(whole)
    assert (len(got.train), len(got.test), got.dataset_size) == (1150, 287, 1150)
    rows = [tuple(image.flatten().tolist()) for image in whole.train.inputs]
    kept, judged = (
        [tuple(image.flatten().tolist()) for image in examples.inputs]
        for examples in (got.train, got.test)
    )
    assert sorted(kept + judged) == sorted(rows)
    assert torch.equal(got.test.inputs, again.test.inputs)


@pytest.mark.parametrize("method", some_long(["dpsgd", "lsg"], ["lsg"]))
def test_the_test_set_is_not_looked_at(method, monkeypatch):
    words = ["profile=embedded", "task=digits", "epochs=1", "device=cpu", f"method={method}"]
    before = search.attempt(words)
    whole, build = task(), cli.build_parts

    def without_test(config, device):
        parts = build(config, device)
        wrong = replace(whole.test, targets=(whole.test.targets + 1) % 10)
        return replace(parts, task=replace(parts.task, test=wrong))

    monkeypatch.setattr(search, "build_parts", without_test)
    assert search.attempt(words) == before
    assert 0 < before <= 100


def test_values_with_commas_are_tried_in_all_combinations(capsys):
    words = ["a=1,2,1", "b=x", "c=[1,2]", "~d"]
    assert search.combinations(words) == [
        ("a=1", "b=x", "c=[1,2]", "~d"),
        ("a=2", "b=x", "c=[1,2]", "~d"),
    ]
    assert search.main([*SHORT, "optimizer.lr=0.1,1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["optimizer.lr=0.1" in line for line in lines] == [True, False]


def test_no_line_calls_a_score_on_held_out_training_examples_one_of_the_test_set(capsys):
    assert search.main([*SHORT, "optimizer.lr=0.1"]) == 0
    err = capsys.readouterr().err
    assert "holdout_accuracy=" in err and "test_" not in err
    assert "note: 1 trial was trained" in err and "does not count that choice" in err
    whole = replace(task(), metric="test_mse")
    assert search.held_out(whole).metric == "holdout_mse"


@pytest.mark.parametrize(
    "words",
    [
        ["method=dpsgd,rgp", "model=linear"],
        ["method=dpsgd,rpg"],
        ["method=dpsgd", "optimizer.lr=1,x"],
        ["method=dpsgd", "eps=8,-1"],
        ["method=rgp", "method.rank=1,999"],
        ["method=lsg", "method.rank=2", "method.p=0.5,7"],
        ["method=dpsgd", "clipping=normalize", "clipping.gamma=0.01,0"],
        ["method=dpsgd", "averaging=ema", "averaging.decay=0.9,2"],
        ["method=dpsgd", "denoise=disk", "denoise.kappa=0.5,7"],
        ["method=dpsgd", "augmentation=crop_flip", "augmentation.padding=1,99"],
        ["method=dpsgd", "noise=correlated", "correlation.bands=2,0"],
        ["method=dpsgd", "clipping=adaptive", "clipping.quantile=0.5,1.5"],
    ],
)
def test_a_mistake_in_the_last_combination_costs_no_run_of_the_first(words, capsys):
    assert search.main([*SHORT, *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: Expected")


def test_a_run_without_a_finite_number_is_told(capsys, monkeypatch):
    monkeypatch.setattr(search, "score", lambda config, parts: float("nan"))
    assert search.main([*SHORT, "optimizer.lr=1e9"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("optimizer.lr=1e9 diverged")


def test_an_error_is_told_by_its_name_and_with_its_digits(capsys, monkeypatch):
    monkeypatch.setattr(search, "score", lambda config, parts: 0.04321)
    words = ["profile=embedded", "method=dpsgd", "task=regression", "epochs=1", "device=cpu"]
    assert search.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("relative_loss 0.04321")


def test_a_mistake_is_one_line(capsys):
    assert search.main([*SHORT, "method=dpsdg"]) == 2
    assert "dpsgd" in capsys.readouterr().err


def test_a_loop_of_its_own_is_refused_in_one_line(capsys):
    assert search.main(["method=pate", "task=digits"]) == 2
    err = capsys.readouterr().err
    assert "method=pate has its own" in err and err.count("\n") == 1


def test_no_other_test_set_is_looked_at_either():
    whole = task()
    got = search.held_out(replace(whole, also={"test_accuracy_mm": whole.test}))
    assert not got.also


@pytest.mark.parametrize("method", ["dpsgd", "lsg"])
def test_sampling_rate_steps_and_delta_are_those_of_the_whole(method):
    words = ["profile=embedded", "task=digits", "device=cpu", f"method={method}"]
    whole = cli.compose(words)
    config, parts = search.prepared(cli.compose(words))
    rates = [c["batch_size"] / c["task"]["dataset_size"] for c in (whole, config)]
    assert rates[1] == pytest.approx(rates[0], rel=1e-3)
    assert config["epochs"] == whole["epochs"] and config["privacy"] == whole["privacy"]
    assert parts.task.dataset_size == config["task"]["dataset_size"] == len(parts.task.train)
    told = {key: config["method"].get(key) for key in ("dataset_size", "batch_size")}
    assert told["batch_size"] in (None, config["batch_size"])
    assert told["dataset_size"] in (None, config["task"]["dataset_size"])


def test_the_test_set_s_fingerprint_is_of_the_test_set_alone():
    whole = task()
    other = replace(whole, train=whole.train.take(torch.arange(10)), fingerprint="other")
    assert other.test_fingerprint == whole.test_fingerprint != whole.fingerprint
    fewer = replace(whole, test=whole.test.take(torch.arange(10)))
    also = replace(whole, also={"test_accuracy_mm": whole.test})
    assert len({t.test_fingerprint for t in (whole, fewer, also)}) == 3


NUMBER = ["profile=embedded", "method=dpsgd", "task=regression", "epochs=0.01", "device=cpu"]


def test_a_grid_is_not_searched_for_the_largest_error():
    with pytest.raises(ConfigError, match="judged by holdout_relative_loss. Leave the grid out"):
        tune.attempt_of_accuracy(NUMBER)


@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        ("test_accuracy", "maximize"),
        ("relative_loss", "minimize"),
        ("test_absolute_error", "minimize"),
        ("test_mse", "minimize"),
        ("test_perplexity", "minimize"),
        ("test_error_rate", "minimize"),
    ],
)
def test_a_sweep_looks_for_the_smallest_error(metric, wanted, monkeypatch):
    sweeper = SimpleNamespace(direction=wanted)
    monkeypatch.setattr(sweeps.HydraConfig, "get", lambda: SimpleNamespace(sweeper=sweeper))
    sweeps._require_direction(metric)
    sweeper.direction = {"minimize": "maximize", "maximize": "minimize"}[wanted]
    with pytest.raises(ConfigError, match=f"direction={wanted}, since trials are judged by"):
        sweeps._require_direction(metric)


def test_a_later_method_with_a_loop_of_its_own_costs_no_run_of_the_first(capsys):
    words = ["method=dpsgd,pate", "task=digits", "model=linear", "eps=8", "epochs=0.2"]
    assert search.main(words) == 2
    told = capsys.readouterr()
    assert "method=pate has its own" in told.err and not told.out


def test_a_budget_that_a_method_does_not_spend_is_told_of(capsys):
    """A list of methods may hold one without privacy, whose score is not of that budget."""
    words = ["task=digits", "device=cpu", "model=linear", "epochs=0.1", "eps=8"]
    assert search.main([*words, "method=dpsgd,nonprivate"]) == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "eps=8" in each]
    assert line.endswith("eps=8 has no effect: noise is off, so is privacy.")
