"""Outputs that are not finite are wrong, wherever a model is judged, and are counted."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpexp import cli
from dpexp.data import Examples, accuracy
from dpexp.pate.stages import predict
from dpexp.training.judging import evaluate, judge
from dpexp.training.optimizers import check_optimizer, check_size
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.runs import ALONE, SHORT, execute, of
from tests.steps import CPU

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("bad", [[NAN, 0.0], [0.0, NAN], [NAN, NAN], [INF, 0.0], [0.0, -INF]])
@pytest.mark.parametrize("target", [0, 1])
def test_no_class_is_right_of_an_output_that_is_not_finite(bad, target):
    outputs = torch.tensor([bad, [1.0, 0.0]])
    assert accuracy(outputs, torch.tensor([target, 0])).tolist() == [0.0, 100.0]


class Diverged(nn.Module):
    """Gives NaN for every example above zero, and class 0 for the rest."""

    def forward(self, x):
        return torch.where(x > 0, NAN, torch.tensor([1.0, 0.0]))


def test_a_skewed_set_gives_a_diverged_model_nothing():
    inputs = torch.tensor([[1.0]] * 90 + [[-1.0]] * 10)
    examples = Examples(inputs, torch.zeros(100, dtype=torch.int64))
    assert evaluate(Diverged(), examples, CPU) == 10.0
    task = SimpleNamespace(
        metric="test_accuracy",
        train=None,
        test=examples,
        also={"other": examples},
        holdout=None,
        score=accuracy,
    )
    values, right = judge(Diverged(), task, CPU, is_last=True)
    assert values == {
        "test_accuracy": 10.0,
        "other": 10.0,
        "test_accuracy_mean": 10.0,
        "nonfinite_outputs": 180,
    }
    assert [int(each.sum()) for each in right.values()] == [10, 10]
    assert predict(Diverged(), inputs).tolist() == [-1] * 90 + [0] * 10


def test_a_run_that_diverges_says_so_in_its_record_and_once_in_its_log(tmp_path, caplog):
    words = [
        "method=nonprivate",
        *SHORT[1:],
        "optimizer=sgd",
        "optimizer.lr=1e30",
    ]
    words += ["optimizer.weight_decay=1e30"]
    lines, result, _ = of(execute(tmp_path, *words))
    assert result["test_accuracy"] == 0.0
    assert result["nonfinite_outputs"] == lines[-1]["nonfinite_outputs"] == 360
    assert lines[-1]["train_loss"] is None
    assert [r.message[:25] for r in caplog.records if r.levelname == "WARNING"].count(
        "Outputs for test examples"
    ) == 1


def test_a_run_that_does_not_counts_none(tmp_path):
    lines, result, _ = of(execute(tmp_path, *SHORT))
    assert result["nonfinite_outputs"] == lines[-1]["nonfinite_outputs"] == 0


def test_a_teacher_that_diverged_has_no_vote(tmp_path):
    words = ["method=pate", "task=digits", "profile=embedded", "method.teachers=4"]
    words += ["method.teacher_optimizer.lr=1e30", "method.teacher_steps=2"]
    words += ["method.student_steps=5", "device=cpu"]
    _, result, privacy = of(execute(tmp_path, *words))
    assert result["unsaid_votes"] > 0
    assert any("unsaid_votes" in word for word in privacy["deviations"])


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_an_optimizer_that_takes_no_given_gradient_is_refused_in_one_line(tmp_path, name):
    config = cli.compose([*SHORT, f"results={tmp_path}"])
    parts = replace(cli.build_parts(config, CPU), make_optimizer=getattr(torch.optim, name))
    with pytest.raises(ConfigError, match=f"{name} does not .*Set optimizer") as refused:
        train(config, parts, ALONE)
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adafactor", "NAdam", "Muon"])
def test_others_are_taken(name):
    weight = nn.Parameter(torch.zeros(2, 2))
    check_optimizer(getattr(torch.optim, name)([weight], lr=0.1))
    assert torch.equal(weight, torch.zeros(2, 2))


class Plain(torch.optim.SGD):
    """Steps that this class computes anew from what it remembers in its own way."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.before = {}

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            mean = self.memory(weight)
            mean.mul_(0.9).add_(weight.grad)
            weight.sub_(mean, alpha=self.param_groups[0]["lr"])

    def memory(self, weight):
        return self.state[weight].setdefault("mean", torch.zeros_like(weight))


