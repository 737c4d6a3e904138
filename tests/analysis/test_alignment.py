"""What projection, clipping and noise leave of a gradient's direction."""

import math

import pytest
import torch

from dpexp.analysis.alignment import Alignment, cosine, true_gradient
from dpexp.types import ConfigError
from tests.analysis.views import on_digits
from tests.methods import literal

SMALL = ("batch_size=30", "micro_batch=16")


def seen(*words, batch=30, draws=2):
    view = on_digits(*SMALL, *words)
    return view, Alignment(batch=batch, draws=draws).observe(view, {})


def mean_of_all(view, size=30):
    """Each parameter's mean gradient, from gradients of one example at a time."""
    batch = view.examples.batch(view.draw("batch", size))
    with view.unhooked():
        return {
            name: each.mean(0)
            for name, each in literal.gradients(view.model, batch.inputs, batch.targets).items()
        }


def test_the_true_gradient_is_that_of_all_parameters_also_of_those_that_a_method_freezes():
    view = on_digits(*SMALL, "method=rgp", "model=cnn")
    true, expected = true_gradient(view, view.draw("batch", 30)), mean_of_all(view)
    assert true.keys() == dict(view.model.named_parameters()).keys() > set(view.trained)
    for name, each in expected.items():
        torch.testing.assert_close(true[name], each, rtol=1e-4, atol=1e-6)
    assert all(not weight.requires_grad for weight in view.model.parameters())  # hooks are back


def test_dpsgd_without_clipping_or_noise_points_along_the_gradient():
    view, found = seen("method=nonprivate", "model=cnn")
    norm = math.sqrt(sum(float(g.square().sum()) for g in mean_of_all(view).values()))
    for name in ("projected", "clipped", "noisy"):
        assert found[name] == pytest.approx(1, abs=1e-5)
    assert found["signal"] == pytest.approx(norm, rel=1e-4)
    assert found["noise"] == found["ratio"] == 0


def test_what_is_projected_on_orthonormal_bases_has_the_cosine_of_its_length():
    view, found = seen("method=rgp", "model=cnn", "method.rank=2", "method.head_factor=1")
    state, _ = view.gradient.without_noise(
        view.state, view.examples, view.draw("batch", 30), 0, is_clipping=False
    )
    true, kept = mean_of_all(view), 0.0
    for name, g in true.items():
        if name in state["left"]:
            matrix, left, right = g.flatten(1), state["left"][name], state["right"][name]
            rest = matrix - left @ (left.T @ matrix)
            rest = rest - rest @ right.T @ right
            kept += float((matrix - rest).square().sum())
        elif name in view.trained:
            kept += float(g.square().sum())
    whole = sum(float(g.square().sum()) for g in true.values())
    assert found["projected"] == pytest.approx(math.sqrt(kept / whole), rel=1e-4)
    assert found["projected"] < 0.999


def test_clipping_and_noise_are_those_of_the_run():
    view, found = seen("method=dpsgd", "model=cnn", "privacy.clip_norm=0.3", draws=20)
    batch = view.examples.batch(view.draw("batch", 30))
    with view.unhooked():
        clipped = literal.dpsgd(view.model, batch.inputs, batch.targets, 0.3, 30)
    true, mechanism = mean_of_all(view), view.mechanism
    size = sum(weight.numel() for weight in view.model.parameters())
    signal = math.sqrt(sum(float(g.square().sum()) for g in clipped.values()))
    noise = mechanism.noise_multiplier * 0.3 * math.sqrt(size) / mechanism.batch_size
    assert found["clipped"] == pytest.approx(cosine(clipped, true), rel=1e-4)
    # The clip's bounds on norms leave room for rounding, which takes some of the signal.
    assert signal * 0.99 < found["signal"] < signal
    assert found["noise"] == pytest.approx(noise, rel=1e-6)
    assert found["ratio"] == found["noise"] / found["signal"]
    # In many dimensions the noise is orthogonal to both.
    expected = found["clipped"] * signal / math.hypot(signal, noise)
    assert found["noisy"] == pytest.approx(expected, abs=0.01)


def test_fewer_examples_leave_the_noise_of_a_batch():
    _, whole = seen("method=dpsgd", "model=cnn")
    _, part = seen("method=dpsgd", "model=cnn", batch=10)
    assert part["noise"] == whole["noise"]
    # Drawn noise is that of a batch of 30 as well; at C = 100 it is no longer all there is.
    _, found = seen("method=dpsgd", "model=cnn", batch=10, draws=20)
    left = found["signal"] / math.hypot(found["signal"], found["noise"])
    assert found["noisy"] == pytest.approx(found["clipped"] * left, abs=0.01)


@pytest.mark.parametrize(
    "words",
    [
        ["method=rgp_random"],
        ["method=lsg"],
        ["method=dp_grape"],
        ["method=dp_powersgd"],
        ["method=gep", "method.m=40", "method.k=20"],
        ["method=dp_zo"],
        ["method=dp_lora"],
        ["method=dpsgd", "clipping=adaptive"],
        ["method=rgp", "augmentation=crop_flip", "augmentation.multiplicity=2"],
    ],
)
def test_it_leaves_every_method_as_it_was(words):
    view = on_digits(*SMALL, *words)
    before = {name: each.clone() for name, each in view.model.state_dict().items()}
    first = view.gradient(view.state, view.examples, 0)
    found = Alignment(batch=10, draws=1).observe(view, {})
    assert all(math.isfinite(each) for each in found.values())
    assert found["noise"] > 0
    again = view.gradient(view.state, view.examples, 0)
    for name, each in first.gradients.items():
        torch.testing.assert_close(again.gradients[name], each, rtol=0, atol=0)
    for name, each in view.model.state_dict().items():
        torch.testing.assert_close(each, before[name], rtol=0, atol=0)


def test_a_diverged_model_has_no_direction():
    view = on_digits(*SMALL, "method=dpsgd", "model=cnn")
    with torch.no_grad():
        next(view.model.parameters()).fill_(math.inf)
    memory = {}
    found = Alignment(batch=10, draws=1).observe(view, memory)
    assert math.isnan(found["noisy"])
    assert memory["nonfinite"] == 1


def test_correlated_noise_and_empty_settings_are_refused():
    with pytest.raises(ConfigError, match="noise=correlated"):
        seen("method=dpsgd", "model=cnn", "noise=correlated")
    with pytest.raises(ConfigError, match="batch >= 1"):
        Alignment(batch=0, draws=1)
