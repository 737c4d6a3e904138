"""DP-ZO: its steps are the literal transcription's, by forward passes alone."""

import math
import re
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp.cli.parts import build_parts
from dpexp.data import Examples
from dpexp.methods.dp_zo import DPZO
from dpexp.models import precision
from dpexp.privacy import build, whole_batch
from dpexp.privacy.laplace import pure_epsilon
from dpexp.privacy.seeds import generator
from dpexp.privacy.verification.files import verify_files
from dpexp.training.gradient import PrivateGradient
from dpexp.training.losses import BatchLosses
from dpexp.types import Batch, ConfigError
from tests.methods import literal
from tests.methods.test_against_the_papers import CLOSE, NUM, TinyNet, data
from tests.runs import CONFIGS, execute, of
from tests.steps import ALONE

K, C, PERTURBATION, LR = 3, 0.4, 1e-3, 0.01


def make(**options):
    usual = {"directions": K, "perturbation": PERTURBATION, "noise": "gaussian", "train": "all"}
    return DPZO(**usual | {"head": "head"} | options)


def taken(model, method, x, y, step, *, micro_batch=4, clip_norm=C, **changes):
    """One step on the whole batch, without noise unless that is asked for."""
    state = method.start(model)
    mechanism = whole_batch(len(x), method.releases(state, clip_norm), **changes)
    with PrivateGradient(model, method, mechanism, ALONE, micro_batch) as gradient:
        return gradient(state, Examples(x, y), step)


def drawn(model, step):
    """Draw z_1 .. z_k as `prepare` is given them: all of one parameter's, then the next one's."""
    gen = generator(0, "method", step)
    rows = {
        name: torch.randn(K, *weight.shape, generator=gen, dtype=torch.float64)
        for name, weight in model.named_parameters()
    }
    return [{name: each[j] for name, each in rows.items()} for j in range(K)]


def at(model, z, step):
    twin = TinyNet()
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            weight.copy_(model.get_parameter(name) + step * z[name])
    return twin


def differences(model, x_i, y_i, directions):
    """(L_i(theta + c z) - L_i(theta - c z)) / 2c for one example, on copies of the model."""
    found = []
    for z in directions:
        plus, minus = (
            F.cross_entropy(at(model, z, c)(x_i[None]), y_i[None]).detach()
            for c in (PERTURBATION, -PERTURBATION)
        )
        found.append((plus - minus) / (2 * PERTURBATION))
    return torch.stack(found)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_three_steps_are_the_papers(noise):
    method, model, twin, (x, y) = make(noise=noise), TinyNet(), TinyNet(), data()
    for t in range(3):
        got = taken(model, method, x, y, t)
        directions, total = drawn(twin, t), torch.zeros(K, dtype=torch.float64)
        for x_i, y_i in zip(x, y, strict=True):
            s = differences(twin, x_i, y_i, directions)
            total += s.clamp(-C, C) if noise == "laplace" else s * min(1, C / float(s.norm()))
        assert 0 < got.clipped
        assert not got.state["directions"]  # k times the model, which no checkpoint needs
        for name, weight in model.named_parameters():
            estimate = sum(total[j] / NUM * directions[j][name] for j in range(K)) / K
            torch.testing.assert_close(got.gradients[name], estimate, rtol=1e-7, atol=1e-10)
            with torch.no_grad():
                weight -= LR * estimate
        twin.load_state_dict(model.state_dict())


def test_the_estimate_is_the_gradient_along_the_directions():
    """Without clipping and for a small perturbation."""
    model, (x, y) = TinyNet(), data()
    got = taken(model, make(), x, y, 0, clip=False)
    gradient = {name: each.mean(0) for name, each in literal.gradients(model, x, y).items()}
    along = [sum((gradient[n] * z[n]).sum() for n in gradient) for z in drawn(model, 0)]
    for name, estimate in got.gradients.items():
        expected = sum(a * z[name] for a, z in zip(along, drawn(model, 0), strict=True)) / K
        torch.testing.assert_close(estimate, expected, rtol=1e-4, atol=1e-4)


