"""Products by oneDNN: right for any operands, and within the context alone."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample.rounding import eta, unit
from dpexp.kernels import by_onednn, products
from dpexp.methods.dpsgd import DPSGD
from dpexp.pate.stages import descend, predict
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.training.judging import evaluate
from dpexp.training.warm_start import fit
from dpexp.types import Batch
from tests.methods.test_against_the_papers import step
from tests.steps import flat, sums_of

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel") or not products._is_right(),
    reason="this torch has no such operator",
)
LAYOUTS = {
    "rows": lambda matrix: matrix.contiguous(),
    "columns": lambda matrix: matrix.mT.contiguous().mT,
    "every other row": lambda matrix: torch.stack([matrix, matrix], -2).flatten(-3, -2)[
        ..., ::2, :
    ],
    "every other column": lambda matrix: matrix.repeat_interleave(2, -1)[..., ::2],
    "one row for all": lambda matrix: matrix[..., :1, :].expand(matrix.shape),
    "one number for all": lambda matrix: matrix[..., :1, :1].expand(matrix.shape),
    "backwards": lambda matrix: matrix.flip(-1).contiguous(),
    "a part": lambda matrix: nn.functional.pad(matrix, (1, 2, 3, 1))[..., 3:-1, 1:-2],
    "negated lazily": lambda matrix: torch._neg_view(matrix.contiguous()),
}
LIMITS = ("LEAST", "FEW", "FEW_IF_COPIED", "FEW_TERMS")
OPERATIONS = ("mm", "addmm", "addmm_", "bmm")


@pytest.fixture
def taken(monkeypatch):
    """Have every product go to oneDNN within the context, whatever the processor; count them."""
    counted = []
    product = products._product
    monkeypatch.setattr(products, "is_faster", lambda: True)
    for limit in LIMITS:
        monkeypatch.setattr(products, limit, 1)
    monkeypatch.setattr(products, "_product", lambda *each: counted.append(each) or product(*each))
    return counted


@pytest.fixture
def as_it_is(monkeypatch):
    """Have large products go to oneDNN, as on a processor where that is faster; count them."""
    counted = []
    product = products._product
    monkeypatch.setattr(products, "is_faster", lambda: True)
    monkeypatch.setattr(products, "_product", lambda *each: counted.append(each) or product(*each))
    return counted


def everywhere():
    """Return what `taken` does, for tests that hypothesis calls many times."""
    patch = pytest.MonkeyPatch()
    patch.setattr(products, "is_faster", lambda: True)
    for limit in LIMITS:
        patch.setattr(products, limit, 1)
    return patch


def operated(name, to, one, other, beta, alpha):
    if name == "mm":
        return torch.mm(one, other)
    if name == "bmm":
        return torch.bmm(one, other)
    if name == "addmm":
        return torch.addmm(to, one, other, beta=beta, alpha=alpha)
    return (
        to.clone()
        .expand(one.shape[0], other.shape[1])
        .clone()
        .addmm_(one, other, beta=beta, alpha=alpha)
    )


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(OPERATIONS),
    st.tuples(*[st.sampled_from([1, 2, 3, 7, 8, 16, 17, 33, 64, 130])] * 3),
    st.tuples(*[st.sampled_from(sorted(LAYOUTS))] * 2),
    st.sampled_from([0, 1, -2.5]),
    st.sampled_from([1, 0.5, 0]),
    st.sampled_from(["[n]", "[n], every other", "[n], one", "[m, n]", "[1, n]", "[m, 1]", "[1]"]),
    st.integers(0, 2**31),
)
def test_products_are_right_to_the_bound_on_rounding(name, sizes, layouts, beta, alpha, kind, seed):
    gen = torch.Generator().manual_seed(seed)
    m, k, n = sizes
    batch = (2,) if name == "bmm" else ()
    one, other = (
        LAYOUTS[layout](torch.randn(*batch, *shape, generator=gen))
        for layout, shape in zip(layouts, ((m, k), (k, n)), strict=True)
    )
    to = {
        "[n]": torch.randn(n, generator=gen),
        "[n], every other": torch.randn(2 * n, generator=gen)[::2],
        "[n], one": torch.randn(1, generator=gen).expand(n),
        "[m, n]": torch.randn(n, m, generator=gen).T,
        "[1, n]": torch.randn(1, n, generator=gen),
        "[m, 1]": torch.randn(m, 1, generator=gen),
        "[1]": torch.randn(1, generator=gen),
    }[kind]
    if beta == 0:
        to[..., :1] = torch.nan  # which is then not read
    patch = everywhere()
    try:
        with by_onednn():
            got = operated(name, to, one, other, beta, alpha)
    finally:
        patch.undo()
    wide = torch.nan_to_num(to.double()) if beta == 0 else to.double()
    one, other = one.double(), other.double()
    expected = operated(name, wide, one, other, beta, alpha)
    most = operated(name, wide.abs(), one.abs(), other.abs(), abs(beta), abs(alpha))
    assert got.dtype == torch.float32 and got.shape == expected.shape
    assert (
        (got - expected).abs() <= (k + 4) * unit(torch.float32) * most + eta(torch.float32)
    ).all()


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_no_layout_takes_a_hundred_times_as_long(taken, first, second):
    one, other = LAYOUTS[first](torch.randn(200, 400)), LAYOUTS[second](torch.randn(400, 300))

    def least():
        laps = []
        for _ in range(3):
            start = time.perf_counter()
            one @ other
            laps.append(time.perf_counter() - start)
        return min(laps)

    with by_onednn():
        here = least()
    assert here < 100 * least() + 0.01


def test_layers_of_any_model_and_their_gradients_go_through_it(taken):
    torch.manual_seed(0)
    layer = nn.Linear(24, 40)
    x = torch.randn(5, 7, 24, requires_grad=True)
    expected = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    assert not taken
    with by_onednn():
        outputs = layer(x)
        gradients = torch.autograd.grad(outputs.square().sum(), [x, *layer.parameters()])
    assert len(taken) == 3
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_gradients_and_of_examples_are_torchs(taken):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 30), nn.Tanh(), nn.Linear(30, 11))
    x = torch.randn(6, 9, requires_grad=True)
    weights = dict(model.named_parameters())

    def loss(held, each):
        return functional_call(model, held, (each,)).square().sum()

    def found():
        (first,) = torch.autograd.grad(loss(weights, x), x, create_graph=True)
        twice = torch.autograd.grad(first.square().sum(), [*weights.values()], allow_unused=True)
        per_example = vmap(grad(loss), in_dims=(None, 0))(weights, x.detach())
        _, tangent = torch.func.jvp(lambda each: loss(weights, each), (x,), (torch.ones_like(x),))
        return [*(each for each in twice if each is not None), *per_example.values(), tangent]

    expected = found()
    assert not taken
    with by_onednn():
        got = found()
    assert taken
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


WRONG = {
    "lengths that differ": lambda: torch.ones(3, 4) @ torch.ones(5, 6),
    "a vector": lambda: torch.mm(torch.ones(4), torch.ones(4, 2)),
    "batches that differ": lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(3, 4, 5)),
    "matrices in a batch's place": lambda: torch.bmm(torch.ones(3, 4), torch.ones(4, 5)),
    "a bias of another length": lambda: torch.addmm(
        torch.ones(3), torch.ones(2, 4), torch.ones(4, 5)
    ),
    "a bias of three axes": lambda: torch.addmm(
        torch.ones(1, 2, 5), torch.ones(2, 4), torch.ones(4, 5)
    ),
    "a vector as the other": lambda: torch.addmm(torch.ones(5), torch.ones(2, 4), torch.ones(4)),
    "a sum of another shape": lambda: torch.ones(1, 5).addmm_(torch.ones(2, 4), torch.ones(4, 5)),
    "two precisions": lambda: torch.ones(2, 4) @ torch.ones(4, 5, dtype=torch.float64),
    "a bias of another precision": lambda: torch.addmm(
        torch.ones(5, dtype=torch.float64), torch.ones(2, 4), torch.ones(4, 5)
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_multiplied_meets_torchs_error(taken, case):
    with pytest.raises(RuntimeError) as expected:
        WRONG[case]()
    with by_onednn(), pytest.raises(RuntimeError) as got:
        WRONG[case]()
    assert str(got.value) == str(expected.value)


EMPTY = {
    "mm": lambda: torch.ones(0, 4) @ torch.ones(4, 5),
    "no terms": lambda: torch.ones(3, 0) @ torch.ones(0, 5),
    "bmm": lambda: torch.bmm(torch.ones(0, 3, 4), torch.ones(0, 4, 5)),
    "addmm": lambda: torch.addmm(torch.ones(5), torch.ones(2, 0), torch.ones(0, 5)),
    "float64": lambda: torch.ones(2, 4).double() @ torch.ones(4, 5).double(),
    "whole numbers": lambda: torch.ones(2, 4).long() @ torch.ones(4, 5).long(),
}


@pytest.mark.parametrize("case", EMPTY)
def test_what_it_does_not_take_is_torchs(taken, case):
    expected = EMPTY[case]()
    with by_onednn():
        torch.testing.assert_close(EMPTY[case](), expected, rtol=0, atol=0)
    assert not taken


def test_a_number_that_is_not_finite_stays_in_its_row(taken):
    one, other = torch.randn(6, 40), torch.randn(40, 30)
    one[2, 7], one[4, 1] = torch.nan, torch.inf
    with by_onednn():
        product = one @ other
    assert product[2].isnan().all() and not product[4].isfinite().any()
    assert product[[0, 1, 3, 5]].isfinite().all()


def test_torchs_own_products_return_with_the_end_of_the_last_context(taken):
    square = torch.randn(8, 8)

    def takes():
        before = len(taken)
        square @ square
        return len(taken) > before

    assert not takes()
    with by_onednn():
        with by_onednn():
            assert takes()
        assert takes()
    assert not takes()
    with pytest.raises(ZeroDivisionError), by_onednn():
        raise ZeroDivisionError
    assert not takes()


def test_another_thread_may_multiply_while_contexts_end(taken):
    is_over, wrong = threading.Event(), []
    square = torch.randn(8, 8)
    expected = square.double() @ square.double()

    def multiply():
        try:
            while not is_over.is_set():
                torch.testing.assert_close((square @ square).double(), expected, rtol=0, atol=1e-4)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3000):
        with by_onednn():
            square @ square
    is_over.set()
    for thread in threads:
        thread.join(30)
    assert not wrong


def test_a_total_is_added_to_a_few_numbers_at_a_time(taken, monkeypatch):
    total, one, other = torch.randn(50, 9), torch.randn(20, 50).T, torch.randn(20, 9)
    expected = total.double() + 0.5 * one.double() @ other.double()
    monkeypatch.setattr(products, "AT_ONCE", 90)
    with by_onednn():
        total.addmm_(one, other, alpha=0.5)
    assert len(taken) == 5 and all(len(rows) * 9 <= 90 for rows, *_ in taken)
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)


OVERLAPS = {
    "itself first": lambda a, b: a.addmm_(a, b),
    "itself second": lambda a, b: a.addmm_(b, a),
    "itself twice": lambda a, b: a.addmm_(a, a),
    "itself transposed": lambda a, b: a.addmm_(b, a.T),
    "a part of itself": lambda a, b: a[:8].addmm_(b[:8, :8], a[4:12]),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_a_total_may_be_one_of_its_factors(taken, monkeypatch, case):
    monkeypatch.setattr(products, "AT_ONCE", 40)
    one, other = torch.randn(20, 20), torch.randn(20, 20)
    expected, got = one.clone(), one.clone()
    OVERLAPS[case](expected, other)
    with by_onednn():
        OVERLAPS[case](got, other)
    torch.testing.assert_close(got, expected)


def test_an_alpha_of_nought_reads_no_product(taken):
    to, one, other = torch.randn(5), torch.full((4, 3), torch.inf), torch.randn(3, 5)
    with by_onednn():
        assert torch.equal(torch.addmm(to, one, other, alpha=0), to.expand(4, 5))


def test_contexts_of_several_threads_do_not_end_each_other(taken):
    entered, left = threading.Event(), threading.Event()
    found = []

    def other():
        with by_onednn():
            entered.set()
            left.wait(30)
            torch.ones(3, 3) @ torch.ones(3, 3)
            found.append(len(taken))

    thread = threading.Thread(target=other)
    with by_onednn():
        thread.start()
        assert entered.wait(30)
    left.set()
    thread.join(30)
    assert found == [1]
    torch.ones(3, 3) @ torch.ones(3, 3)
    assert len(taken) == 1


SIZES = {
    "large": ((256, 128), (128, 128), True),
    "a little smaller": ((255, 128), (128, 128), False),
    "few columns": ((4096, 512), (512, 7), False),
    "few columns, copied": ((512, 4096), (512, 60), False),
    "columns, copied": ((512, 4096), (512, 64), True),
    "few terms": ((4096, 31), (31, 4096), False),
}


@pytest.mark.parametrize("case", SIZES)
def test_products_that_gain_are_taken_and_no_others(as_it_is, case):
    first, second, is_gain = SIZES[case]
    one, other = torch.randn(first), torch.randn(second)
    one = one.T if "copied" in case else one
    expected = one @ other
    with by_onednn():
        got = one @ other
    assert bool(as_it_is) == is_gain
    assert is_gain or torch.equal(got, expected)


PROCESSORS = {
    "Zen 5": ("AVX512", {"vendor_id": "AuthenticAMD", "cpu family": "26"}, True),
    "a later one": ("AVX512", {"vendor_id": "AuthenticAMD", "cpu family": "27"}, True),
    "Zen 4": ("AVX512", {"vendor_id": "AuthenticAMD", "cpu family": "25"}, False),
    "Zen 5 without AVX-512": ("AVX2", {"vendor_id": "AuthenticAMD", "cpu family": "26"}, False),
    "Intel's": ("AVX512", {"vendor_id": "GenuineIntel", "cpu family": "26"}, False),
    "one of which nothing is told": ("AVX512", {}, False),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_that_gain(monkeypatch, name):
    capability, told, is_faster = PROCESSORS[name]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(products, "_processor", lambda: told)
    assert products.is_faster.__wrapped__() == is_faster
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not products.is_faster.__wrapped__()


def test_onednn_switched_off_is_off(taken):
    with torch.backends.mkldnn.flags(enabled=False), by_onednn():
        torch.ones(3, 3) @ torch.ones(3, 3)
    assert not taken


class Texts(nn.Module):
    """Two layers over positions, whose mean is classified."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 3))

    def forward(self, x):
        return self.layers(x).mean(1)


