"""The cost model: FLOPs counted on stand-ins, and seconds and memory of the run's own steps."""

import json
import os
import time

import pytest
import torch

from dpexp import cli
from dpexp.cli import cost_model, plan, step_cost
from dpexp.methods.dpsgd import DPSGD
from tests.marks import some_long

CPU = torch.device("cpu")


def stand_ins(tmp_path):
    return cost_model.CostModel(tmp_path, "paper", CPU, has_stand_ins=True)


def config(tmp_path, *words):
    roots = [f"data_root={tmp_path}", f"model_root={tmp_path}", "profile=paper"]
    return cli.compose([*roots, *words])


def test_flops_are_the_models_times_the_examples_and_evaluations(tmp_path):
    words = ["task=mnist", "model=linear", "method=nonprivate", "batch_size=1000", "epochs=10"]
    cost = stand_ins(tmp_path).cost(config(tmp_path, *words, "eval_every=2"))
    product = 2 * 784 * 10  # of one example with the weights; the weights' gradient is another
    examples = 10 * 60000 + 5 * cost_model.TEST_SHARE * 60000 / 3
    assert cost.flops == pytest.approx(2 * product * examples, rel=0.01)
    assert cost.seconds > 0


def test_flops_do_not_hang_on_a_layout_whose_kernels_are_not_counted(tmp_path):
    words = ["task=cifar10", "model=wrn10_1", "method=rgp", "method.rank=4"]
    layouts = [f"model.channels_last={layout}" for layout in ("false", "true", "auto")]
    first, *others = (
        stand_ins(tmp_path).cost(config(tmp_path, *words, at)).flops for at in layouts
    )
    assert others == [first] * 2


def test_runs_of_a_kind_share_a_measurement_whatever_their_rank_and_budget(tmp_path):
    costs = stand_ins(tmp_path)
    words = ["task=mnist", "model=cnn", "method=rgp", "epochs=2"]
    first = costs.cost(config(tmp_path, *words, "eps=2", "method.rank=2"))
    second = costs.cost(config(tmp_path, *words, "eps=8", "method.rank=4", "epochs=4"))
    # No two measurements take the same seconds.
    assert second.seconds == pytest.approx(2 * first.seconds, rel=1e-9)
    assert second.flops == pytest.approx(2 * first.flops, rel=1e-9)


def test_geps_bases_are_scaled_by_how_many_anchors_and_vectors_there_are():
    work = step_cost.Work

    def step(m, k):
        return step_cost.Step(work(1.0, m * (30.0 + 2.0 * k)), work(0.0, 0.0), m=m, k=k)

    cost = step_cost.bases([step(100, 50), step(50, 25)], {"m": 2000, "k": 1000})
    assert cost.flops == pytest.approx(2000 * (30 + 2000))


def test_shuffled_batches_cost_as_others(tmp_path):
    words = ["task=mnist", "model=linear", "method=nonprivate", "epochs=1"]
    one, other = (
        stand_ins(tmp_path).cost(config(tmp_path, *words, f"sampling={sampling}"))
        for sampling in ("poisson", "shuffle")
    )
    assert one.flops == other.flops > 0


def test_bases_of_few_vectors_are_told_from_two_sizes_too(tmp_path):
    words = ["task=mnist", "model=cnn", "method=gep", "method.m=20", "method.k=8"]
    cost = stand_ins(tmp_path).cost(config(tmp_path, *words, "epochs=1"))
    assert cost.seconds > 0 and cost.flops > 0


@pytest.mark.long
def test_an_anchor_gradient_costs_the_same_whatever_goes_with_it(tmp_path):
    """Per-example gradients are one convolution of as many groups, not the square of it."""

    def fixed(m, every=1):
        words = ["task=cifar10", "model=resnet20", "method=gep", f"method.m={m}", "method.k=12"]
        words.append(f"method.every={every}")
        return step_cost.measure(config(tmp_path, *words), CPU, 1).fixed.flops

    once = fixed(20)
    assert fixed(40) == pytest.approx(2 * once, rel=0.1)
    assert fixed(20, every=4) == pytest.approx(once / 4)


