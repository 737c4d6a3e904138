"""TF32: a GPU's ten bits imitated on a CPU, under which the clip bound must hold in every form."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.attacks.influence import climb
from dpexp.attacks.influence_forms import FORMS
from dpexp.grad_sample.conv2d import Conv2dGrads
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.rounding import (
    is_coarse,
    products_in_tf32,
    raised,
    take_sums_of_products,
    unit,
)
from dpexp.models.standardized import weighed
from dpexp.privacy.bound import slack_of
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.attacks.test_influence import ALLOWED, CANCELLING, cancelling, is_large
from tests.marks import some_long
from tests.runs import one_thread  # noqa: F401
from tests.steps import ALONE, Setting, composed, distance

aten = torch.ops.aten
PRODUCTS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
"""Products that cuBLAS and cuDNN may take in TF32, and the places of their factors."""


def cut(values):
    """Keep ten bits of a number's fraction: what a unit does that cuts the others off."""
    return (values.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def to_nearest(values):
    """Round to ten bits, halves away from zero, as a conversion before the product does."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class Imitated(TorchDispatchMode):
    """Rounds both factors of every product in float32.

    Attributes:
        seen: how many products.
    """

    def __init__(self, rounded):
        super().__init__()
        self.rounded, self.seen = rounded, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args = list(args)
        for place in PRODUCTS.get(func, ()):
            if args[place].dtype == torch.float32:
                self.seen += 1
                args[place] = self.rounded(args[place])
        return func(*args, **(kwargs or {}))


def test_ten_bits_are_kept():
    values = torch.randn(10_000, dtype=torch.float64).float()
    for rounded, most in ((cut, 2.0**-10), (to_nearest, 2.0**-11)):
        off = ((rounded(values) - values).double() / values.double()).abs()
        assert most / 2 < off.max() <= most
        assert torch.equal(rounded(rounded(values)), rounded(values))


SMALL = [name for name in FORMS if not is_large(name)]


@pytest.mark.parametrize("name", some_long(SMALL, SMALL[::3]))
def test_no_example_moves_a_sum_by_more_than_the_clip_norm(name):
    for seed, rounded in enumerate((cut, to_nearest)):
        with products_in_tf32(True), Imitated(rounded):
            found = climb(FORMS[name], math.inf, seed=seed, most=8)
        assert found.moved <= ALLOWED, (found.words(), found.seed)


@pytest.mark.parametrize("name", [name for name in CANCELLING if name in SMALL])
def test_pairs_that_cancel_are_bounded(name):
    for rounded in (cut, to_nearest):
        with products_in_tf32(True), Imitated(rounded):
            for log_gap in (-3.0, -2.0, -1.5, -1.0):
                moved = FORMS[name].moved(cancelling(log_gap, log_clip=-0.01), seed=1)
                assert moved.distance <= ALLOWED


WHOLE = [
    "linear 384 to 1536, 4 positions",  # by Gram matrices
    "convolution 256 to 256, 1 x 1",
    "convolution 16 to 24, stride 2",  # formed and thrown away
    "convolution 64 to 64, 4 groups",
    "views, convolution 64 to 64",
]


@pytest.mark.parametrize("name", WHOLE)
def test_norms_whose_factors_all_lose_what_they_can_are_bounded_and_else_are_not(name):
    gen, form = torch.Generator().manual_seed(0), FORMS[name]
    loses = 1 + 2.0**-10 * (1 - 2.0**-13)  # 2^-10 of itself, where it is cut off
    x, h = (
        loses * 2.0 ** torch.randint(-3, 4, (2, *shape), generator=gen)
        for shape in (form.x, form.h)
    )
    exact = form.grads(x.double(), h.double()).materialize().flatten(1).norm(dim=1)
    with Imitated(cut) as imitated:
        grads = form.grads(x, h)
        unaware, held = grads.measured()
        with products_in_tf32(True):
            size, _ = grads.measured()
    assert imitated.seen and type(held) is type(grads)  # what is held is added as it is
    assert (size.squares.sqrt() >= exact).all()
    assert (unaware.squares.sqrt() < exact).all()


def test_margins_are_as_written_and_only_where_tf32_is_asked_for():
    u, before = unit(torch.float32), (raised(100, torch.float32), slack_of(torch.float32))
    assert before == (2 * 108 * u / (1 - 108 * u), 2.0**-10)
    with products_in_tf32(True):
        share = 108 * 4 * u + 2 * (2.0**-9 + 2.0**-20)
        assert raised(100, torch.float32) == pytest.approx(2 * share / (1 - share), rel=1e-12)
        assert slack_of(torch.float32) == 2.0**-8 + 2.0**-9 + 2.0**-20
        assert slack_of(torch.float64) == 2.0**-39 and not is_coarse(torch.float64)
        with products_in_tf32(False):
            assert (raised(100, torch.float32), slack_of(torch.float32)) == before
        assert is_coarse(torch.float32)
    assert not is_coarse(torch.float32)


@pytest.mark.parametrize("is_on", [False, True])
def test_a_step_takes_tf32_in_its_micro_batches_alone(is_on):
    setting, seen = Setting(composed("dpsgd", "model=cnn")), []

    def look(*_):
        seen.append((is_coarse(torch.float32), torch.backends.cudnn.allow_tf32))

    setting.model.register_forward_hook(look)
    exact = setting.step(noise=False)
    seen.clear()
    with PrivateGradient(
        setting.model, setting.method, setting.mechanism, ALONE, 40, tf32=is_on
    ) as gradient:
        gradient(setting.state, setting.examples, 0)
    assert set(seen) == {(is_on, is_on)}
    assert not is_coarse(torch.float32) and not torch.backends.cudnn.allow_tf32
    again = setting.step(noise=False)
    assert distance(again.gradients, exact.gradients) == 0


@pytest.fixture
def precisions():
    """Set torch back to what it was asked for before."""
    backends = torch.backends
    operations = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    operations += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    before = [each.fp32_precision for each in operations]
    yield operations
    backends.fp32_precision = "none"
    for each, value in zip(operations, before, strict=True):
        each.fp32_precision = value
    take_sums_of_products()


def legacy():
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True


def everywhere(word):
    torch.backends.fp32_precision = word


def of_one(operation, word):
    operation.fp32_precision = word


ASKED = {
    "by the old words": legacy,
    "of all, TF32": lambda: everywhere("tf32"),
    "of all, bfloat16": lambda: everywhere("bf16"),
    "of a GPU's matrices": lambda: of_one(torch.backends.cuda.matmul, "tf32"),
    "of a CPU's convolutions": lambda: of_one(torch.backends.mkldnn.conv, "bf16"),
    "of a CPU's matrices": lambda: of_one(torch.backends.mkldnn.matmul, "bf16"),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("is_later", [False, True])
def test_a_step_takes_no_coarser_products_however_a_process_asked_for_them(
    precisions, name, is_later
):
    setting, seen = Setting(composed("dpsgd", "model=cnn")), []
    torch.backends.nnpack.set_flags(True)
    setting.model.register_forward_hook(
        lambda *_: seen.append(
            [*(each.fp32_precision for each in precisions), torch._C._get_nnpack_enabled()]
        )
    )
    if not is_later:
        ASKED[name]()
    with PrivateGradient(setting.model, setting.method, setting.mechanism, ALONE, 40) as gradient:
        if is_later:
            ASKED[name]()
        seen.clear()
        gradient(setting.state, setting.examples, 0)
    assert seen and all(each == [*["ieee"] * len(precisions), False] for each in seen)


@pytest.mark.parametrize("variable", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"])
def test_a_variable_that_makes_onednn_round_factors_is_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "strict")
    Setting(composed("dpsgd", "model=cnn")).step()
    monkeypatch.setenv(variable, "BF16")
    with pytest.raises(ConfigError, match=f"{variable}=BF16.*Unset"):
        Setting(composed("dpsgd", "model=cnn")).step()


def test_without_onednn_a_norms_convolution_is_a_sum_of_products():
    """NNPACK's, which torch then takes for 16 images or more, was off by 1,620 times its bound."""
    gen, at = torch.Generator().manual_seed(0), Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    unit_of = torch.nn.functional.normalize(torch.randn(32, 288, generator=gen).double())
    torch.backends.nnpack.set_flags(True)
    take_sums_of_products()
    for seed in range(6):
        x, dh = torch.randn(2, 16, 32, 8, 8, generator=gen.manual_seed(seed))
        x[:, :, 0, 0] *= 1e6  # whose tile the sum at [4, 4] shares, where tiles are large
        dh[:, :, torch.arange(8) != 4] = dh[:, :, :, torch.arange(8) != 4] = 0
        with torch.backends.mkldnn.flags(enabled=False):
            found = weighed(Conv2dGrads(x, dh, at, ()), unit_of)
        each = (x.double(), dh.double(), unit_of.float().double())
        exact = weighed(Conv2dGrads(*each[:2], at, ()), each[2])
        sizes = weighed(Conv2dGrads(each[0].abs(), each[1].abs(), at, ()), each[2].abs())
        assert ((found - exact).abs() <= raised(288 + 64, torch.float32) / 2 * sizes).all()
