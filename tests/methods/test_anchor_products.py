"""GEP on plain linear layers, whose gradients and basis are not formed: the same algorithm."""

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.methods import anchor_products
from dpexp.methods.gep import GEP
from dpexp.privacy import whole_batch
from dpexp.privacy.seeds import generator
from dpexp.training import checkpoint
from dpexp.training.gradient import PrivateGradient
from dpexp.types import GROUP, Key
from tests.methods.test_gep import CLOSE, CPU, Spy, algorithm_1, rows

NUM, PUBLIC, CLASSES, WIDTH, K = 7, 6, 4, 40, 4
CLIP, RESIDUAL_CLIP = 0.05, 0.02


class Layers(nn.Module):
    """Two linear layers on vectors, or on a bag of them."""

    def __init__(self, is_bag=False):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(WIDTH, 12, bias=False), nn.Linear(12, CLASSES)
        self.is_bag = is_bag
        self.double()

    def forward(self, x):
        x = x.unflatten(1, (2, WIDTH)) if self.is_bag else x
        hidden = torch.tanh(self.hidden(x))
        return self.head(hidden.sum(1) if self.is_bag else hidden)


def vectors(num, seed, width=WIDTH):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(num, width, generator=gen, dtype=torch.float64)
    return Examples(x, torch.randint(CLASSES, (num,), generator=gen))


def gep(**options):
    defaults = {"m": PUBLIC, "k": K, "groups": "all", "power_iterations": 1, "basis": "anchor"}
    more = {"public_labels": "random", "residual": True, "residual_clip": RESIDUAL_CLIP}
    return GEP(**defaults | more | {"head": "head"} | options)


def step(model, method, private, public, *, micro_batch=3, clip_norm=CLIP, state=None, number=0):
    state = method.start(model) if state is None else state
    mechanism = whole_batch(len(private), method.releases(state, clip_norm))
    ranks = Ranks(0, 1, CPU)
    with PrivateGradient(model, method, mechanism, ranks, micro_batch, public) as gradient:
        return gradient(state, private, number)


@pytest.mark.parametrize("residual", [True, False], ids=["gep", "bgep"])
@pytest.mark.parametrize(
    "options",
    [{}, {"power_iterations": 3}, {"groups": "layers"}, {"public_labels": "true"}],
    ids=str,
)
def test_a_step_is_algorithm_1_without_forming_a_gradient(options, residual):
    model, private, public = Layers(), vectors(NUM, 1), vectors(PUBLIC, 2)
    method = Spy(gep(**options, residual=residual))
    got = step(model, method, private, public)
    groups, shares = (method.prepared[key] for key in ("groups", "shares"))
    assert method.prepared["anchors"].keys() == groups.keys() and not method.prepared["bases"]

    gen = generator(0, "method", 0)
    if "public_labels" not in options:
        public = Examples(public.inputs, torch.randint(CLASSES, (PUBLIC,), generator=gen))
    anchors = {group: rows(model, public, names) for group, names in groups.items()}
    start = {}
    for group in groups:  # B with G B^T = F Z, where F F^T = G G^T
        drawn = torch.randn(PUBLIC, shares[group], generator=gen, dtype=torch.float64)
        root = torch.linalg.cholesky(anchors[group] @ anchors[group].T)
        start[group] = drawn.T @ torch.linalg.solve(root, anchors[group])
    inside, left = algorithm_1(
        anchors,
        {group: rows(model, private, names) for group, names in groups.items()},
        start,
        CLIP,
        RESIDUAL_CLIP,
        options.get("power_iterations", 1),
    )
    assert got.clipped > 0
    for group, names in groups.items():
        expected = inside[group] + left[group] if residual else inside[group]
        flat = torch.cat([got.gradients[name].flatten() for name in names])
        torch.testing.assert_close(flat, expected, **CLOSE)


def test_layers_that_read_sequences_and_small_ones_are_formed():
    for model, options, width in ((Layers(True), {}, 2 * WIDTH), (Layers(), {"k": 1}, WIDTH)):
        method = Spy(gep(**options))
        step(model, method, vectors(NUM, 1, width), vectors(PUBLIC, 2, width))
        assert method.prepared["anchors"] == {} and method.prepared["bases"]


def test_private_gradients_that_are_no_products_are_projected_on_the_same_basis():
    model = Layers()
    state = gep().start(model)
    method = Spy(gep())
    step(model, method, vectors(NUM, 1), vectors(PUBLIC, 2))
    anchors = method.prepared["anchors"]["all"]
    gen = torch.Generator().manual_seed(3)
    pairs = {
        name: tuple(torch.randn(NUM, side, generator=gen, dtype=torch.float64) for side in sides)
        for name, sides in {"hidden.weight": (WIDTH, 12), "head.weight": (12, CLASSES)}.items()
    } | {"head.bias": (torch.ones(NUM, 1).double(), torch.randn(NUM, CLASSES).double())}
    formed = {name: torch.einsum("np,nd->npd", h, x).flatten(1) for name, (x, h) in pairs.items()}
    one, of_pairs = anchor_products.projected(anchors, pairs, state["shapes"])
    other, of_formed = anchor_products.projected(anchors, formed, state["shapes"])
    torch.testing.assert_close(one, other, **CLOSE)
    for name, shape in state["shapes"].items():
        expected = of_formed[name].materialize()
        torch.testing.assert_close(of_pairs[name].materialize().view(-1, *shape), expected, **CLOSE)
        mask = torch.arange(NUM) % 2 == 0
        total = torch.zeros(shape).double()
        of_pairs[name].select(mask).double().add_to(total, None)
        torch.testing.assert_close(total, expected[mask].sum(0), **CLOSE)


