"""Clipping, summing and noise: bounds for every input, and the right distribution."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm, truncnorm

from dpexp.grad_sample.linear import LinearWeight
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from dpexp.privacy.noise import FAR, GRAIN, NOISE_AT_ONCE, add_noise_, with_tails_
from dpexp.privacy.privatize import FLAT, NARROW, ClippedSum, clip_coordinates
from dpexp.types import Key, Release
from tests.marks import some_long

A, B = Key("gradient", "a"), Key("gradient", "b")
RELEASES = (Release("gradient", 7, 2.0),)


SHAPES = {A: (3,), B: (2, 2)}
LIKE = torch.empty(0, dtype=torch.float64)


def clipped_sum(a, b, releases=RELEASES, **options):
    sums = ClippedSum(SHAPES, releases, LIKE, **options)
    sums.take({A: MaterializedGrads(a), B: MaterializedGrads(b)})
    sums.close_micro_batch(len(a))
    return sums


def flat(sums):
    return torch.cat([sums[A].flatten(), sums[B].flatten()])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**31), st.floats(-8, 8))
def test_adding_one_example_moves_the_sum_by_at_most_the_clip_norm(n, seed, log_scale):
    gen = torch.Generator().manual_seed(seed)
    a = torch.randn(n + 1, 3, generator=gen, dtype=torch.float64)
    b = torch.randn(n + 1, 2, 2, generator=gen, dtype=torch.float64)
    a[-1] *= 10.0**log_scale
    without, full = clipped_sum(a[:n], b[:n]), clipped_sum(a, b)
    moved = torch.linalg.vector_norm(flat(full.sums) - flat(without.sums))
    assert moved <= 2.0 * (1 + 1e-12)
    own = torch.linalg.vector_norm(torch.cat([a[-1], b[-1].flatten()]))
    torch.testing.assert_close(moved, own.clamp(max=2.0))


def test_what_is_not_finite_leaves_out_no_other_example_that_float64_sums():
    """Both are taken apart from the rest, where norms in float32 say nothing."""
    values = torch.tensor([[math.nan, 0, 0], [0, 1e30, 0], [0, 0, 1e25], [0.5, 0, 0]])
    sums = ClippedSum({A: (3,)}, RELEASES, torch.empty(0))
    sums.take({A: MaterializedGrads(values)})
    sums.close_micro_batch(4)
    # Their norms leave room for what the others' sum, here in float32, is rounded by.
    expected = torch.tensor([0.5, *[2.0 / (1 + 2**-10)] * 2], dtype=torch.float64)
    torch.testing.assert_close(sums.sums[A], expected, rtol=1e-6, atol=0)
    assert (sums.counts.nonfinite, sums.counts.clipped) == (1, 2)


@pytest.mark.parametrize(
    "micro_batch", some_long([1, 5, 100, 128, 129, 300], [5, 100, 128, 129, 300])
)
def test_sums_over_many_micro_batches_lose_what_a_few_hundred_examples_lose(micro_batch):
    """All push the same way, which float32 alone would lose far more of over so many."""
    num, value = 5_000, 0.1
    sums = ClippedSum(SHAPES, RELEASES, torch.empty(0), micro_batch=micro_batch)
    some = torch.full((micro_batch, 3), value), torch.zeros(micro_batch, 2, 2)
    taken = 0
    while taken < num:
        sums.take({A: MaterializedGrads(some[0]), B: MaterializedGrads(some[1])})
        sums.close_micro_batch(micro_batch)
        taken += micro_batch
        if taken == micro_batch * 7:  # looking at them on the way changes nothing
            assert sums.sums[A].double() == pytest.approx(taken * 0.1, rel=1e-4)
    lost = (sums.sums[A].double() - taken * float(torch.tensor(value))).abs().max()
    gathers = taken / (NARROW // micro_batch * micro_batch or micro_batch)
    most = gathers * 2.0**-24 * value * NARROW**2 / 2 + 2.0**-23 * value * taken
    assert lost <= most
    assert sums.sums[A].dtype == torch.float64 and sums.counts.examples == taken


def test_more_examples_at_once_than_float32_adds_up_closely_are_summed_in_float64():
    """Beside 2^30, float32 loses the 64 of each product."""
    values = torch.cat([torch.full((1, 1), 2.0**30), torch.zeros(63, 1), torch.ones(NARROW, 1)])
    sums = ClippedSum({A: (1,)}, (Release("gradient", 1, 2.0**40),), torch.empty(0))
    sums.take({A: MaterializedGrads(values)})
    sums.close_micro_batch(len(values))
    assert float(sums.sums[A]) == 2**30 + NARROW


@pytest.mark.parametrize(("other", "of_terms"), [(-0.8, 2.0**-10), (-0.999, 2.0**-24)])
def test_the_room_for_rounding_is_a_share_of_the_terms_and_not_of_what_they_leave(other, of_terms):
    """Rounding is of either position. Where they cancel to a thousandth, it is float64's."""
    h = torch.tensor([[[1.0, 0, 0, 0], [other, 0, 0, 0]]])
    grads = FactoredGrads(LinearWeight(), torch.full((1, 2, 4), 5e3), h)
    sums = ClippedSum({A: (4, 4)}, RELEASES, torch.empty(0))
    sums.take({A: grads})
    sums.close_micro_batch(1)
    left, terms = 1e4 * (1 + float(h[0, 1, 0])), 1e4 * (1 - float(h[0, 1, 0]))
    if other == -0.8:
        bound = float(grads.norms_squared().sqrt()) + of_terms * terms
    else:
        bound = left * (1 + 2.0**-10) + of_terms * terms
    assert float(sums.sums[A].norm()) == pytest.approx(left * 2 / bound, rel=2e-5)