@pytest.mark.long  # public texts do, below
def test_texts_cost_by_their_tokens(tmp_path):
    words = ["model=minilm", "method=linear", "epochs=1", "batch_size=1000", "eval_every=1"]
    costs = stand_ins(tmp_path)
    pairs, single = (
        costs.cost(config(tmp_path, *words, f"task={task}")) for task in ("qnli", "sst2")
    )
    sizes = {"qnli": 104743, "sst2": 67349}
    per_text = {"qnli": pairs.flops / sizes["qnli"], "sst2": single.flops / sizes["sst2"]}
    expected = cost_model.TOKENS["qnli"] / cost_model.TOKENS["sst2"]
    assert per_text["qnli"] / per_text["sst2"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("method", some_long(["rgp_public", "rgp_core"], ["rgp_core"]))
def test_public_texts_cost_by_their_number(tmp_path, method):
    def fixed(num):
        words = ["task=sst2", "model=bert_tiny", "model.vocabulary=1000", f"method={method}"]
        words += ["eps=8", f"method.public_examples={num}"]
        return step_cost.measure(config(tmp_path, *words), CPU, 1).fixed.flops

    few, some, more = map(fixed, (8, 16, 24))
    assert more - some == pytest.approx(some - few, rel=0.05) and some > few


def test_the_table_counts_a_shared_run_once_and_says_what_a_gpu_is_taken_to_do(tmp_path):
    one = config(tmp_path, "task=mnist", "model=linear", "method=nonprivate", "epochs=1")
    lines = list(plan.hours("Artifact", {"a": [one], "b": [one]}, stand_ins(tmp_path), CPU, 1e12))
    assert lines[2].startswith("| a | 1 |") and lines[3].startswith("| b | 0 | 0 |")
    assert lines[4].startswith("| **total** | 1 |")
    assert "1e+12 FLOP/s" in lines[-1]


def test_gpu_hours_are_left_out_where_torch_counts_few_of_the_operations(tmp_path):
    one = config(tmp_path, "method=compressive", "task=lending_club", "eps=1")
    lines = plan.hours("Cell", {"a": [one]}, stand_ins(tmp_path), CPU, 1e12)
    (line,) = [row for row in lines if row.startswith("| a")]
    assert line.endswith("| – |")


@pytest.mark.parametrize("sampling", some_long(["poisson", "shuffle"], ["poisson"]))
def test_an_estimate_needs_no_run(tmp_path, sampling):
    words = [
        "method=rgp",
        "model=cnn",
        "task=digits",
        "profile=embedded",
        "epochs=3",
        f"results={tmp_path}",
        f"sampling={sampling}",
    ]
    config = cli.compose(words)
    cost = cost_model.CostModel(tmp_path, "embedded", CPU).cost(config)
    assert (cost.source, cost.why, os.listdir(tmp_path)) == ("timed", "", [])
    result = json.loads((cli.execute(config) / "result.json").read_text())
    assert result["wall_s"] / 10 < cost.seconds < 10 * result["wall_s"]
    assert result["peak_memory_mb"] / 3 < cost.megabytes < 3 * result["peak_memory_mb"]


class SlowToPrepare(DPSGD):
    """Takes a fifth of a second before every step, however few examples are drawn."""

    def prepare(self, model, state, public, gen):
        time.sleep(0.2)
        return state


def test_what_a_step_costs_without_examples_counts_once_a_step(tmp_path):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "micro_batch=2"]
    config = cli.compose([*words, "batch_size=300", "epochs=2"])
    config["method"]["_target_"] = f"{__name__}.SlowToPrepare"
    cost = cost_model.CostModel(tmp_path, "embedded", CPU).cost(config)
    steps = round(2 * 1437 / 300)
    # Once for every four examples it would be 143 s.
    assert 0.2 * steps < cost.seconds < 0.2 * steps + 20, cost


class SlowToAverage:
    """Takes a fifth of a second after every step."""

    def keeps(self, step, num_steps):
        time.sleep(0.2)
        return 0.5


@pytest.mark.long
def test_the_average_of_the_weights_is_part_of_a_step(tmp_path):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "averaging=ema"]
    config = cli.compose([*words, "batch_size=300", "epochs=2"])
    config["averaging"] = {"_target_": f"{__name__}.SlowToAverage", "name": "slow"}
    cost = cost_model.CostModel(tmp_path, "embedded", CPU).cost(config)
    assert cost.source == "timed" and cost.seconds > 0.2 * round(2 * 1437 / 300)