class Strict(nn.Module):
    """Dropout, a recurrent layer that keeps its weights under a second name, and a witness."""

    def __init__(self):
        super().__init__()
        self.body, self.drop = nn.LSTM(4, 5, batch_first=True), nn.Dropout(0.5)
        self.head = nn.Linear(5, 3)
        self.seen, self.fails = [], False

    def forward(self, x):
        self.seen.append((torch.is_grad_enabled(), len(self.body._forward_hooks)))
        if self.fails and len(self.seen) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return self.head(self.drop(self.body(x)[0][:, -1]))


def strict():
    torch.manual_seed(0)
    return Strict().double(), torch.randn(6, 3, 4, dtype=torch.float64), torch.arange(6) % 3


def test_forward_passes_have_no_graph_no_hook_and_no_dropout():
    model, x, y = strict()
    model.train()
    got = taken(model, make(), x, y, 0, micro_batch=3, clip=False)
    again = taken(model, make(), x, y, 0, micro_batch=6, clip=False)
    assert model.seen == [(False, 0)] * (2 * K * 3) and model.training
    for name, estimate in got.gradients.items():
        torch.testing.assert_close(estimate, again.gradients[name], **CLOSE)


def test_a_perturbation_reaches_weights_that_a_module_holds_twice():
    model, x, y = strict()
    weights = dict(model.named_parameters())
    losses = BatchLosses(model, weights, lambda o, t: F.cross_entropy(o, t), Batch(x, y))
    name = "body.weight_hh_l0"
    assert not torch.equal(
        losses({name: torch.ones_like(weights[name])}, 1.0), losses({name: weights[name]}, 0.0)
    )


def test_weights_are_as_before_to_the_bit_also_after_an_error():
    model, x, y = strict()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    taken(model, make(), x, y, 0)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    model.fails, model.seen = True, []
    z = {name: torch.ones_like(each) for name, each in model.named_parameters()}
    losses = BatchLosses(model, dict(model.named_parameters()), F.cross_entropy, Batch(x, y))
    losses(z, 1.0)
    with pytest.raises(torch.OutOfMemoryError):
        losses(z, 1.0)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_the_views_of_an_example_are_averaged():
    model, x, y = strict()
    batch = Batch(x.repeat_interleave(2, 0), y.repeat_interleave(2), views=2)
    weights = dict(model.named_parameters())
    one = BatchLosses(model, weights, F.cross_entropy, Batch(x, y))({}, 0.0)
    both = BatchLosses(model, weights, F.cross_entropy, batch)({}, 0.0)
    torch.testing.assert_close(both, one, **CLOSE)


def test_a_loss_that_looks_at_values_is_taken_row_by_row():
    model, x, y = strict()
    weights = dict(model.named_parameters())

    def branching(outputs, targets):
        found = F.cross_entropy(outputs, targets, reduction="sum")
        return found if found > 0 else -found

    one = BatchLosses(model, weights, branching, Batch(x, y))({}, 0.0)
    usual = BatchLosses(model, weights, F.cross_entropy, Batch(x, y))({}, 0.0)
    torch.testing.assert_close(one, usual, **CLOSE)


def test_a_step_tells_k_numbers_and_noise_on_them():
    """The gradient is a sum of public directions, each times a number with the declared noise."""
    model, (x, y) = TinyNet(), data()
    method, found = make(), []
    silent = taken(model, method, x, y, 0)
    noisy = taken(model, method, x, y, 0, noise_multiplier=1.0)
    names = list(noisy.gradients)
    z = torch.stack([torch.cat([d[n].flatten() for n in names]) for d in drawn(model, 0)], 1)
    for got in (silent, noisy):
        vector = torch.cat([got.gradients[n].flatten() for n in names])
        fit = torch.linalg.lstsq(z, vector[:, None]).solution
        assert float((z @ fit - vector[:, None]).norm()) < 1e-9
        found.append(fit[:, 0] * K * NUM)
    mechanism = whole_batch(NUM, method.releases(method.start(model), C), noise_multiplier=1.0)
    noise = torch.randn(K, generator=mechanism.noise_generator(0), dtype=torch.float64) * C
    torch.testing.assert_close(found[1] - found[0], noise, **CLOSE)


RUN = ["method=dp_zo", "method.train=head", "task=digits", "profile=embedded", "device=cpu"]
RUN += ["model=cnn", "model.channels=[4,8]", "model.kernel=3", "batch_size=60", "epochs=0.2"]