class Forgetful(Plain):
    def memory(self, weight):
        return self.before.setdefault(weight, torch.zeros_like(weight))


class Unloadable(Plain):
    def load_state_dict(self, state_dict):
        raise ValueError("of another make")


def test_an_optimizer_that_remembers_outside_of_its_state_is_refused():
    weights = [nn.Parameter(torch.zeros(2, 2))]
    check_optimizer(Plain(weights, lr=0.1), weights=weights)
    for kind, why in ((Forgetful, "its next steps are others"), (Unloadable, "of another make")):
        with pytest.raises(ConfigError, match=f"{kind.__name__} has more .*{why}.*self.state"):
            check_optimizer(kind(weights, lr=0.1))


class Still(Plain):
    def step(self, closure=None):
        pass


class Broken(Plain):
    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            weight.div_(weight.grad - weight.grad)


class Later(Plain):
    """Divides by how far the gradient is from the former ones' mean: not at the first step."""

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            mean = self.memory(weight)
            weight.sub_((weight.grad - mean) / (weight.grad - mean))
            mean.copy_(weight.grad)


class Patient(Plain):
    """Adds up eight gradients a step, by the weight's own norm: zeros stay."""

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            mean = self.memory(weight).add_(weight.grad)
            count = self.state[weight]["count"] = self.state[weight].get("count", 0) + 1
            if count % 8 == 0:
                weight.sub_(mean * weight.norm())
                mean.zero_()


def test_an_optimizer_that_moves_nothing_or_makes_nan_is_told_of(recwarn):
    weights = [nn.Parameter(torch.zeros(2, 2))]
    for kind in (Plain, Patient):
        check_optimizer(kind(weights, lr=0.1))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="Still moves no weight in 16 steps .* Correct its step"):
        check_optimizer(Still(weights, lr=0.1))
    with pytest.raises(ConfigError, match="Broken does not .its step 1 on ones gives NaN"):
        check_optimizer(Broken(weights, lr=0.1))
    with pytest.raises(ConfigError, match="Later does not .its step 2 on ones gives NaN"):
        check_optimizer(Later(weights, lr=0.1))


class Drawing(Plain):
    def memory(self, weight):
        return super().memory(weight).add_(torch.rand(()))


class Failing(Plain):
    def memory(self, weight):
        if weight in self.state:
            raise ValueError("only once")
        return super().memory(weight)


def test_trying_an_optimizer_draws_none_of_a_runs_random_numbers():
    before = torch.get_rng_state()
    weights = [nn.Parameter(torch.zeros(2, 2))]
    check_optimizer(Drawing(weights, lr=0.1))
    check_size(Drawing(weights, lr=0.1), 1.0, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_optimizer_whose_second_step_fails_is_told_of_in_a_line():
    with pytest.raises(ConfigError, match="Failing does not .only once"):
        check_optimizer(Failing([nn.Parameter(torch.zeros(2, 2))], lr=0.1))


def test_an_optimizer_of_other_weights_or_without_a_rate_is_refused():
    weights = [nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    apart = [{"params": weights[:1]}, {"params": weights[1:], "lr": 1.0}]
    check_optimizer(torch.optim.SGD(apart, lr=0.1), weights=weights)
    for some, line in (
        (weights[:2], "all 3 trained .* has 2 of them, and 0 others"),
        ([*weights, nn.Parameter(torch.zeros(2))], "has 3 of them, and 1 others"),
    ):
        with pytest.raises(ConfigError, match=line):
            check_optimizer(torch.optim.SGD(some, lr=0.1), weights=weights)
    optimizer = torch.optim.SGD(weights, lr=0.1)
    del optimizer.param_groups[0]["lr"]
    with pytest.raises(ConfigError, match="a learning rate, lr"):
        check_optimizer(optimizer, weights=weights)
