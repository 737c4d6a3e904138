"""Averages of the weights: what is evaluated and kept, and never what is trained."""

import numpy as np
import pytest
import torch
from torch import nn

import dpexp
from dpexp.cli.verify import verify
from dpexp.models.adapters import adapt, merged
from dpexp.training.averaging import EMA, Averaged, Last
from dpexp.training.train_state import TrainState
from dpexp.types import ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)


def averages(averaging, values):
    """The averages of one weight that takes these values, step by step."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        averaged = Averaged(model, averaging, len(values))
        found = []
        for step, value in enumerate(values):
            model.weight.fill_(value)
            averaged.add(model, step)
            found.append(float(averaged.model.weight))
        assert float(model.weight) == pytest.approx(values[-1])  # what is trained stays
    return found


def test_an_exponential_average_is_the_sum_of_its_weights():
    values = np.random.default_rng(0).normal(size=40)
    powers = 0.9 ** np.arange(39, -1, -1)
    expected = 0.1 * float(powers @ values)  # from the first weights, which are 0
    assert averages(EMA(0.9, warm_up=False), values)[-1] == pytest.approx(expected, abs=1e-6)


def test_the_warm_up_forgets_the_first_weights_sooner():
    rule = EMA(0.6, warm_up=True)
    assert [rule.keeps(step, 20) for step in (0, 8, 17)] == [0.1, 0.5, 0.6]  # (1 + t) / (10 + t)
    assert averages(EMA(0.999, warm_up=True), [1.0] * 30)[-1] > 0.99
    assert averages(EMA(0.999, warm_up=False), [1.0] * 30)[-1] < 0.03


@pytest.mark.parametrize("share", [0.01, 0.25, 1.0])
def test_the_mean_of_the_last_is_their_mean(share):
    values = np.random.default_rng(1).normal(size=40)
    count = max(1, round(share * 40))
    found = averages(Last(share), values)
    assert found[-1] == pytest.approx(float(values[-count:].mean()), abs=1e-6)
    assert found[40 - count - 1] == pytest.approx(values[40 - count - 1]) or count == 40


@pytest.mark.parametrize("weight", [1.5, -0.1, float("nan")])
def test_a_rule_of_ones_own_that_keeps_no_share_is_refused(weight):
    class Mine:
        def keeps(self, step, num_steps):
            return weight if step == 1 else 0.5

    with pytest.raises(
        ConfigError, match=rf"in \[0, 1\]; `keeps` of Mine gives {weight} at step 1"
    ):
        averages(Mine(), [1.0, 2.0])


@pytest.mark.parametrize("losses", [[0.5, 2.0], [2.0, 2.0, 2.0, 2.0, 0.5]])
def test_a_rule_of_ones_own_that_follows_the_loss_is_refused(losses):
    left = list(losses)

    class ByLoss:
        def keeps(self, step, num_steps):
            return 0.9 if (left.pop(0) if len(left) > 1 else left[0]) < 1 else 0.5

    with pytest.raises(ConfigError, match="averaging to follow from the step and the number of"):
        averages(ByLoss(), [1.0, 2.0])


def test_of_adapters_the_factors_are_averaged_so_that_what_is_merged_keeps_their_rank():
    torch.manual_seed(0)
    model = adapt(
        nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 2)).double(), 1, 1, "*", "1"
    )
    adapter, before = model[0], merged(model)[0].weight.detach()
    averaged, factors = Averaged(model, Last(1.0), 4), []
    for step in range(4):
        nn.init.normal_(adapter.lora_A.weight)
        nn.init.normal_(adapter.lora_B.weight)
        factors.append((adapter.lora_A.weight.detach().clone(), adapter.lora_B.weight.clone()))
        averaged.add(model, step)
    a, b = (torch.stack(each).mean(0) for each in zip(*factors, strict=True))
    moved = merged(averaged.model)[0].weight - before
    torch.testing.assert_close(moved, b @ a)
    assert torch.linalg.matrix_rank(moved) == 1  # the mean of merged weights has rank 4


@pytest.mark.parametrize("lost", [(8, 13), (12, 13), (5, 9), (0, 4)], ids=str)
@pytest.mark.parametrize("averaging", [Last(0.5), Last(1.0), EMA(0.8, False), EMA(0.8, True)])
def test_iterates_that_were_lost_have_no_part_and_the_others_keep_their_shares(averaging, lost):
    """By hand: the weights of all iterates, less those of the lost, divided by what is left."""
    values = np.random.default_rng(2).normal(size=20)
    shares, without = [averaging.keeps(step, 20) for step in range(20)], range(*lost)
    weights = [(1 - shares[t]) * np.prod(shares[t + 1 :]) for t in range(20)]
    weights = np.array([0.0 if t in without else weight for t, weight in enumerate(weights)])
    left = weights.sum() + np.prod(shares)  # of the first weights, which are 0
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
        averaged = Averaged(model, averaging, 20)
        for step, value in enumerate(values):
            if step in without:
                averaged.lose([step])
                continue
            model.weight.fill_(value)
            averaged.add(model, step)
    found = float(averaged.model.weight.detach())
    assert found == pytest.approx(float(weights @ values) / left, abs=1e-6)


def test_a_run_that_goes_on_after_lost_steps_leaves_their_iterates_out():
    """Of 8 steps the last four are averaged; the fourth and fifth are lost, and 7 was saved."""

    def fresh():
        model = nn.Linear(1, 1, bias=False)
        averaged = Averaged(model, Last(0.5), 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return TrainState(model, optimizer, {}, "data", averaged)

    def take(state, steps):
        for step in steps:
            with torch.no_grad():
                state.model.weight.fill_(10.0**step)
            state.averaged.add(state.model, step)
            state.step += 1

    state = fresh()
    take(state, range(4))
    state.skip_to(6)
    take(state, [6])
    saved = state.to_checkpoint()
    state = fresh()
    state.restore(saved, torch.device("cpu"))
    take(state, [7])
    assert float(state.final_model.weight.detach()) == pytest.approx((10.0**6 + 10.0**7) / 2)
    del saved["averaged_mass"]  # as former code saved it, which took no iterate for lost
    state.restore(saved, torch.device("cpu"))
    assert state.averaged.mass == 1


def blobs(count, seed):
    gen = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (count,), generator=gen)
    return torch.randn(count, 8, generator=gen) + 2 * nn.functional.one_hot(targets, 8), targets


def trained(results, **changes):
    torch.manual_seed(0)
    said = {"method": "dpsgd", "eps": 8, "epochs": 3, "batch_size": 25, "lr": 0.5, "device": "cpu"}
    said |= {"results": results} | changes
    return dpexp.train(nn.Linear(8, 3), blobs(100, 0), blobs(60, 1), **said)


def test_a_run_evaluates_and_keeps_the_average_of_what_it_trains(tmp_path):
    """By hand: the iterates are those of runs that stop earlier, in steps and not in noise."""
    run = trained(tmp_path, settings={"averaging": "ema", "averaging.decay": 0.9})
    plain = trained(tmp_path)
    assert run.directory != plain.directory
    assert run.epsilon == plain.epsilon and verify(run.directory)[0] == 0
    weight = run.model.weight
    assert not torch.allclose(weight, plain.model.weight, atol=1e-3)
    inputs, targets = blobs(60, 1)
    with torch.no_grad():
        right = (run.model(inputs).argmax(1) == targets).float().mean()
    assert 100 * float(right) == pytest.approx(run.accuracy, abs=1e-4)


def test_an_average_that_keeps_nothing_is_the_last_iterate(tmp_path):
    settings = {"averaging": "ema", "averaging.decay": 0.0}
    run, plain = trained(tmp_path, settings=settings), trained(tmp_path)
    assert run.result["weights_sha256"] == plain.result["weights_sha256"]


def test_an_interrupted_run_goes_on_with_its_average(tmp_path):
    settings = {"averaging": "ema", "averaging.decay": 0.9}

    def stop(line):
        if line["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, settings=settings, callbacks=[stop])
    run = trained(tmp_path, settings=settings)
    whole = trained(tmp_path / "at once", settings=settings)
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    assert run.metrics == whole.metrics
