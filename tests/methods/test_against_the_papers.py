"""One step of each method, noise off, equals the literal transcription of its algorithm."""

import pytest
import torch
from torch import nn

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.linalg import power_iteration
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.rgp import RGP
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.methods import literal

NUM, CLASSES, CLIP_NORM = 6, 3, 0.1
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
MATRICES = ("conv1.weight", "conv2.weight", "hidden.weight")


class TinyNet(nn.Module):
    """A grouped and a strided convolution, a hidden layer, and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2, bias=False)
        self.hidden = nn.Linear(4 * 9, 7, bias=False)
        self.head = nn.Linear(7, CLASSES)
        self.double()

    def forward(self, x):
        h = torch.tanh(self.conv2(torch.tanh(self.conv1(x))))
        return self.head(torch.tanh(self.hidden(h.flatten(1))))


def data(num=NUM):
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(num, 2, 6, 6, generator=gen, dtype=torch.float64)
    return x, torch.randint(CLASSES, (num,), generator=gen)


def make_rgp(**options):
    defaults = {
        "rank": 3,
        "carriers": "both",
        "power_iterations": 1,
        "warm_up_steps": 0,
        "decompose": "update",
        "residual": True,
        "head_factor": 0.1,
        "head": "head",
    }
    return RGP(**defaults | options)


def step(model, method, x, y, *, state=None, micro_batch=NUM, clip=True, clip_norm=CLIP_NORM):
    """One step on the whole batch, without noise."""
    state = method.start(model) if state is None else state
    mechanism = whole_batch(len(x), method.releases(state, clip_norm), clip=clip)
    ranks = Ranks(0, 1, torch.device("cpu"))
    with PrivateGradient(model, method, mechanism, ranks, micro_batch) as gradient:
        return gradient(state, Examples(x, y), 0)


@pytest.mark.parametrize("micro_batch", [1, 4, NUM])
def test_dpsgd(micro_batch):
    model, (x, y) = TinyNet(), data()
    got = step(model, DPSGD("all", "head"), x, y, micro_batch=micro_batch)
    expected = literal.dpsgd(model, x, y, CLIP_NORM, NUM)
    assert got.clipped > 0
    assert got.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got.gradients[name], gradient, **CLOSE)


def test_without_clipping_dpsgd_is_the_batch_gradient():
    model, (x, y) = TinyNet(), data()
    got = step(model, DPSGD("all", "head"), x, y, clip=False)
    nn.functional.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got.gradients[name], parameter.grad, **CLOSE)


def test_training_the_head_leaves_the_rest_without_a_gradient():
    model, (x, y) = TinyNet(), data()
    got = step(model, DPSGD("head", "head"), x, y)
    assert got.gradients.keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize("micro_batch", [1, NUM])
@pytest.mark.parametrize("carriers", ["both", "left", "random"])
def test_rgp(carriers, micro_batch):
    model, (x, y) = TinyNet(), data()
    got = step(model, make_rgp(carriers=carriers), x, y, micro_batch=micro_batch)
    bases = {
        name: (got.state["left"][name], got.state["right"][name]) for name in got.state["left"]
    }
    assert bases.keys() == {"conv1.weight", "conv2.weight", "hidden.weight"}
    sides = "left" if carriers == "left" else "both"
    expected = literal.rgp(model, bases, x, y, CLIP_NORM, NUM, "head", 0.1, sides)
    assert got.clipped > 0
    assert got.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got.gradients[name], gradient, **CLOSE)


def test_rgp_update_is_the_projection_of_the_gradient_when_nothing_is_clipped():
    """Corollary 2.1.1: P_L G + G P_R - P_L G P_R."""
    model, (x, y) = TinyNet(), data()
    got = step(model, make_rgp(), x, y, clip=False)
    nn.functional.cross_entropy(model(x), y).backward()
    assert got.state["left"].keys() == set(MATRICES)
    for name, left in got.state["left"].items():
        full = model.get_parameter(name).grad.flatten(1)
        onto_left = left @ left.T
        onto_right = got.state["right"][name].T @ got.state["right"][name]
        projected = onto_left @ full + full @ onto_right - onto_left @ full @ onto_right
        torch.testing.assert_close(got.gradients[name].flatten(1), projected, **CLOSE)


@pytest.mark.parametrize("iterations", [1, 3])
def test_power_iteration_is_algorithm_2(iterations):
    gen = torch.Generator().manual_seed(3)
    delta = torch.randn(8, 11, generator=gen, dtype=torch.float64)
    left, right = power_iteration(delta, 3, iterations, torch.Generator().manual_seed(4))
    start = torch.randn(3, 11, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected_left, expected_right = literal.rgp_carriers(delta, start, iterations)
    # Bases may differ by signs; what they project onto may not.
    torch.testing.assert_close(left @ left.T, expected_left @ expected_left.T, **CLOSE)
    torch.testing.assert_close(right.T @ right, expected_right.T @ expected_right, **CLOSE)


@pytest.mark.parametrize("matrix", [torch.zeros(6, 5), torch.ones(6, 5)])
def test_bases_of_a_deficient_matrix_are_orthonormal_all_the_same(matrix):
    left, right = power_iteration(matrix.double(), 3, 1, torch.Generator().manual_seed(0))
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(left.T @ left, eye, **CLOSE)
    torch.testing.assert_close(right @ right.T, eye, **CLOSE)


def test_carriers_come_from_the_weight_in_warm_up_and_from_the_update_after():
    model, method = TinyNet(), make_rgp(warm_up_steps=2)
    state = method.start(model)
    with torch.no_grad():
        model.hidden.weight += torch.randn(7, 36, dtype=torch.float64)
    for taken, matrix in enumerate(
        [
            model.hidden.weight,
            model.hidden.weight,
            model.hidden.weight - state["initial"]["hidden.weight"],
        ]
    ):
        state = method.prepare(model, state, None, torch.Generator().manual_seed(taken))
        gen = torch.Generator().manual_seed(taken)
        for name in ("conv1.weight", "conv2.weight"):  # drawn before it, from the same stream
            torch.randn(3, model.get_parameter(name)[0].numel(), generator=gen, dtype=torch.float64)
        left, _ = power_iteration(matrix.detach(), 3, 1, gen)
        torch.testing.assert_close(state["left"]["hidden.weight"], left, **CLOSE)


@pytest.mark.parametrize("decompose", ["directions", "weight"])
def test_what_the_authors_code_decomposes_after_warm_up(decompose):
    model, method = TinyNet(), make_rgp(warm_up_steps=1, decompose=decompose)
    state = method.start(model)
    first = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with torch.no_grad():
        model.hidden.weight += torch.randn(7, 36, dtype=torch.float64)
        model.conv1.weight.mul_(3)  # the same direction
    for step_number in range(2):
        found = dict(method.deltas(model, {**state, "step": step_number}, None, torch.Generator()))
        for name, delta in found.items():
            weight = model.get_parameter(name)
            expected = weight
            if step_number == 1 and decompose == "directions":
                expected = weight / weight.norm() - first[name] / first[name].norm()
            torch.testing.assert_close(delta, expected.detach(), **CLOSE)
    moved = float(found["conv1.weight"].norm())
    assert moved < 1e-12 if decompose == "directions" else moved > 1
    assert bool(state["initial"]) == (decompose == "directions")  # no copy that nothing reads


def test_the_direction_of_zeros_is_zero():
    model, method = TinyNet(), make_rgp(decompose="directions")
    with torch.no_grad():
        model.conv1.weight.zero_()
    state = {**method.start(model), "step": 1}
    assert not dict(method.deltas(model, state, None, torch.Generator()))["conv1.weight"].any()


def test_without_residual_the_forward_pass_uses_the_carriers_alone():
    """Appendix C.2, Eq. (12)."""
    model, (x, y) = TinyNet(), data()
    got = step(model, make_rgp(residual=False), x, y, clip=False)
    twin = TinyNet()
    with torch.no_grad():
        for name, left in got.state["left"].items():
            weight = twin.get_parameter(name)
            weight.copy_((left @ got.state["right"][name]).view_as(weight))
    nn.functional.cross_entropy(twin(x), y).backward()
    torch.testing.assert_close(got.gradients["head.weight"], 0.1 * twin.head.weight.grad, **CLOSE)
    left, right = got.state["left"]["conv1.weight"], got.state["right"]["conv1.weight"]
    full = twin.conv1.weight.grad.flatten(1)
    projected = (
        left @ left.T @ full + full @ right.T @ right - left @ left.T @ full @ right.T @ right
    )
    torch.testing.assert_close(got.gradients["conv1.weight"].flatten(1), projected, **CLOSE)


def test_random_carriers_change_every_step_and_depend_on_no_weight():
    method, model = make_rgp(carriers="random"), TinyNet()
    first = method.prepare(model, method.start(model), None, torch.Generator().manual_seed(0))
    second = method.prepare(model, first, None, torch.Generator().manual_seed(1))
    name = "hidden.weight"
    assert not first["initial"]  # no copy that nothing reads
    assert not torch.allclose(first["left"][name], second["left"][name])
    with torch.no_grad():
        model.hidden.weight.zero_()
    again = method.prepare(model, method.start(model), None, torch.Generator().manual_seed(0))
    torch.testing.assert_close(first["left"][name], again["left"][name], **CLOSE)


@pytest.mark.parametrize("rank", [0, 8])
def test_a_rank_that_fits_no_layer_is_refused(rank):
    with pytest.raises(ConfigError, match=rf"rank in \[1, 7\].*rank={rank}.*method.rank"):
        make_rgp(rank=rank).start(TinyNet())


def test_a_layer_smaller_than_the_rank_uses_its_own_smaller_side():
    state = make_rgp(rank=6).start(TinyNet())
    blocks = make_rgp(rank=6).release_shapes(state)
    shapes = {(key.parameter, key.part): shape for key, shape in blocks.items()}
    assert shapes["conv2.weight", "left"] == (4, 4)
    assert shapes["hidden.weight", "right"] == (6, 36)


def test_a_model_without_the_named_head_is_refused():
    with pytest.raises(ConfigError, match=r"'classifier'.*model\.head"):
        make_rgp(head="classifier").trainable(TinyNet())


def test_float32_results_do_not_depend_on_the_micro_batch():
    x, y = data()
    for method in (DPSGD("all", "head"), make_rgp()):
        model = TinyNet().float()
        whole = step(model, method, x.float(), y).gradients
        parts = step(model, method, x.float(), y, micro_batch=1).gradients
        for name in whole:
            scale = whole[name].norm()
            assert (whole[name] - parts[name]).norm() <= 1e-6 * scale


def test_a_misspelt_option_is_refused_with_the_nearest_word():
    with pytest.raises(ConfigError, match=r"method\.carriers=lft\. Did you mean left\?"):
        make_rgp(carriers="lft")
    with pytest.raises(ConfigError, match=r"method\.decompose=wight\. Did you mean weight\?"):
        make_rgp(decompose="wight")
    with pytest.raises(ConfigError, match=r"method\.train=hed\. Did you mean head\?"):
        DPSGD("hed", "head")