@pytest.mark.parametrize("clip_norm", [2e-26, 1e-27, 0.9e-27, 1e-35])
def test_a_weight_below_float32s_least_normal_number_still_clips(clip_norm):
    sums = ClippedSum({A: (3,)}, (Release("gradient", 3, clip_norm),), torch.empty(0))
    sums.take({A: MaterializedGrads(torch.tensor([[1e18, 0, 0]]))})
    sums.close_micro_batch(1)
    assert 0.99 * clip_norm <= float(sums.sums[A].norm()) <= clip_norm


def test_a_coordinate_is_clipped_at_the_bound_and_not_at_the_next_float32():
    assert float(torch.tensor(0.1)) > 0.1
    _, clipped = clip_coordinates(torch.tensor([[5.0, -5.0, 0.05]]), 0.1)
    expected = [0.1, -0.1, float(torch.tensor(0.05))]
    assert clipped.values.dtype == torch.float64 and clipped.values.tolist() == [expected]


def test_an_example_that_float32_cannot_measure_widens_what_was_gathered():
    sums = ClippedSum(SHAPES, RELEASES, torch.empty(0), micro_batch=2)
    expected = torch.zeros(3, dtype=torch.float64)
    for a in ([[0.1, 0, 0], [0.2, 0, 0]], [[0, 1e30, 0], [0, 0, 0.3]], [[0, 0, 0.7], [0, 0.4, 0]]):
        values = torch.tensor(a)
        sums.take({A: MaterializedGrads(values), B: MaterializedGrads(torch.zeros(2, 2, 2))})
        sums.close_micro_batch(2)
        norms = torch.linalg.vector_norm(values.double(), dim=1, keepdim=True)
        expected += (values.double() * (2 / norms).clamp(max=1)).sum(0)
    torch.testing.assert_close(sums.sums[A], expected, rtol=2e-3, atol=0)


