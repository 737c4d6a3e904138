"""The accountant against an independent one, and the calibration against its promise."""

import contextlib
import json
import math
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis import prv
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

from dpexp.privacy import accounting, rdp
from dpexp.privacy.accounting import (
    TOLERANCE,
    PRVFailed,
    _half_width,
    _least,
    calibrate,
    prv_epsilon,
)
from dpexp.privacy.pld import Part, gaussian_epsilon
from dpexp.privacy.rdp import ORDERS, rdp_epsilon
from dpexp.types import ConfigError

# What: (examples, expected batch, steps, delta, epsilon), as the papers train.
PAPERS = {
    "lsg-sst2-3.3": (67_349, 2000, 674, 1e-5, 3.3),
    "lsg-sst2-1.2": (67_349, 2000, 674, 1e-5, 1.2),
    "rgp-cifar10-2": (50_000, 1000, 10_000, 1e-5, 2.0),
    "rgp-cifar10-4": (50_000, 1000, 10_000, 1e-5, 4.0),
    "rgp-cifar10-6": (50_000, 1000, 10_000, 1e-5, 6.0),
    "rgp-cifar10-8": (50_000, 1000, 10_000, 1e-5, 8.0),
    "rgp-svhn-2": (73_257, 1000, 14_652, 1e-6, 2.0),
    "rgp-svhn-8": (73_257, 1000, 14_652, 1e-6, 8.0),
    "digits": (1437, 64, 225, 1e-4, 8.0),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What was found before is found again, for once."""
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    calibrate.cache_clear()
    return tmp_path / "cache" / "multipliers"


def pld_epsilon(q, sigma, steps, delta):
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, use_connect_dots=True, value_discretization_interval=3e-4
    )
    return loss.self_compose(steps).get_epsilon_for_delta(delta)


@pytest.mark.parametrize("setting", PAPERS.values(), ids=PAPERS)
def test_calibration_agrees_with_privacy_loss_distributions(setting):
    size, batch, steps, delta, target = setting
    sigma, accountant = calibrate(batch / size, steps, delta, target)
    assert accountant == "prv"
    epsilon = pld_epsilon(batch / size, sigma, steps, delta)
    assert target * 0.99 <= epsilon <= target


@pytest.mark.parametrize("setting", PAPERS.values(), ids=PAPERS)
def test_calibrated_epsilon_is_just_below_its_target(setting):
    size, batch, steps, delta, target = setting
    sigma, _ = calibrate(batch / size, steps, delta, target)
    epsilon = prv_epsilon(batch / size, sigma, steps, delta, steps)
    assert target * (1 - TOLERANCE) <= epsilon <= target
    assert epsilon < rdp_epsilon(batch / size, sigma, steps, delta) < 1.3 * epsilon


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"), [(2000 / 67_349, 1.25, 680, 1e-5), (0.05, 4.0, 200, 1e-6)]
)
def test_prv_agrees_with_its_authors_package(q, sigma, steps, delta):
    theirs = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=sigma, sampling_probability=q)],
        max_self_compositions=[steps],
        eps_error=0.01,
        delta_error=delta / 1000,
    )
    low, estimate, high = theirs.compute_epsilon(delta=delta, num_self_compositions=[steps])
    ours = prv_epsilon(q, sigma, steps, delta, steps)  # the upper end of its bounds
    assert low <= ours <= high and estimate <= ours <= 1.004 * estimate


def test_sst2_multiplier_is_the_published_one():
    sigma, _ = calibrate(2000 / 67_349, 674, 1e-5, 3.3)
    assert sigma == pytest.approx(1.25, rel=0.01)


def test_a_joint_release_of_two_costs_what_it_should():
    """NOTES: 12.7 by PLD and 13.7 by RDP, where doubling one release's RDP gives 11.6."""
    sigma = 1.5 / math.sqrt(2)
    assert prv_epsilon(0.02, sigma, 10_000, 1e-5) == pytest.approx(12.7, abs=0.05)
    assert rdp_epsilon(0.02, sigma, 10_000, 1e-5) == pytest.approx(13.7, abs=0.05)


def test_full_batches_are_the_plain_gaussian_mechanism():
    sigma, accountant = calibrate(1.0, 100, 1e-5, 2.0)
    assert accountant == "prv"
    assert pld_epsilon(1.0, sigma, 100, 1e-5) == pytest.approx(2.0, rel=0.01)


def test_epsilon_rises_with_steps_and_falls_with_noise():
    by_steps = [prv_epsilon(0.04, 1.0, steps, 1e-5, 500) for steps in (0, 1, 50, 200, 500)]
    assert by_steps[0] == 0 and by_steps == sorted(by_steps)
    by_sigma = [prv_epsilon(0.04, sigma, 200, 1e-5) for sigma in (0.0, 0.6, 1.0, 2.0)]
    assert by_sigma[0] == math.inf and by_sigma == sorted(by_sigma, reverse=True)


def test_steps_of_one_run_share_a_grid_without_changing_the_answer():
    alone = prv_epsilon(0.04, 1.0, 50, 1e-5)
    assert prv_epsilon(0.04, 1.0, 50, 1e-5, 500) == pytest.approx(alone, rel=0.01)
    assert prv_epsilon(0.04, 1.0, 50, 1e-5, 5) == alone  # whose grid would be too narrow


def test_an_order_whose_rdp_is_below_0_by_rounding_is_not_used():
    assert compute_rdp(q=1e-6, noise_multiplier=100.0, steps=1, orders=1.05) < 0
    assert rdp.rdp_per_step(1e-6, 100.0, 1.05) == math.inf


def powers(low, high):
    """Draw what is spread evenly over its powers of ten."""
    return st.floats(low, high).map(lambda power: 10**power)


@settings(max_examples=6)
@example(q=1.0, sigma=3.0, steps=50, delta=1e-5)
@example(q=0.25, sigma=0.06, steps=1, delta=1e-5)  # at whose fractional orders RDP overflows
@given(
    q=powers(-4, -0.01),
    sigma=powers(-0.5, 1.5),
    steps=st.integers(1, 100_000),
    delta=powers(-12, -2),
)
def test_orders_that_are_left_out_cannot_be_the_best(q, sigma, steps, delta):
    def cost(order):
        try:
            return compute_rdp(q=q, noise_multiplier=sigma, steps=steps, orders=float(order))
        except (OverflowError, ValueError):
            return math.inf

    def at(order, cost):
        return float(get_privacy_spent(orders=float(order), rdp=cost, delta=delta)[0])

    with np.errstate(all="ignore"):
        costs = [(order, cost(order)) for order in ORDERS]
    for releases in (1, 2):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            every = [at(order, releases * each) for order, each in costs]
        least = max(0.0, min(value for value in every if not math.isnan(value)))
        if releases == 1:
            assert rdp_epsilon(q, sigma, steps, delta) == pytest.approx(least, rel=1e-12)
        apart = rdp.rdp_epsilon_apart(q, [sigma] * releases, steps, delta)
        assert apart == pytest.approx(least, rel=1e-12)


WIDTHS = [(0.02, 1.4, 10_000), (0.25, 0.8, 12), (0.1, 0.42, 1000), (1.0, 20.0, 100), (1e-4, 2.0, 9)]
FEW_ORDERS = [(0.25, 0.5, 12), (0.9, 0.8, 80), (0.001, 0.3, 4), (0.02, 0.4, 10), (0.5, 1.5, 1000)]


@pytest.mark.parametrize(("q", "sigma", "steps"), WIDTHS)
def test_a_grid_is_at_least_as_wide_as_opacus_has_it_and_hardly_wider(q, sigma, steps):
    law = prv.PoissonSubsampledGaussianPRV(q, sigma)
    for error in (0.01, 100.0):
        theirs = prv.compute_safe_domain_size([law], [steps], error, 1e-8)
        ours = _half_width(q, sigma, steps, error, 1e-8)
        assert theirs * (1 - 1e-12) <= ours <= 1.1 * theirs


@pytest.mark.parametrize(("q", "sigma", "steps"), FEW_ORDERS)
def test_where_fractional_orders_are_the_best_a_grid_is_as_wide_as_opacus_has_it(q, sigma, steps):
    law = prv.PoissonSubsampledGaussianPRV(q, sigma)
    theirs = prv.compute_safe_domain_size([law], [steps], 0.0, 1e-8)
    rdp.rdp_per_step.cache_clear()
    assert _half_width(q, sigma, steps, 0.0, 1e-8) == pytest.approx(theirs, rel=1e-12)
    assert rdp.rdp_per_step.cache_info().misses <= 20  # each takes milliseconds; of 99


def settings_50():
    """Draw budgets from single steps to long runs, whose grids are small."""
    draw = np.random.default_rng(44)
    while True:
        q, steps = 10 ** draw.uniform(-2, 0), round(10 ** draw.uniform(0, 2.7))
        delta, target = 10 ** draw.uniform(-7, -3), 10 ** draw.uniform(-0.3, 1.2)
        if q * math.sqrt(steps) > 0.15:
            yield q, steps, delta, target


FIFTY = [setting for setting, _ in zip(settings_50(), range(50), strict=False)]


def opacus_epsilon(q, sigma, steps, delta):
    """Return the upper bound of Opacus's PRV accountant, at the error that ours allows."""
    error = accounting.RELATIVE_ERROR * rdp_epsilon(q, sigma, steps, delta)
    law = prv.PoissonSubsampledGaussianPRV(q, sigma)
    width = _half_width(q, sigma, steps, error, delta / 1000)
    mesh = error / math.sqrt(steps * math.log(12_000 / delta) / 2)
    domain = prv.Domain.create_aligned(-width, width, mesh)
    step = prv.discretize(
        prv.TruncatedPrivacyRandomVariable(law, domain.t_min, domain.t_max), domain
    )
    return prv.compose_heterogeneous([step], [steps]).compute_epsilon(delta, delta / 1000, error)[2]


@pytest.mark.parametrize("of", [12, pytest.param(50, marks=pytest.mark.long)])
def test_multipliers_are_opacus_to_a_ten_thousandth_in_two_evaluations(of, evaluations):
    counts = []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for q, steps, delta, target in FIFTY[:of]:
            evaluations.clear()
            sigma, accountant = calibrate(q, steps, delta, target)
            counts += [sum(name == "prv_epsilon" for name, _ in evaluations)]
            assert accountant == "prv"
            # Epsilon falls at least as fast as sigma rises, so that sigma is as near.
            middle = target * (1 - TOLERANCE / 2)
            theirs = opacus_epsilon(q, sigma, steps, delta)
            assert theirs == pytest.approx(middle, rel=1e-4)
            assert prv_epsilon(q, sigma, steps, delta, steps) == pytest.approx(theirs, rel=1e-6)
    assert max(counts) <= 3 and sum(counts) <= 2 * len(counts)


def test_an_epsilon_above_its_target_by_less_than_the_tolerance_does_not_fit():
    def jumps(sigma):
        return 1 + TOLERANCE / 4 if sigma < 2 else 0.5

    with pytest.raises(ArithmeticError, match="no noise multiplier reaches"):
        _least(jumps, 1.0, lambda epsilon: 1.5 / epsilon)


def test_where_prv_fails_rdp_calibrates_and_says_so():
    with pytest.raises(PRVFailed):
        prv_epsilon(1e-4, 1.0, 1_000_000, 1e-10, 1_000_000)
    sigma, accountant = calibrate(1e-4, 1_000_000, 1e-10, 1.0)
    assert accountant == "rdp"
    assert 1 - TOLERANCE <= rdp_epsilon(1e-4, sigma, 1_000_000, 1e-10) <= 1
    assert pld_epsilon(1e-4, sigma, 1_000_000, 1e-10) <= 1


def test_a_budget_that_no_noise_fits_is_the_users_error():
    with pytest.raises(ConfigError, match="No noise is shown to give epsilon 1e-07"):
        calibrate(0.02, 10_000, 1e-5, 1e-7)


@pytest.mark.parametrize("target", [1e-300, 1e-12])
def test_an_epsilon_within_rounding_of_0_is_not_searched_for(target, evaluations):
    with pytest.raises(ConfigError, match="No noise is shown to give"):
        calibrate(1.0, 1, 1e-5, target)
    assert not evaluations


@pytest.fixture
def evaluations(monkeypatch):
    """Count how often either accountant is asked."""
    asked = []
    for name in ("prv_epsilon", "rdp_epsilon"):
        whole = getattr(accounting, name)

        def counted(q, sigma, *rest, whole=whole, name=name):
            asked.append((name, sigma))
            return whole(q, sigma, *rest)

        monkeypatch.setattr(accounting, name, counted)
    return asked


def test_another_process_measures_what_was_found_once(own_cache, evaluations):
    setting = (0.05, 100, 1e-5, 3.0)
    first = calibrate(*setting)
    calibrate.cache_clear()
    prv_epsilon.cache_clear()
    evaluations.clear()
    assert calibrate(*setting) == first
    assert first[1] == "prv"
    assert [sigma for name, sigma in evaluations if name == "prv_epsilon"] == [first[0]]


# 1.08 has an epsilon of 3.0007, and PRV fails for 0.001.
KEPT = [math.inf, math.nan, 1.08, 3.0, 0.0, -1.1, 1e-3, 10**400, "word", [1.1], {}, None]


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_kept_multiplier_that_is_not_the_least_that_fits_is_found_anew(kept, own_cache):
    setting = (0.05, 100, 1e-5, 3.0)
    first = calibrate(*setting)
    (entry,) = own_cache.rglob("*.json")
    entry.write_text(json.dumps(kept))
    calibrate.cache_clear()
    assert calibrate(*setting) == first
    assert [json.loads(entry.read_text()), "prv"] == list(first)


def test_what_rdp_found_is_not_kept_as_prv_may_have_failed_for_want_of_memory(
    own_cache, monkeypatch
):
    setting = (0.05, 100, 1e-5, 3.0)

    def runs_out(*_):
        raise MemoryError

    prv_epsilon.cache_clear()
    accounting._loss.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(accounting.prv, "loss", runs_out)
        assert calibrate(*setting)[1] == "rdp"
    calibrate.cache_clear()
    assert calibrate(*setting)[1] == "prv"


def test_where_nothing_can_be_kept_noise_is_found_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "a file"))
    sigma, _ = calibrate(0.05, 100, 1e-5, 3.0)
    assert 3 * (1 - TOLERANCE) <= prv_epsilon(0.05, sigma, 100, 1e-5, 100) <= 3


