"""The door for analyses: they see a run and leave it as it was."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpexp import cli, records
from dpexp.distributed.ranks import Ranks
from dpexp.privacy import ANALYSED
from dpexp.privacy.verification.files import verify_files
from dpexp.training.observation import Analysis
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.marks import few, some_long
from tests.runs import execute, of, one_thread  # noqa: F401 (a fixture)

DEFAULT = ["profile=embedded", "device=cpu", "method=rgp"]
DIGITS = [*DEFAULT, "task=digits", "batch_size=360", "epochs=2", "eval_every=0.5"]
DIGITS += ["method.warm_up_steps=4"]
TEXTS = [*DEFAULT, "task=sentiment", "task.dataset_size=400", "batch_size=100", "epochs=1"]
TEXTS += ["model.dropout=0.1"]
BRIEFLY = ["epochs=1", "method.warm_up_steps=2"]
SIMPLE = ["profile=embedded", "device=cpu", "method=dpsgd", "task=digits", "model=linear"]
SIMPLE += ["batch_size=360", "epochs=2", "eval_every=0.5"]
"""For what no method or model makes a difference to."""
LOOKED_AT = {
    "digits": [*DIGITS, "analysis.residual.parameter=blocks.0.conv1.weight"],
    "sentiment": [
        *TEXTS,
        "analysis.residual.parameter=encoder.encoder.layer.0.output.dense.weight",
    ],
}
ALL = ["analysis=[stable_rank,residual,intensity,cost]", "analysis.cost.rounds=1"]
ALL += ["analysis.residual.batch=50", "analysis.residual.rank=4"]
CPU = torch.device("cpu")


class Given(Analysis):
    """Gives what a function of the observation's number says."""

    def __init__(self, give):
        self.give = give

    def observe(self, view, memory):
        memory["seen"] = memory.get("seen", 0) + 1
        return self.give(memory["seen"])


class Careless(Analysis):
    """Does what it may not rely on being forgiven."""

    def observe(self, view, memory):
        torch.rand(1)
        torch.manual_seed(1)
        view.model.train()
        for weight in view.model.parameters():
            weight.grad = torch.ones_like(weight)
        with view.unhooked():
            assert all(weight.requires_grad for weight in view.model.parameters())
        return {}


def trained(results, words, analyses=None):
    """Train in this process; give the record, the weights and their gradients."""
    config = cli.compose([*words, f"results={results}"])
    parts = cli.build_parts(config, CPU)
    if analyses is not None:
        parts = replace(parts, analyses=analyses)
    train(config, parts, Ranks(0, 1, CPU))
    weights = {name: weight.detach() for name, weight in parts.model.named_parameters()}
    gradients = {name: weight.grad for name, weight in parts.model.named_parameters()}
    return of(records.locate(results, config)), weights, gradients


def arrays(directory):
    with np.load(directory / records.ANALYSIS) as file:
        return dict(file)


def test_without_an_analysis_configs_and_ids_are_as_ever():
    config = cli.compose(DIGITS)
    assert "analysis" not in config
    assert records.run_id(config) == records.run_id(cli.compose([*DIGITS, "analysis=[]"]))
    one = cli.compose([*DIGITS, "analysis=stable_rank"])
    assert one["analysis"].keys() == {"stable_rank"}
    assert records.run_id(one) == records.run_id(cli.compose([*DIGITS, "analysis=[stable_rank]"]))
    assert records.run_id(one) != records.run_id(config)


@pytest.mark.long
@pytest.mark.parametrize("task", some_long(LOOKED_AT, ["digits"]))
def test_a_run_looked_at_ends_with_the_weights_of_one_that_is_not(tmp_path, task):
    *words, parameter = LOOKED_AT[task]
    words += BRIEFLY
    named = parameter.partition("=")[2]
    all_words = [*words, *ALL, parameter, f"analysis.intensity.parameter={named}"]
    looked_at = trained(tmp_path, all_words)
    alone = trained(tmp_path, words)
    assert looked_at[0][0] == alone[0][0]  # every metric, to the last bit
    assert all(torch.equal(alone[1][name], weight) for name, weight in looked_at[1].items())
    assert looked_at[0][2]["deviations"] == [ANALYSED]
    same = {"deviations": [], "run": alone[0][2]["run"]}
    assert {**looked_at[0][2], **same} == alone[0][2]


