"""Costs of a step: what they are of, and that they follow what is asked."""

import pytest
import torch

from dpexp.analysis.cost import Cost
from dpexp.privacy.clipping import Flat
from dpexp.types import ConfigError
from tests.analysis.views import on_digits
from tests.runs import one_thread  # noqa: F401 (a fixture)


def measured(*words, batch=200, rounds=3, micro_batch=100):
    view = on_digits(*words)
    before = {name: weight.clone() for name, weight in view.model.named_parameters()}
    found = Cost(batch=batch, micro_batch=micro_batch, rounds=rounds).observe(view, {})
    assert all(torch.equal(before[n], w) for n, w in view.model.named_parameters())
    assert all(weight.grad is None for weight in view.model.parameters())
    assert not any(weight.requires_grad for weight in view.model.parameters())  # hooks are back
    return found


@pytest.mark.long
def test_a_step_of_more_examples_takes_longer_and_a_ratio_is_a_ratio():
    few, many = (measured("method=rgp", batch=some) for some in (100, 1400))
    for name in ("private_s", "nonprivate_s"):
        assert many[name] > 3 * few[name] > 0
    once = measured("method=rgp", rounds=1)
    assert once["ratio"] == pytest.approx(once["private_s"] / once["nonprivate_s"])


@pytest.mark.long
def test_memory_is_that_of_activations_and_not_of_the_process():
    """A convolution's output on 350 digits of 8 x 8 alone is 16 x 64 floats an example."""
    # Of fewer examples what the process keeps or hands back between steps would count as much.
    sizes = (350, 700)
    few, many = (measured("method=dpsgd", rounds=1, batch=1400, micro_batch=n) for n in sizes)
    for name, least in (("private_mb", 1.2), ("nonprivate_mb", 1.5)):  # noise does not grow
        assert few[name] > 350 * 16 * 64 * 4 / 1e6
        assert least < many[name] / few[name] < 2.5


def test_the_private_step_clips_by_the_rule_of_the_run():
    heard = []

    class Heard(Flat):
        def weights(self, norms, bound):
            heard.append(len(norms))
            return super().weights(norms, bound)

    view = on_digits("method=dpsgd")
    view.gradient._batch.clipping = Heard()
    Cost(batch=60, micro_batch=50, rounds=1).observe(view, {})
    assert set(heard) == {50, 10}


OPTIONS = {
    "augmentation": (["augmentation=crop_flip", "augmentation.multiplicity=3"], 3),
    "clipping": (["clipping=adaptive"], 1),
    "denoise": (["denoise=doppler"], 1),
    "all": (["augmentation=crop_flip", "clipping=per_layer", "denoise=disk"], 16),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_private_step_has_the_options_of_the_run(option):
    """The model sees every view of an example; with a filter around, the method is the filter."""
    words, views = OPTIONS[option]
    view = on_digits("method=dpsgd", "model.width=1", *words)
    seen = []
    view.model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    calls = []
    reconstruct = view.method.reconstruct
    view.method.reconstruct = lambda *given: calls.append(1) or reconstruct(*given)
    Cost(batch=20, micro_batch=10, rounds=1).observe(view, {})
    steps = 3  # of each kind: to warm up, for memory and for time
    assert sum(seen) == 20 * steps * (1 + views) and len(calls) == steps


def test_it_measures_once_and_puts_it_into_the_result():
    view = on_digits("method=rgp", step=3)
    analysis = Cost(batch=50, micro_batch=50, rounds=1)
    assert analysis.observe(view, {}) == {}
    assert analysis.numbers({"step": [0], "epoch": [0], "ratio": 1.5}) == {"ratio": 1.5}
    with pytest.raises(ConfigError, match="rounds >= 1; got 50, 50 and 0"):
        Cost(batch=50, micro_batch=50, rounds=0)