def test_records_of_this_device_tell_what_runs_of_their_kind_cost(tmp_path):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "eps=8"]
    words += [f"results={tmp_path}", "device=cpu"]
    path = cli.execute(cli.compose([*words, "epochs=1"])) / "result.json"
    result = json.loads(path.read_text())
    longer = cli.compose([*words, "epochs=3", "eps=2"])
    cost = cost_model.CostModel(tmp_path, "embedded", CPU).cost(longer)
    assert cost.seconds == pytest.approx(3 * result["wall_s"])
    assert (cost.source, cost.megabytes) == ("records alike", result["peak_memory_mb"])
    path.write_text(json.dumps(result | {"device": "slide rule"}))
    assert cost_model.CostModel(tmp_path, "embedded", CPU).cost(longer).source == "timed"
    anywhere = cost_model.CostModel(tmp_path, "embedded", None).cost(longer)
    assert (anywhere.seconds, anywhere.source) == (cost.seconds, "records alike")


OPTIONS = {
    "augmentation": ["augmentation=crop_flip", "augmentation.multiplicity=3"],
    "clipping": ["clipping=adaptive"],
    "denoise": ["denoise=doppler"],
    "averaging": ["averaging=ema"],
    "micro_batch": ["micro_batch=7"],
}


def test_records_tell_only_of_runs_with_the_same_options(tmp_path):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "eps=8"]
    words += [f"results={tmp_path}", "device=cpu", "epochs=0.5"]
    cli.execute(cli.compose(words))
    path = cli.execute(cli.compose([*words, "averaging=last"])) / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"wall_s": 77.0}))
    costs = cost_model.CostModel(tmp_path, "embedded", None)  # reads, and times nothing
    plain, averaged = (
        costs.cost(cli.compose([*words, *more, "eps=2"])) for more in ([], ["averaging=last"])
    )
    assert (plain.source, averaged.source) == ("records alike", "records alike")
    assert averaged.seconds == pytest.approx(77.0) and plain.seconds < 70
    for option in OPTIONS.values():
        assert costs.cost(cli.compose([*words, *option])).source == "unknown"


def test_every_view_of_an_example_is_counted(tmp_path):
    words = ["task=mnist", "model=linear", "method=dpsgd", "epochs=1", "eval_every=1"]
    plain, views = (
        stand_ins(tmp_path).cost(config(tmp_path, *words, *more)).flops
        for more in ([], OPTIONS["augmentation"])
    )
    tested = 2 * 784 * 10 * cost_model.TEST_SHARE * 60000 / 3
    assert views > 2 * (plain - tested)


def test_what_a_run_does_besides_its_steps_is_named(tmp_path):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear"]
    words += ["attack=loss_threshold", "analysis=[stable_rank,noise_norm]"]
    cost = cost_model.CostModel(tmp_path, "embedded", CPU).cost(cli.compose(words))
    named = ("attack=loss_threshold", "analysis=stable_rank,noise_norm")
    assert (cost.source, cost.without) == ("timed", named)
    lines = list(plan.hours("Cell", {"a": [cli.compose(words)]}, stand_ins(tmp_path), CPU, None))
    assert lines[-1] == f"Not counted: {', '.join(named)}."


def test_what_lacks_data_or_cannot_run_is_said_and_costs_nothing(tmp_path):
    roots = [f"data_root={tmp_path}", f"model_root={tmp_path}", "profile=quick"]
    costs = cost_model.CostModel(tmp_path, "quick", CPU)
    first, second = (
        costs.cost(cli.compose([*roots, "task=svhn", "method=rgp", f"eps={eps}"])) for eps in (2, 4)
    )
    assert first is second and (first.seconds, first.source) == (None, "no data")
    assert "svhn" in first.why.lower() and "\n" not in first.why
    wrong = cli.compose(["task=digits", "profile=embedded", "method=dpsgd", "batch_size=100000"])
    refused = costs.cost(wrong)
    assert (refused.seconds, refused.source) == (None, "can't run")
    assert "batch_size" in refused.why


def test_a_loop_that_is_not_known_is_said(tmp_path):
    unknown = config(tmp_path, "task=mnist", "method=dpsgd", "+loop=a.loop")
    cost = stand_ins(tmp_path).cost(unknown)
    assert (cost.seconds, cost.source) == (None, "can't run") and "loop=a.loop" in cost.why
    lines = list(plan.hours("Cell", {"a": [unknown]}, stand_ins(tmp_path), CPU, None))
    assert lines[-1].startswith("Not in it, a: ") and "loop=a.loop" in lines[-1]
