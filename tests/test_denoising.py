"""Filters of released gradients: the papers' recursions, resumed runs, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dpexp
from dpexp import cli
from dpexp.attacks import soundness
from dpexp.cli.verify import verify
from dpexp.methods.denoising import LowPass
from dpexp.types import ConfigError, Method
from tests.runs import ALONE, CONFIGS, one_thread, with_words  # noqa: F401 (a fixture)
from tests.steps import Setting

RUN = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "device=cpu"]
DISK, DOPPLER = "denoise=disk", "denoise=doppler"


def composed(*words):
    return CONFIGS.compose_anew([*RUN, "eps=8", *words])


def filtered(a, b, series):
    """Run a series of gradients through DOPPLER, beside a method that gives them as they are."""

    class Given(Method):
        def start(self, model):
            return {}

        def reconstruct(self, state, noisy):
            return {"w": torch.tensor([noisy["w"]], dtype=torch.float64)}, state

    method, found = LowPass(Given(), a, b), []
    state = method.start(None)
    for each in series:
        gradients, state = method.reconstruct(state, {"w": each})
        found.append(float(gradients["w"]))
    return found


@pytest.mark.parametrize(
    ("a", "b"),
    [([-0.9], [0.05, 0.05]), ([], [1.0]), ([], [0.5, 0.3, 0.2]), ([-1.2, 0.4], [0.1, 0.05, 0.05])],
)
def test_low_pass_is_the_recursion_with_its_bias_corrected(a, b):
    series = np.random.default_rng(0).normal(size=30)
    outputs, gains = [], []
    for step in range(30):
        for past, value in ((outputs, series), (gains, np.ones(30))):
            total = sum(each * value[step - i] for i, each in enumerate(b) if step >= i)
            total -= sum(each * past[step - 1 - i] for i, each in enumerate(a) if step > i)
            past.append(total)
    expected = np.divide(outputs, gains)
    np.testing.assert_allclose(filtered(a, b, series), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(filtered(a, b, 3 * np.ones(8)), 3 * np.ones(8), rtol=1e-12)


def test_disk_takes_gradients_ahead_of_the_weights_and_averages_them():
    """Against the same steps by hand: the plain method at weights that were moved ahead."""
    kappa = 0.7
    words = ["batch_size=40", "noise=false", "eps=null", "optimizer.lr=0.5"]
    ours, plain = Setting(composed(*words, DISK)), Setting(composed(*words))
    weights = {name: each.detach().clone() for name, each in plain.model.named_parameters()}
    last, mean, state = dict(weights), None, ours.state
    for step in range(4):
        with torch.no_grad():
            for name, each in plain.model.named_parameters():
                each.copy_(weights[name] + (1 - kappa) / kappa * (weights[name] - last[name]))
            for name, each in ours.model.named_parameters():
                each.copy_(weights[name])
        found = plain.step(step).gradients
        mean = found if mean is None else {k: 0.3 * mean[k] + 0.7 * found[k] for k in found}
        outcome = ours.step(step, state=state)
        state = outcome.state
        for name, each in mean.items():
            torch.testing.assert_close(outcome.gradients[name], each, rtol=1e-5, atol=1e-7)
        last = dict(weights)
        weights = {name: each - 3 * mean[name] for name, each in weights.items()}
    assert any((weights[name] - last[name]).norm() > 0.1 for name in weights)


@pytest.mark.parametrize("option", [DISK, DOPPLER])
def test_nothing_is_known_but_what_was_released(option):
    parts = cli.build_parts(composed(option, "clipping=adaptive"), ALONE.device)
    assert soundness.check(parts, 1.0, tries=3, climbs=4).findings == ()


@pytest.mark.parametrize("option", [DISK, DOPPLER])
def test_an_interrupted_run_goes_on_with_its_filter(option, tmp_path):
    said = [*RUN, "eps=8", "epochs=1.5", "eval_every=0.25", option]

    def stop(line):
        if line["step"] >= 4:
            raise KeyboardInterrupt

    config = CONFIGS.compose_anew([*said, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    with pytest.raises(KeyboardInterrupt):
        cli.instantiate.loop_of(config).train(config, replace(parts, callbacks=[stop]), ALONE)
    again = dpexp.run(*said, f"results={tmp_path}")
    whole = dpexp.run(*said, f"results={tmp_path}/whole")
    plain = dpexp.run(*said[:-1], f"results={tmp_path}/plain")
    assert again.result["weights_sha256"] == whole.result["weights_sha256"]
    assert whole.result["weights_sha256"] != plain.result["weights_sha256"]
    assert whole.certificate["releases"] == plain.certificate["releases"]
    assert verify(whole.directory)[0] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("denoise=doppler denoise.a=[-1.1]", "stable filter"),
        ("denoise=doppler denoise.a=[1.1] denoise.b=[1,1.1]", "unit circle"),
        ("denoise=doppler denoise.a=[1] denoise.b=[1,0.5]", "unit circle"),
        ("denoise=doppler denoise.b=[-1]", "gain above 0"),
        ("denoise=doppler denoise.b=[]", "denoise.b to be a list of 1 to 16"),
        ("denoise=doppler denoise.a=0.9", "a list of float; got a=0.9. Set denoise.a"),
        ("denoise=doppler denoise.b=[x]", "denoise.b to be a list"),
        ("denoise=doppler denoise.b=[.nan]", "denoise.b"),
        ("denoise=disk denoise.kappa=0", "denoise.kappa from 0.01 to 1"),
        ("denoise=disk denoise.kappa=soft", "kappa of Kalman to be float"),
        ("denoise=disk method=rgp model=wrn10_1 method.residual=false", "residual=true"),
        ("denoise=disk method=pate", "has its own"),
        ("denoise=disk method=dp_zo", "takes losses alone"),
        ("denoise=kalman", "disk"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    said = with_words([*RUN, "eps=8", "epochs=0.3", f"results={tmp_path}"], words.split())
    with pytest.raises(ConfigError, match=line) as refused:
        dpexp.run(*said)
    assert "\n" not in str(refused.value)