def test_clipping_is_joint_over_the_blocks_of_a_release():
    a = torch.tensor([[3.0, 0, 0]], dtype=torch.float64)
    b = torch.tensor([[[4.0, 0], [0, 0]]], dtype=torch.float64)
    sums = clipped_sum(a, b).sums  # norm 5, clipped to 2
    torch.testing.assert_close(sums[A][0], torch.tensor(1.2, dtype=torch.float64))
    torch.testing.assert_close(sums[B][0, 0], torch.tensor(1.6, dtype=torch.float64))


def test_releases_are_clipped_apart():
    apart = Key("residual", "b")
    sums = ClippedSum(
        {A: (3,), apart: (2,)},
        (Release("gradient", 3, 2.0), Release("residual", 2, 1.0)),
        torch.empty(0),
    )
    sums.take(
        {
            A: MaterializedGrads(torch.tensor([[10.0, 0, 0]])),
            apart: MaterializedGrads(torch.tensor([[0, 10.0]])),
        }
    )
    sums.close_micro_batch(1)
    # Up to what float32's weights leave to rounding: 2^-10.
    assert 2.0 * (1 - 2**-9) < sums.sums[A].norm() <= 2.0
    assert 1 - 2**-9 < sums.sums[apart].norm() <= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_example_that_is_not_finite_contributes_zero_and_is_counted(bad):
    a = torch.randn(4, 3, dtype=torch.float64)
    b = torch.randn(4, 2, 2, dtype=torch.float64)
    expected = clipped_sum(a[[0, 2, 3]], b[[0, 2, 3]])
    a[1, 0] = bad
    got = clipped_sum(a, b)
    torch.testing.assert_close(flat(got.sums), flat(expected.sums))
    assert got.counts.nonfinite == 1
    assert got.counts.examples == 4


def test_an_input_that_is_not_finite_stays_out_of_the_other_examples_gradient():
    x, dh = torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(3, 2, 5, dtype=torch.float64)
    x[1] = math.nan
    key = Key("gradient", "weight")
    sums = ClippedSum({key: (5, 4)}, RELEASES, LIKE)
    sums.take({key: FactoredGrads(LinearWeight(), x, dh)})
    sums.close_micro_batch(3)
    assert sums.sums[key].isfinite().all()
    assert sums.counts.nonfinite == 1


def test_a_batch_of_nothing_but_nan_gives_zero():
    a = torch.full((2, 3), math.nan, dtype=torch.float64)
    got = clipped_sum(a, torch.zeros(2, 2, 2, dtype=torch.float64))
    assert flat(got.sums).abs().sum() == 0
    assert got.counts.nonfinite == 2


def test_zero_gradients_are_left_alone():
    assert FLAT.weights(torch.zeros(2), 1.0).tolist() == [1.0, 1.0]


def test_without_clipping_the_plain_sum_is_given_and_nothing_is_counted():
    a = 100 * torch.randn(4, 3, dtype=torch.float64)
    b = torch.randn(4, 2, 2, dtype=torch.float64)
    got = clipped_sum(a, b, is_clipping=False)
    torch.testing.assert_close(got.sums[A], a.sum(0))
    assert got.counts.clipped == 0


def noise_of(multiplier, releases, sizes, seed=0):
    gen = torch.Generator().manual_seed(seed)
    sums = {key: torch.full((size,), 5.0) for key, size in sizes.items()}
    add_noise_(sums, releases, multiplier, gen)
    return {key: (sums[key] - 5.0).numpy() for key in sizes}


def test_every_coordinate_gets_noise_of_the_declared_scale():
    residual = Key("residual", "b")
    releases = (Release("gradient", 4000, 2.0), Release("residual", 4000, 0.5))
    drawn = noise_of(1.5, releases, {A: 4000, residual: 4000})
    for values, scale in ((drawn[A], 3.0), (drawn[residual], 0.75)):
        assert kstest(values / scale, "norm").pvalue > 1e-3
        for wrong in (0.8, 1.25):  # the test itself must be able to tell
            assert kstest(values / (wrong * scale), "norm").pvalue < 1e-6
    assert abs(np.corrcoef(drawn[A], drawn[residual])[0, 1]) < 0.06


