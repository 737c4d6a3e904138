"""DP-GRAPE: its steps are the literal transcription's, and no example's gradient is formed."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp import cli
from dpexp.data import Examples
from dpexp.methods.dp_grape import DPGRAPE
from dpexp.privacy import whole_batch
from dpexp.privacy.seeds import generator
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.marks import few
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, TinyNet, data
from tests.steps import ALONE

RANK, EVERY, B1, B2, EPS, LR = 20, 2, 0.8, 0.95, 1e-6, 0.05
PROJECTED = {"conv2.weight": 27, "hidden.weight": 36}  # inputs; conv1.weight has 18


def make(**options):
    usual = {"rank": RANK, "every": EVERY, "moments": "adam", "betas": [B1, B2], "eps": EPS}
    return DPGRAPE(**usual | {"train": "all", "head": "head"} | options)


def draws(step):
    """Draw every matrix's P^T in the model's order, as `prepare` is given them at this step."""
    gen = generator(0, "method", step)
    drawn = {
        name: torch.randn(RANK, inputs, generator=gen, dtype=torch.float64)
        for name, inputs in PROJECTED.items()
    }
    return {name: each.T / math.sqrt(RANK) for name, each in drawn.items()}


def taken(model, method, x, y, step, state, micro_batch=4):
    """One step on the whole batch, without noise."""
    mechanism = whole_batch(len(x), method.releases(state, CLIP_NORM))
    with PrivateGradient(model, method, mechanism, ALONE, micro_batch) as gradient:
        return gradient(state, Examples(x, y), step)


def released(model, projections, x, y):
    """Clip one example after the other, projected; return what is released of each parameter."""
    vectors = {
        name: each.flatten(2) @ projections[name] if name in projections else each
        for name, each in literal.gradients(model, x, y).items()
    }
    return {name: v.sum(0) / NUM for name, v in literal.clip(vectors, CLIP_NORM).items()}


def move(model, updates):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= LR * updates[name]


@pytest.mark.parametrize("moments", ["adam", "none"])
def test_five_steps_are_the_papers(moments):
    method, model, twin, (x, y) = make(moments=moments), TinyNet(), TinyNet(), data()
    state, m, s = method.start(model), {}, {}
    for t in range(5):
        got = taken(model, method, x, y, t, state)
        assert got.clipped > 0
        if t % EVERY == 0:
            projections = draws(t)
        for name, v in released(twin, projections, x, y).items():
            u = v
            if moments == "adam":
                m[name] = B1 * m.get(name, 0) + (1 - B1) * v
                s[name] = B2 * s.get(name, 0) + (1 - B2) * v * v
                mean, square = m[name] / (1 - B1 ** (t + 1)), s[name] / (1 - B2 ** (t + 1))
                u = mean / (square.sqrt() + EPS)
            if name in projections:
                u = (u @ projections[name].T).view_as(twin.get_parameter(name))
            torch.testing.assert_close(got.gradients[name], u, **CLOSE)
        move(twin, got.gradients)
        move(model, got.gradients)
        state = got.state


def test_moments_lie_in_the_space_of_the_release():
    model, (x, y) = TinyNet(), data()
    method = make()
    state = taken(model, method, x, y, 0, method.start(model)).state
    for moments in (state["first"], state["second"]):
        assert moments["hidden.weight"].shape == (7, RANK)
        assert moments["conv1.weight"].shape == model.conv1.weight.shape
        assert moments.keys() == dict(model.named_parameters()).keys()


def test_a_projection_and_back_is_the_identity_in_the_mean():
    method, model = make(rank=3, every=1), TinyNet()
    state, total = method.start(model), torch.zeros(36, 36, dtype=torch.float64)
    for draw in range(3000):
        state = method.prepare(model, state, None, torch.Generator().manual_seed(draw))
        projection = state["projections"]["hidden.weight"]
        total += projection.T @ projection / 3000
    assert (total - torch.eye(36, dtype=torch.float64)).abs().max() < 6 * math.sqrt(2 / 3 / 3000)


def test_matrices_train_alone_where_that_is_asked_for():
    method, model, (x, y) = make(train="matrices"), TinyNet(), data()
    got = taken(model, method, x, y, 0, method.start(model))
    assert got.gradients.keys() == {*PROJECTED, "conv1.weight", "head.weight", "head.bias"}


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes; a view is as large as what it is of."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            own = made.untyped_storage().nbytes() // made.itemsize
            self.numbers = max(self.numbers, own)
        return made


class Tokens(nn.Module):
    """A wide layer on few positions, whose gradients are larger than all that flows."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(64, 48), nn.Linear(48, 3)

    def forward(self, x):
        return self.head(self.wide(x).tanh().mean(1))


def test_no_examples_gradient_is_formed():
    """The largest that a step makes are activations, projected gradients and sums."""
    n, positions, rank = 30, 4, 5
    gen = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, positions, 64, generator=gen), torch.arange(n) % 3
    model, method = Tokens(), make(rank=rank)
    state = method.start(model)
    with Largest() as largest:
        taken(model, method, x, y, 0, state, micro_batch=n)
    assert n * 48 * rank <= largest.numbers <= n * 64 * positions < n * 48 * 64 / 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 36}, r"more inputs than rank=36; the largest has 36.*method\.rank"),
        ({"rank": 0}, r"method\.rank to be a whole number of at least 1; got 0"),
        ({"rank": 2.5}, r"method\.rank.*got 2\.5"),
        ({"rank": True}, r"method\.rank.*got True"),
        ({"every": "x"}, r"method\.every.*got 'x'"),
        ({"moments": "adm"}, r"moments=adm\. Did you mean adam\?"),
        ({"train": "matrix"}, r"train=matrix\. Did you mean matrices\?"),
        ({"betas": [0.9, 1.0]}, r"two numbers in \[0, 1\).*betas=\[0\.9, 1\.0\]"),
        ({"betas": [0.9]}, r"method\.betas"),
        ({"betas": ["a", 0.9]}, r"method\.betas"),
        ({"betas": 0.9}, r"method\.betas"),
        ({"eps": 0}, r"method\.eps above 0.*eps=0"),
        ({"eps": math.nan}, r"method\.eps above 0"),
    ],
)
def test_a_setting_that_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        make(**options).start(TinyNet())


@pytest.mark.parametrize("sizes", [(), (1, 4)])
def test_a_model_without_a_matrix_that_a_rank_could_fit_is_refused(sizes):
    model = nn.Sequential(*(nn.Linear(*sizes) for _ in sizes[1:]))
    model.add_module("head", nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=r"the model has none\. Set model or method=dpsgd"):
        make(rank=2).start(model)


NETWORKS = (
    *("cnn", "resnet20", "wrn10_1", "wrn10_2"),
    *("wrn16_4", "wrn28_4", "wrn28_10", "wrn40_4"),
)


@pytest.mark.parametrize("model", few(NETWORKS, ["cnn", "wrn16_4"]))
def test_image_models_run_without_moments(model):
    """Their rates are for gradients: Adam at 2 throws the weights of WRN-16-4 away."""
    config = cli.compose(["method=dp_grape", "task=cifar10", f"model={model}"])
    assert config["method"]["moments"] == "none"