def test_a_careless_analysis_changes_nothing_either(tmp_path):
    alone = trained(tmp_path / "alone", [*DIGITS, *BRIEFLY])
    disturbed = trained(tmp_path / "disturbed", [*DIGITS, *BRIEFLY], {"careless": Careless()})
    assert disturbed[0][0] == alone[0][0]
    for name, weight in disturbed[1].items():
        assert torch.equal(alone[1][name], weight)
        assert alone[2][name] is None and disturbed[2][name] is None


@pytest.mark.long
def test_a_run_taken_up_again_has_seen_what_an_unbroken_one_has(tmp_path):
    words = [*LOOKED_AT["digits"], "analysis=[residual,stable_rank]"]
    unbroken = execute(tmp_path / "unbroken", *words)

    def stop(seen):
        if seen == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return {}

    config = cli.compose([*words, f"results={tmp_path / 'broken'}"])
    parts = cli.build_parts(config, CPU)
    stopping = replace(parts, analyses={**parts.analyses, "stop": Given(stop)})
    with pytest.raises(SystemExit):
        train(config, stopping, Ranks(0, 1, CPU))
    broken = execute(tmp_path / "broken", *words)
    assert [len(some) for some in arrays(broken).values()] == [5] * len(arrays(broken))
    assert (broken / "analysis.npz").read_bytes() == (unbroken / "analysis.npz").read_bytes()


def test_what_is_seen_is_stacked_or_kept_as_it_is(tmp_path):
    def give(seen):
        once = {"map": np.eye(3)} if seen == 3 else {}
        return {"count": seen, "pair": torch.tensor([seen, float("nan")]), **once}

    class Summed(Given):
        def numbers(self, traces):
            return {"sum": float(traces["count"].sum()), "last": float(traces["step"][-1])}

    (_, result, _), *_ = trained(tmp_path, SIMPLE, {"mine": Summed(give)})
    found = arrays(records.locate(tmp_path, cli.compose(SIMPLE)))
    assert found["step"].tolist() == [0, 2, 4, 6, 8]
    assert found["epoch"] == pytest.approx(found["step"] * 360 / 1437)
    assert found["mine/count"].tolist() == [1, 2, 3, 4, 5]
    assert found["mine/pair"].shape == (5, 2) and np.array_equal(found["mine/map"], np.eye(3))
    assert (result["mine_sum"], result["mine_last"]) == (15, 8)


@pytest.mark.parametrize(
    "give",
    [
        lambda seen: {"late": 1.0} if seen > 1 else {},
        lambda seen: {"early": 1.0} if seen < 3 else {},
        lambda seen: {"growing": np.zeros(seen)},
    ],
)
def test_what_cannot_be_lined_up_is_refused_at_once(tmp_path, give):
    with pytest.raises(ValueError, match="observations|changed its shape"):
        trained(tmp_path, SIMPLE, {"mine": Given(give)})


def test_attacks_and_analyses_share_a_run(tmp_path):
    directory = execute(tmp_path, *SIMPLE, "attack=loss_threshold", "analysis=stable_rank")
    _, result, privacy = of(directory)
    assert result["attack_success"] >= 0 and (directory / "scores.npz").exists()
    assert privacy["deviations"][0] == ANALYSED and len(privacy["deviations"]) == 2
    config = cli.compose([*SIMPLE, "attack=loss_threshold", "analysis=stable_rank"])
    assert not verify_files(config, result, privacy).findings
    hushed = {**privacy, "deviations": privacy["deviations"][1:]}
    assert "is missing" in " ".join(verify_files(config, result, hushed).findings)
    del config["analysis"]
    assert "is not so" in " ".join(verify_files(config, result, privacy).findings)


def test_pate_has_no_gradients_to_look_at(tmp_path):
    with pytest.raises(ConfigError, match="no analysis with method=pate"):
        execute(tmp_path, "method=pate", "task=digits", "profile=embedded", "analysis=stable_rank")