def test_public_examples_that_repeat_or_say_nothing_leave_their_span_alone_or_none():
    model, private = Layers(), vectors(NUM, 1)
    twice = vectors(PUBLIC, 2)
    twice = Examples(twice.inputs[[0, 0, 1, 1, 0, 1]], twice.targets[[0, 0, 1, 1, 0, 1]])
    method = Spy(gep(public_labels="true", residual=False))
    got = step(model, method, private, twice, clip_norm=1e3)
    each = rows(model, twice, method.prepared["groups"]["all"])[[0, 2]]
    basis = torch.linalg.qr(each.T).Q
    mean = rows(model, private, method.prepared["groups"]["all"]).mean(0)
    flat = torch.cat([gradient.flatten() for gradient in got.gradients.values()])
    torch.testing.assert_close(flat, basis @ (basis.T @ mean), rtol=1e-6, atol=1e-9)
    nothing = Examples(torch.full((PUBLIC, WIDTH), float("nan")).double(), twice.targets)
    assert step(model, gep(), private, nothing).nonfinite == NUM


def exact_norm(total):
    """The norm of a tensor of floats, squared, without rounding."""
    return sum(Fraction(float(number)) ** 2 for number in total.flatten())


def made(seed, alike, log_scale, dtype):
    """Anchors that are alike up to a share, and two examples that nearly are anchors."""
    gen = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=gen, dtype=torch.float64)  # noqa: E731
    x, h = draw(1, 12) + 10**alike * draw(5, 12), draw(1, 3) + 10**alike * draw(5, 3)
    x, h = (x * 10**log_scale).to(dtype), h.to(dtype)
    pair = x.double(), h.double()
    held = {"inputs": {"w": pair[0]}, "outputs": {"w": pair[1]}}
    held["grams"] = {"w": anchor_products.products(pair, pair)}
    anchors = anchor_products.with_basis(held, 3, 1, gen)
    private = x[:2] + 10**alike * draw(2, 12).to(dtype), h[:2].clone()
    return anchors, private


@settings(max_examples=80, deadline=None)
@example(seed=0, alike=-7.0, log_scale=0.0, dtype=torch.float32, is_widened=True)
@example(seed=1, alike=-16.0, log_scale=12.0, dtype=torch.float64, is_widened=False)
@given(
    seed=st.integers(0, 2**31),
    alike=st.floats(-16, 1),
    log_scale=st.floats(-15, 15),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    is_widened=st.booleans(),
)
def test_a_residual_is_never_longer_than_its_bound_whatever_cancels(
    seed, alike, log_scale, dtype, is_widened
):
    anchors, private = made(seed, alike, log_scale, dtype)
    _, residuals = anchor_products.projected(anchors, {"w": private}, {"w": (3, 12)})
    grads = residuals["w"].double() if is_widened else residuals["w"]
    bounds, held = grads.measured()
    for index in range(2):
        mask = torch.arange(2) == index
        total = torch.zeros(3, 12, dtype=torch.float64 if is_widened else dtype)
        held.select(mask).add_to(total, None)
        bound, floor = (Fraction(float(each[index])) for each in (bounds.squares, bounds.floor))
        room = Fraction(1 + 2**-20) ** 2  # of rounding in the total's precision, as weights leave
        assert exact_norm(total) <= (bound * room) + 3 * floor * floor
        length = float(private[0][index].double().norm() * private[1][index].double().norm())
        if alike > -3:
            assert float(bound) <= float(exact_norm(total)) + 1e-5 * length**2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    log_scale=st.floats(-6, 15),
    log_clip=st.floats(-3, 3),
    options=st.sampled_from([{}, {"residual": False}, {"power_iterations": 2}]),
)
def test_in_float32_one_example_adds_no_more_than_its_clip_norms(
    seed, log_scale, log_clip, options
):
    model, public = Layers().float(), vectors(PUBLIC, seed)
    public = Examples(public.inputs.float(), public.targets)
    near = public.inputs[:1] * (1 + 10**-4 * torch.randn(1, WIDTH)) * 10**log_scale
    private = Examples(near, public.targets[:1])
    method = Spy(gep(**options, residual_clip=10 ** (log_clip / 2), public_labels="true"))
    step(model, method, private, public, clip_norm=10**log_clip)
    assert method.prepared["anchors"]
    for release in method.releases(method.prepared, 10**log_clip):
        own = [exact_norm(t) for key, t in method.noisy.items() if key.release == release.name]
        assert sum(own) <= Fraction(release.clip_norm) ** 2


def test_a_checkpoint_of_every_step_holds_no_anchor_and_one_of_some_steps_goes_on(tmp_path):
    model, private, public = Layers(), vectors(NUM, 1), vectors(PUBLIC, 2)
    state = step(model, gep(), private, public).state
    assert state.keys() == {"shapes", "groups", "shares"}
    method, state, seen = gep(every=3), None, []
    for number in range(5):
        spy = Spy(method)
        outcome = step(model, spy, private, public, state=state, number=number)
        seen.append(spy.prepared["anchors"]["all"]["coefficients"])
        checkpoint.save(tmp_path / "state.pt", outcome.state)
        state = checkpoint.load(tmp_path / "state.pt")
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[3], seen[4])
    assert not torch.allclose(seen[2], seen[3])
    assert Key("embedding", "all", GROUP) in method.release_shapes(state)
