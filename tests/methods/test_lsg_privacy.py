"""LSG: what one example can do, where noise is, and what a run certifies."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from dpexp import cli
from dpexp.methods.sparsity import num_kept
from dpexp.types import Key
from tests import steps
from tests.methods.test_against_the_papers import CLOSE
from tests.methods.test_lsg import make

DIGITS = ["task=digits", "profile=embedded", "device=cpu"]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    hidden=st.integers(2, 9),
    classes=st.integers(2, 5),
    p=st.floats(0, 0.99),
    mask=st.sampled_from(["importance", "random", "carriers", "direct"]),
    log_scale=st.floats(-12, 30),
    log_weights=st.floats(-3, 4),
    log_clip=st.floats(-3, 3),
)
def test_adding_one_example_moves_the_sums_by_at_most_the_clip_norm(
    seed, hidden, classes, p, mask, log_scale, log_weights, log_clip
):
    torch.manual_seed(seed)
    model = steps.RandomNet(3, 1, hidden, classes)
    with torch.no_grad():
        model.head.weight *= 10**log_weights
    method = make(p, rank=2, mask=mask)
    x, y = torch.randn(6, 3, 4, 4), torch.randint(classes, (6,))
    x[-1] *= 10**log_scale
    without, _ = steps.sums_of(model, method, x[:5], y[:5], 10**log_clip, micro_batch=2)
    full, _ = steps.sums_of(model, method, x, y, 10**log_clip, micro_batch=4)
    assert full.keys() == without.keys()
    moved = sum(float((full[key] - without[key]).square().sum()) for key in full) ** 0.5
    assert moved <= 10**log_clip * (1 + 1e-9)


@pytest.mark.parametrize(
    "words", [["method.p=0.3"], ["method.mask=random"], ["method.start_epoch=1"]]
)
def test_noise_is_on_all_that_is_kept_and_on_nothing_that_is_frozen(words):
    """The same for the defaults, with powers of the test itself, is in tests/contract."""
    setting = steps.Setting(steps.composed("lsg", *words), torch.float64)
    mechanism, state, drawn = setting.mechanism, setting.state, []
    is_late = "method.start_epoch=1" in words
    for at in range(36, 38) if is_late else range(2):  # an epoch is 35.9 steps
        outcome = setting.step(at, state={**state, "step": at})
        released, masks = setting.method.released, outcome.state
        setting.step(at, state={**state, "step": at}, noise=False)
        for key, noisy in released.items():
            added = (noisy - setting.method.released[key]) * mechanism.batch_size
            assert (added != 0).all()
            drawn.append(added.flatten() / mechanism.noise_multiplier)
        for name, (outputs, channels, *kernel) in masks["shapes"].items():
            rows, columns = masks["rows"][name], masks["columns"][name]
            assert (rows is None) == (num_kept(outputs, masks["p"]) == outputs)
            shape = released[Key("carriers", name, "right")].shape
            taps = torch.Size(kernel).numel()
            assert shape[1] == (channels if columns is None else len(columns)) * taps
        assert masks["p"] > 0
    drawn = torch.cat(drawn).numpy()
    assert kstest(drawn, "norm").pvalue > 1e-3
    for wrong in (0.8, 1.25):
        assert kstest(drawn / wrong, "norm").pvalue < 1e-6


def test_pure_noise_comes_back_through_eq_3_with_zeros_where_frozen():
    setting = steps.Setting(steps.composed("lsg", "batch_size=4"), torch.float64)
    empty = setting.find_step(lambda drawn: drawn == 0)
    outcome = setting.step(empty)
    state, released = outcome.state, setting.method.released
    for name, shape in state["shapes"].items():
        left, right = state["left"][name], state["right"][name]
        d_left, d_right = torch.zeros_like(left), torch.zeros_like(right).view(-1, *shape[1:])
        rows, columns = (
            range(size) if some is None else some.tolist()
            for some, size in zip(
                (state["rows"][name], state["columns"][name]), shape, strict=False
            )
        )
        of_left, of_right = (released[Key("carriers", name, part)] for part in ("left", "right"))
        of_right = of_right.view(len(of_right), -1, *shape[2:])
        for at, row in enumerate(rows):
            d_left[row] = of_left[at]
        for at, column in enumerate(columns):
            d_right[:, column] = of_right[:, at]
        d_right = d_right.flatten(1)
        update = d_left @ right + left @ d_right - left @ left.T @ d_left @ right
        torch.testing.assert_close(outcome.gradients[name], update.view(shape), **CLOSE)


# A run


@pytest.mark.long
def test_a_run_learns_and_its_certificate_counts_what_is_kept(tmp_path):
    words = ["method=lsg", *DIGITS, "eps=8", "epochs=5", "eval_every=5", f"results={tmp_path}"]
    directory = cli.execute(cli.compose(words))
    result, privacy = (
        json.loads((directory / f"{name}.json").read_text()) for name in ("result", "privacy")
    )
    assert result["test_accuracy"] > 50  # chance is 10
    assert 0.99 * 8 < privacy["epsilon"]["prv"] <= 8
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"] == 20
    (release,) = privacy["releases"]
    whole = cli.build_parts(cli.compose([*words, "method.p=0"]), torch.device("cpu"))
    (dense,) = whole.method.releases(whole.method.start(whole.model), 1.0)
    assert 0.5 * dense.dimension <= release["dimension"] < 0.6 * dense.dimension
    assert (release["sensitivity"], privacy["deviations"]) == (1, [])
    assert all(name.endswith(".weight") for name in privacy["trainable"])