def test_many_seeds_share_one_calibration():
    calibrate(0.05, 100, 1e-5, 3.0)
    start = time.perf_counter()
    calibrate(0.05, 100, 1e-5, 3.0)
    assert time.perf_counter() - start < 0.01


LOOSE = [(1.0, 4.0, 1, 0.1), (1.0, 8.0, 1, 0.05), (40 / 1437, 0.9, 1, 0.05), (0.1, 3.0, 5, 0.2)]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), LOOSE)
def test_no_epsilon_is_below_0_where_delta_alone_suffices(q, sigma, steps, delta):
    values = [rdp_epsilon(q, sigma, steps, delta)]
    with contextlib.suppress(PRVFailed):
        values += [prv_epsilon(q, sigma, steps, delta, 108)]
    values += [gaussian_epsilon((Part(q, sigma, steps),), delta, 1.0)]
    assert min(values) == 0


def test_epsilon_falls_to_0_with_noise_and_stays_there():
    found = [prv_epsilon(1.0, sigma, 1, 0.1) for sigma in (2.0, 3.0, 3.5, 4.0, 5.0)]
    assert found == sorted(found, reverse=True) and found[1] > 0 and found[-2:] == [0, 0]


def test_kept_multipliers_are_of_the_code_that_gives_them():
    """RDP's epsilon sets the width of PRV's grid: with other code of it, they are found anew."""
    for module in (accounting, rdp, accounting.prv):
        assert Path(module.__file__).read_bytes() in accounting._version()
