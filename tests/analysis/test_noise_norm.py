"""Noise against gradient at the start of a run."""

import math

import pytest
import torch

from dpexp.analysis.noise_norm import NoiseNorm
from dpexp.privacy.clipping import Flat
from dpexp.types import ConfigError
from tests.analysis.views import on_digits
from tests.methods import literal


def test_noise_is_that_of_a_run_of_so_many_epochs_whatever_this_run_takes():
    long, short = on_digits("method=dpsgd", "epochs=6"), on_digits("method=dpsgd", "epochs=1")
    size = sum(weight.numel() for weight in long.model.parameters())
    mechanism = long.mechanism
    drawn = mechanism.noise_multiplier * mechanism.releases[0].clip_norm * math.sqrt(size)
    for view in (long, short):
        found = NoiseNorm(epochs=6).observe(view, {})
        assert found["noise"] == pytest.approx(drawn / mechanism.batch_size)


@pytest.mark.parametrize("clip_norm", [0.5, 1e6])
def test_the_gradient_is_the_mean_of_clipped_ones(clip_norm):
    view = on_digits("method=dpsgd", "model=cnn", f"privacy.clip_norm={clip_norm}", "batch_size=30")
    batch = view.examples.batch(view.draw("batch", 30))
    with view.unhooked():
        mean = literal.dpsgd(view.model, batch.inputs, batch.targets, clip_norm, 30)
    norm = math.sqrt(sum(float(part.square().sum()) for part in mean.values()))
    assert NoiseNorm(epochs=2).observe(view, {})["gradient"] == pytest.approx(norm, rel=1e-4)


RULES = {
    "normalize": lambda norm, bound: bound / (norm + 0.01),
    "per_layer": lambda norm, bound: (bound / norm).clamp(max=1),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_is_clipped_by_the_rule_of_the_run(rule):
    clip_norm = 0.5
    words = ("method=dpsgd", "model=cnn", f"privacy.clip_norm={clip_norm}", "batch_size=30")
    view = on_digits(*words, f"clipping={rule}")
    batch = view.examples.batch(view.draw("batch", 30))
    with view.unhooked():
        each = literal.gradients(view.model, batch.inputs, batch.targets)
    groups = {name: name.rpartition(".")[0] if rule == "per_layer" else "" for name in each}
    layers = set(groups.values())
    square = 0.0
    for layer in layers:
        own = torch.cat([g.flatten(1) for name, g in each.items() if groups[name] == layer], 1)
        weights = RULES[rule](own.norm(dim=1), clip_norm / math.sqrt(len(layers)))
        square += float((weights @ own / 30).square().sum())
    found = NoiseNorm(epochs=2).observe(view, {})["gradient"]
    assert found == pytest.approx(math.sqrt(square), rel=1e-4)


def test_no_weight_counts_for_more_than_a_sum_takes(monkeypatch):
    view = on_digits("method=dpsgd", "model=cnn", "batch_size=30")
    flat = NoiseNorm(epochs=2).observe(view, {})["gradient"]
    monkeypatch.setattr(type(view.gradient), "clipping", Greedy())
    greedy = NoiseNorm(epochs=2).observe(view, {})["gradient"]
    clip_norm = view.mechanism.releases[0].clip_norm
    assert flat < greedy * (1 + 1e-4) and greedy <= clip_norm


class Greedy(Flat):
    """Gives every example a weight beyond its bound."""

    def weights(self, norms, bound):
        return torch.full_like(norms, 1e9)


def test_it_looks_once_and_only_where_there_is_noise():
    assert NoiseNorm(epochs=2).observe(on_digits("method=dpsgd", step=3), {}) == {}
    adaptive = ["method=dpsgd", "clipping=adaptive"]
    grape = ["method=dp_grape", "model=cnn", "method.rank=2"]
    others = (["method=nonprivate"], ["method=compressive"], adaptive, ["method=dp_zo"], grape)
    for words in others:
        with pytest.raises(ConfigError, match="whole gradients, .* without clipping=adaptive"):
            NoiseNorm(epochs=2).observe(on_digits(*words), {})
    with pytest.raises(ConfigError, match="epochs > 0; got 0"):
        NoiseNorm(epochs=0)