def test_no_coordinate_is_left_without_noise():
    drawn = noise_of(1.0, RELEASES, {A: 1000, B: 1000})
    assert (drawn[A] != 0).all()
    assert (drawn[B] != 0).all()


# By coordinates, and Laplace noise

BOXED = (Release("gradient", 7, 2.0, 14.0, "laplace", "coordinates"),)


@given(st.integers(1, 6), st.integers(0, 2**31), st.floats(-8, 8))
def test_by_coordinates_one_example_moves_each_by_at_most_the_bound(n, seed, log_scale):
    gen = torch.Generator().manual_seed(seed)
    a = torch.randn(n + 1, 3, generator=gen, dtype=torch.float64)
    b = torch.randn(n + 1, 2, 2, generator=gen, dtype=torch.float64)
    b[-1] *= 10.0**log_scale
    without, full = clipped_sum(a[:n], b[:n], BOXED), clipped_sum(a, b, BOXED)
    moved = flat(full.sums) - flat(without.sums)
    own = torch.cat([a[-1], b[-1].flatten()])
    torch.testing.assert_close(moved, own.clamp(-2, 2))
    above = torch.cat([a, b.flatten(1)], dim=1).abs().amax(1) > 2
    assert full.counts.clipped == int(above.sum())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_by_coordinates_an_example_that_is_not_finite_contributes_zero_and_is_counted(bad):
    a = torch.randn(4, 3, dtype=torch.float64)
    b = torch.randn(4, 2, 2, dtype=torch.float64)
    expected = clipped_sum(a[[0, 2, 3]], b[[0, 2, 3]], BOXED)
    a[1, 0] = bad
    got = clipped_sum(a, b, BOXED)
    torch.testing.assert_close(flat(got.sums), flat(expected.sums))
    assert (got.counts.nonfinite, got.counts.examples) == (1, 4)


def test_releases_may_be_clipped_in_different_ways():
    apart = Key("boxed", "b")
    sums = ClippedSum(
        {A: (3,), apart: (2,)},
        (Release("gradient", 3, 2.0), Release("boxed", 2, 1.0, clip="coordinates")),
        torch.empty(0),
    )
    sums.take(
        {
            A: MaterializedGrads(torch.tensor([[10.0, 0, 0]])),
            apart: MaterializedGrads(torch.tensor([[-9.0, 0.5]])),
        }
    )
    sums.close_micro_batch(1)
    assert 2.0 * (1 - 2**-9) < sums.sums[A].norm() <= 2.0
    assert sums.sums[apart].tolist() == [-1.0, 0.5]


def test_every_coordinate_gets_laplace_noise_of_the_declared_scale():
    releases = (Release("gradient", 20_000, 2.0, 1.0, "laplace"),)
    drawn = noise_of(1.5, releases, {A: 20_000})[A] / 3.0
    assert (drawn != 0).all()
    assert kstest(drawn, "laplace").pvalue > 1e-3
    for wrong in (0.8, 1.25):
        assert kstest(drawn / wrong, "laplace").pvalue < 1e-6
    assert kstest(drawn / drawn.std(), "norm").pvalue < 1e-6
    other = noise_of(1.5, releases, {A: 20_000}, seed=1)[A] / 3.0
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.03


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


