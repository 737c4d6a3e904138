"""PowerSGD: what DP-SGD releases, projected as the literal transcription does."""

import json

import pytest
import torch
from torch import nn

from dpexp import cli
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.powersgd import PowerSGD
from dpexp.privacy.seeds import generator
from dpexp.types import ConfigError
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, TinyNet, data, step

LARGE = ("conv1.weight", "conv2.weight", "hidden.weight")  # smaller sides 6, 4 and 7


def make(rank=3, warm_start=True, error_feedback=False):
    return PowerSGD(rank, warm_start, error_feedback, "head")


def compress(matrix, q):
    """Vogels et al. 2019, Algorithm 1, on one worker."""
    p = literal.gram_schmidt(matrix @ q)
    q = matrix.T @ p
    return p @ q.T, q


def first_q(model, rank):
    """Draw every layer's Q as `prepare` is given it at step 0 of seed 0."""
    gen = generator(0, "method", 0)
    return {
        name: torch.randn(
            model.get_parameter(name)[0].numel(), rank, generator=gen, dtype=torch.float64
        )
        for name in LARGE
    }


def move(model, update):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= 0.5 * update[name]


@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("warm_start", [False, True])
def test_four_steps_are_the_papers(warm_start, error_feedback):
    """Vogels et al. 2019, Algorithms 1 and 2 (without momentum), on rgp's perturbed gradient."""
    method = make(warm_start=warm_start, error_feedback=error_feedback)
    model, twin, (x, y) = TinyNet(), TinyNet(), data()
    state, q = None, first_q(twin, 3)
    error = {name: torch.zeros(1, dtype=torch.float64) for name in LARGE}
    for _ in range(4):
        got = step(model, method, x, y, state=state, micro_batch=4)
        assert got.clipped > 0
        expected = literal.dpsgd(twin, x, y, CLIP_NORM, NUM)
        for name in LARGE:
            matrix = expected[name].flatten(1) + error[name]
            if not warm_start:  # every call of `step` is step 0: the same draw
                q[name] = first_q(twin, 3)[name]
            projected, q[name] = compress(matrix, q[name])
            expected[name] = projected.view_as(expected[name])
            if error_feedback:
                error[name] = matrix - projected
        assert got.gradients.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(got.gradients[name], gradient, **CLOSE)
        move(model, got.gradients)
        move(twin, expected)
        state = got.state


def test_what_leaves_is_what_leaves_with_dpsgd():
    model, private, plain = TinyNet(), make(), DPSGD("all", "head")
    of_private, of_plain = private.start(model), plain.start(model)
    assert private.trainable(model) == plain.trainable(model)
    assert private.release_shapes(of_private) == plain.release_shapes(of_plain)
    assert private.releases(of_private, 0.3) == plain.releases(of_plain, 0.3)


def test_layers_within_the_rank_the_classifier_and_biases_are_left_whole():
    model, (x, y) = TinyNet(), data()
    got = step(model, make(rank=5), x, y)
    whole = literal.dpsgd(model, x, y, CLIP_NORM, NUM)
    assert got.gradients.keys() == whole.keys()
    for name, gradient in got.gradients.items():
        same = torch.allclose(gradient, whole[name], **CLOSE)
        assert same == (name not in ("conv1.weight", "hidden.weight"))
        if not same:
            assert torch.linalg.matrix_rank(gradient.flatten(1)) == 5


def test_error_feedback_gives_back_in_time_all_that_was_left_out():
    model, (x, y) = TinyNet(), data()
    method, state = make(rank=1, error_feedback=True), None
    applied = dict.fromkeys(LARGE, 0.0)
    for _ in range(5):  # the model stands still: every step's gradient is the same
        got = step(model, method, x, y, state=state)
        state = got.state
        for name in LARGE:
            applied[name] = applied[name] + got.gradients[name].flatten(1)
    whole = literal.dpsgd(model, x, y, CLIP_NORM, NUM)
    for name in LARGE:
        total = applied[name] + state["error"][name]
        torch.testing.assert_close(total, 5 * whole[name].flatten(1), **CLOSE)
        assert state["error"][name].norm() > 1e-3 * total.norm()


def test_a_warm_start_nears_the_best_projection_and_a_cold_one_does_not():
    model, (x, y) = TinyNet(), data()
    best = torch.linalg.svdvals(
        literal.dpsgd(model, x, y, CLIP_NORM, NUM)["hidden.weight"].flatten(1)
    )
    best = float(best[:2].norm())
    caught = {}
    for warm_start in (True, False):
        method, state = make(rank=2, warm_start=warm_start), None
        for _ in range(30):
            got = step(model, method, x, y, state=state)
            state = got.state
        caught[warm_start] = float(got.gradients["hidden.weight"].norm()) / best
    assert 0.9999 < caught[True] <= 1 + 1e-9
    assert caught[False] < 0.99


def test_a_cold_start_draws_anew_every_step():
    model = TinyNet()
    for warm_start in (True, False):
        method = make(warm_start=warm_start)
        one = method.prepare(model, method.start(model), None, torch.Generator().manual_seed(0))
        two = method.prepare(model, one, None, torch.Generator().manual_seed(1))
        assert torch.equal(one["right"][LARGE[0]], two["right"][LARGE[0]]) == warm_start


@pytest.mark.parametrize("rank", [0, 7])
def test_a_rank_that_projects_nothing_is_refused(rank):
    with pytest.raises(ConfigError, match=rf"rank in \[1, 6\].*rank={rank}\. Set method\.rank"):
        make(rank=rank).start(TinyNet())


@pytest.mark.parametrize("sizes", [(), (1, 4)])
def test_a_model_without_a_matrix_that_a_rank_could_fit_is_refused(sizes):
    model = nn.Sequential(*(nn.Linear(*sizes) for _ in sizes[1:]))
    model.add_module("head", nn.Linear(4, 3))
    with pytest.raises(ConfigError, match="weight matrices besides the classifier.*Set model, or"):
        make(rank=1).start(model)


@pytest.mark.long
def test_a_run_learns_at_dpsgds_price(tmp_path):
    base = ["task=digits", "profile=embedded", "epochs=8", "eval_every=8", "device=cpu"]
    config = cli.compose(["method=dp_powersgd", "eps=8", *base, f"results={tmp_path}"])
    directory = cli.execute(config)
    result, privacy = (
        json.loads((directory / f"{name}.json").read_text()) for name in ("result", "privacy")
    )
    assert result["test_accuracy"] > 77  # chance is 10
    assert 0.99 * 8 < privacy["epsilon"]["prv"] <= 8
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"]
    (release,) = privacy["releases"]
    assert release["dimension"] == sum(privacy["trainable"].values())  # full dimension
    assert (release["sensitivity"], privacy["deviations"]) == (1, [])