@pytest.mark.parametrize("budget", ["total", "per_step"])
def test_a_laplace_run_is_purely_private_and_verified(budget, tmp_path):
    words = ["method.noise=laplace", "method.directions=2", f"privacy.budget={budget}", "eps=2"]
    directory = execute(tmp_path, *RUN, *words)
    _, result, privacy = of(directory)
    config = CONFIGS.compose_anew([*RUN, *words])
    assert verify_files(config, result, privacy).findings == ()
    steps, (release,) = privacy["steps"], privacy["releases"]
    assert privacy["delta"] == 0 and release["sensitivity"] == release["dimension"] == 2
    target = 2 if budget == "total" else 2 * steps
    scale = privacy["noise_multiplier"] / 2
    spent = steps * math.log1p(privacy["q"] * math.expm1(1 / scale))
    assert privacy["epsilon"]["pure"] == pytest.approx(spent) == pytest.approx(target)
    assert pure_epsilon(privacy["q"], scale, [1.0] * steps) == pytest.approx(spent)
    privacy["releases"][0]["sensitivity"] = 1.0
    assert verify_files(config, result, privacy).findings


def test_a_budget_per_step_is_refused_under_gaussian_noise():
    privacy = {"eps": 1.0, "delta": 1e-4, "noise": True, "clip": True, "sampling": "poisson"}
    releases = make().releases({}, C)
    sizes = {"dataset_size": 100, "batch_size": 10, "num_steps": 5, "seed": 0}
    with pytest.raises(ConfigError, match=r"budget=total under Gaussian noise.*got per_step"):
        build({**privacy, "budget": "per_step"}, releases=releases, **sizes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"directions": 0}, r"method\.directions to be a whole number of at least 1; got 0"),
        ({"directions": 1.5}, r"method\.directions.*got 1\.5"),
        ({"directions": True}, r"method\.directions.*got True"),
        ({"directions": 1000, "train": "head"}, r"at most 24 directions.*got 1000"),
        ({"perturbation": 0}, r"method\.perturbation above 0 and at most 1000; got 0"),
        (
            {"perturbation": 1e-9},
            r"method\.perturbation of at least 1\.06e-08: a loss's rounding.*got 1e-09",
        ),
        ({"perturbation": 1e300}, r"method\.perturbation.*got 1e\+300"),
        ({"perturbation": math.nan}, r"method\.perturbation.*got nan"),
        ({"perturbation": "1e-3x"}, r"method\.perturbation.*got '1e-3x'"),
        ({"noise": "laplac"}, r"noise=laplac\. Did you mean laplace\?"),
        ({"train": "heads"}, r"train=heads\. Did you mean head\?"),
    ],
)
def test_a_setting_that_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        make(**options).start(TinyNet())


class Halved(TinyNet):
    """Multiplies in half precision under autocast, and says so."""

    def precision_on(self, device):
        return torch.bfloat16


def test_losses_in_half_precision_are_too_coarse_for_a_small_perturbation():
    with pytest.raises(ConfigError, match=r"at least 0\.0\d+: .* in torch.bfloat16.*=float32"):
        make().start(Halved())
    make(perturbation=0.1).start(Halved())
    words = ["method=dp_zo", "task=sentiment", "profile=embedded", "eps=8"]
    config = CONFIGS.compose([*words, "model.precision=bfloat16"])
    parts = build_parts(config, torch.device("cpu"))
    with pytest.raises(ConfigError, match="Set method.perturbation or model.precision=float32"):
        parts.method.start(parts.model)


@pytest.mark.parametrize("has_units", [True, False])
def test_precision_that_the_device_decides_is_that_of_the_device(has_units, monkeypatch):
    monkeypatch.setattr(precision, "_has_units", lambda device: has_units)
    words = ["method=dp_zo", "task=sentiment", "profile=embedded", "eps=8", "model.precision=auto"]
    parts = build_parts(CONFIGS.compose(words), torch.device("cpu"))
    with pytest.raises(ConfigError) if has_units else nullcontext():
        parts.method.start(parts.model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_least_perturbation_that_is_told_is_taken(dtype):
    model = TinyNet().to(dtype)
    with pytest.raises(ConfigError) as refused:
        make(perturbation=1e-12).start(model)
    (least,) = re.findall(r"of at least ([\d.e-]+):", str(refused.value))
    make(perturbation=float(least)).start(model)