SIZE = 2 * NOISE_AT_ONCE["cpu"] + 2000  # of a block that is drawn in three pieces


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_blocks_drawn_in_pieces_have_fresh_noise_in_each_and_none_without(device):
    piece = NOISE_AT_ONCE["cpu" if device == "cpu" else "gpu"]
    size = 2 * piece + 2000
    sums = {key: torch.zeros(size, device=device) for key in (A, B)}
    gen = torch.Generator(device).manual_seed(0)
    add_noise_(sums, (Release("gradient", size, 2.0),), 1.5, gen)
    drawn = torch.cat([*sums.values()]).cpu().numpy() / 3.0
    starts = [block + at for block in (0, size) for at in (0, piece, 2 * piece)]
    pieces = np.corrcoef([drawn[start : start + 2000] for start in starts])
    assert abs(pieces - np.eye(6)).max() < 0.1
    within = np.corrcoef(drawn[:2000], drawn[GRAIN : GRAIN + 2000])[0, 1]  # two grains of a piece
    assert abs(within) < 0.1
    assert (drawn != 0).all() and kstest(drawn, "norm").pvalue > 1e-3


def test_noise_drawn_side_by_side_is_the_same_on_any_number_of_threads():
    releases, sizes = (Release("gradient", SIZE + 500, 2.0),), {A: SIZE, B: 500}
    several = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = noise_of(1.5, releases, sizes)
        torch.set_num_threads(4)
        assert all((noise_of(1.5, releases, sizes)[key] == alone[key]).all() for key in sizes)
    finally:
        torch.set_num_threads(several)


def test_an_error_on_a_thread_that_draws_noise_is_raised():
    whole = {A: torch.zeros(SIZE, dtype=torch.int64)}  # of which there is no normal noise
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        add_noise_(whole, (Release("gradient", SIZE, 1.0),), 1.0, torch.Generator())


@pytest.mark.parametrize("size", [10, SIZE])
def test_a_sum_of_any_size_may_want_a_gradient(size):
    """Where gradients are off, they must be off on every thread."""
    total = torch.zeros(size, requires_grad=True)
    with torch.no_grad():
        gen = torch.Generator().manual_seed(0)
        add_noise_({A: total}, (Release("gradient", size, 1.0),), 1.0, gen)
    assert bool((total != 0).all())


def test_a_sum_that_is_no_one_piece_of_memory_is_refused_rather_than_left_without_noise():
    sums = {A: torch.zeros(3, 2).T}
    with pytest.raises(RuntimeError, match="view"):
        add_noise_(sums, (Release("gradient", 6, 1.0),), 1.0, torch.Generator())


def test_laplace_noise_is_as_frequent_beyond_nine_scales_as_it_should():
    gen = torch.Generator().manual_seed(0)
    zero = {A: torch.zeros(2_000_000)}
    add_noise_(zero, (Release("gradient", 1, 1.0, 1.0, "laplace"),), 1.0, gen)
    drawn = zero[A].abs()
    expected = 2_000_000 * math.exp(-9)
    assert abs(int((drawn > 9).sum()) - expected) < 5 * math.sqrt(expected)


def test_normal_noise_far_out_is_drawn_again_and_the_rest_is_left():
    gen = torch.Generator().manual_seed(1)
    plain = torch.randn(4_000_000, generator=gen)
    noise = with_tails_(plain.clone(), gen)
    moved = noise != plain
    assert moved.any() and torch.equal(moved, plain.abs() >= FAR)
    assert bool((noise[moved] * plain[moved].sign() >= FAR).all())


def test_noise_drawn_again_has_the_normal_laws_tail_and_no_early_end():
    side = torch.tensor([1.0, -1.0]).repeat(500_000)
    tail = with_tails_(FAR * side, torch.Generator().manual_seed(2)).double() * side
    assert kstest(tail.numpy(), truncnorm(FAR, np.inf).cdf).pvalue > 1e-3
    assert tail.max() > 7  # 4 in a million lie beyond 7; float32 alone ends at 5.77


def test_noise_keeps_the_normal_law_where_its_tails_meet_the_rest():
    gen = torch.Generator().manual_seed(3)
    noise = torch.randn(200_000, generator=gen, dtype=torch.float64)
    assert kstest(with_tails_(noise, gen, far=1.0).numpy(), norm.cdf).pvalue > 1e-3