def test_a_private_step_goes_through_it_with_the_same_gradients(taken, monkeypatch):
    torch.manual_seed(0)
    x, y, model = torch.randn(6, 5, 12), torch.arange(6) % 3, Texts()
    here = step(model, DPSGD("all", "layers.2"), x, y, clip_norm=0.1).gradients
    assert taken
    monkeypatch.setattr(products, "is_faster", lambda: False)
    del taken[:]
    there = step(model, DPSGD("all", "layers.2"), x, y, clip_norm=0.1).gradients
    assert not taken
    for name, gradient in there.items():
        torch.testing.assert_close(here[name], gradient, rtol=1e-4, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 6), st.floats(-3, 3), st.integers(1, 60), st.integers(0, 2**31))
def test_an_example_moves_the_sums_by_at_most_the_clip_norm(log_scale, log_clip, positions, seed):
    gen = torch.Generator().manual_seed(seed)
    x, clip_norm = 10**log_scale * torch.randn(1, positions, 12, generator=gen), 10**log_clip
    torch.manual_seed(seed % 100)
    patch = everywhere()
    try:
        sums, _ = sums_of(Texts(), DPSGD("all", "layers.2"), x, torch.tensor([1]), clip_norm, 1)
    finally:
        patch.undo()
    assert float(torch.linalg.vector_norm(flat(sums).double())) <= clip_norm * (1 + 1e-7)