@pytest.mark.parametrize("words", [[], ["method=rgp", "method.residual=false"]])
def test_gradients_are_those_of_autograd_and_of_single_examples(tmp_path, words):
    """In float32, where the three orders of summation differ in the last digits.

    They are taken at the weights themselves, also where a step's forward pass takes L R for them.
    """
    seen = {}

    class Compared(Analysis):
        def observe(self, view, memory):
            some, names = view.draw("batch", 30), view.trained
            mean = view.mean_gradients(view.examples, some, names)
            singles = list(view.per_example(view.examples).micro_batches(some, None))
            batch = view.examples.batch(some)
            with view.unhooked(), torch.enable_grad():
                loss = view.task.loss(view.model(batch.inputs), batch.targets) / 30
                weights = [view.model.get_parameter(name) for name in names]
                wanted = torch.autograd.grad(loss, weights)
            for name, gradient in zip(names, wanted, strict=True):
                scale = float(gradient.abs().max())
                torch.testing.assert_close(mean[name], gradient, rtol=1e-4, atol=1e-5 * scale)
                every = torch.cat([one[name] for one in singles])
                assert len(every) == 30
                torch.testing.assert_close(every.mean(0), gradient, rtol=1e-4, atol=1e-5 * scale)
            seen[view.step] = len(names)
            return {}

    trained(tmp_path, [*DIGITS, "epochs=0.5", *words], {"compared": Compared()})
    assert seen == {0: 8, 2: 8}


def test_an_analysis_draws_the_same_examples_every_time_and_other_noise(tmp_path):
    drawn, noise = [], []

    class Drawing(Analysis):
        def observe(self, view, memory):
            drawn.append(view.draw("batch", 20).tolist())
            noise.append(torch.rand(4, generator=view.generator("mine")).tolist())
            assert len(view.draw("batch", 10_000)) == 1437
            return {}

    trained(tmp_path, SIMPLE, {"drawing": Drawing()})
    assert len(drawn) == 5 and all(some == drawn[0] for some in drawn)
    assert len({tuple(some) for some in noise}) == 5


DIVERGED = ["method=nonprivate", "task=digits", "profile=embedded", "model=linear", "device=cpu"]
DIVERGED += ["epochs=2", "eval_every=0.5", "optimizer=sgd"]
DIVERGED += ["optimizer.lr=1e30", "optimizer.weight_decay=1e30"]
PICTURE = ["analysis.intensity.parameter=head.weight", "analysis.intensity.when=end"]
OF_PUBLIC = ["public=shapes", "eval_every=1"]
LOOKS = {
    "stable_rank": [],
    "residual": ["analysis.residual.parameter=head.weight"],
    "intensity": PICTURE,
    "gradient_rank": [*OF_PUBLIC, "analysis.gradient_rank.m=8", "analysis.gradient_rank.k=2"],
    "projection": [*OF_PUBLIC, "analysis.projection.m=8"],
}


@pytest.mark.parametrize("name", few(LOOKS, ["stable_rank", "residual", "gradient_rank"]))
def test_a_run_that_diverged_is_looked_at_and_says_how_often_it_was_not_finite(tmp_path, name):
    directory = execute(tmp_path, *DIVERGED, f"analysis={name}", *LOOKS[name])
    record, seen = records.read(directory), arrays(directory)
    own = {key: each for key, each in seen.items() if key.startswith(f"{name}/")}
    diverged = record.result[f"{name}_nonfinite"]
    assert own and 1 <= diverged <= len(seen["step"])
    for each in own.values():
        assert np.isnan(each[-1] if len(each.shape) else each).all()
        if each.shape == seen["step"].shape and name != "residual":
            assert np.isnan(each).sum() == diverged
    whole = execute(tmp_path / "whole", *DIVERGED[:6], f"analysis={name}", *LOOKS[name])
    assert f"{name}_nonfinite" not in records.read(whole).result


def test_an_analysis_that_cannot_decompose_is_one_line_with_its_cause(tmp_path):
    def give(seen):
        return {"value": torch.linalg.svdvals(torch.full((2, 2), torch.nan))[0]}

    with pytest.raises(ConfigError, match="analysis=own can decompose at step 0; linalg") as caught:
        trained(tmp_path, SIMPLE, {"own": Given(give)})
    assert "\n" not in str(caught.value)