def test_all_that_takes_a_private_step_goes_through_it(taken):
    torch.manual_seed(0)
    x, y, model = torch.randn(6, 5, 12), torch.arange(6) % 3, Texts()
    examples = Examples(x, y)
    method = DPSGD("all", "layers.2")
    state = method.start(model)
    mechanism = whole_batch(6, method.releases(state, 1.0), noise_multiplier=1.0)
    ranks = Ranks(0, 1, torch.device("cpu"))
    with PrivateGradient(model, method, mechanism, ranks, 6) as gradient:
        rehearse = gradient.rehearsal(state, examples)
        calls = {
            "a step": lambda: gradient(state, examples, 0),
            "a rehearsal": lambda: rehearse(torch.arange(6)),
            "a step without noise": lambda: gradient.without_noise(
                state, examples, torch.arange(6), 0, is_clipping=True
            ),
            "an evaluation": lambda: evaluate(model, examples, ranks.device),
        }
        for name, call in calls.items():
            del taken[:]
            call()
            assert taken, name
    del taken[:]
    model(x)
    assert not taken


def test_teachers_and_warm_starts_go_through_it(taken):
    torch.manual_seed(0)
    model = Texts()
    batch = Batch(torch.randn(6, 5, 12), torch.arange(6) % 3)
    descend(model, torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy, batch)
    assert taken
    del taken[:]
    predict(model, batch.inputs)
    assert taken
    del taken[:]
    task = SimpleNamespace(
        public=Examples(batch.inputs, batch.targets), loss=F.cross_entropy, name="texts"
    )
    sizes = {"examples": 6, "batch_size": 3, "lr": 0.1, "head_lr": 0.1}
    fit(model, task, name="public", **sizes, head="layers.2")
    assert taken
