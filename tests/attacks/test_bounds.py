"""Lower bounds on epsilon: never above the truth but by bad luck, and near it where they can be."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

from dpexp.attacks.bounds import (
    Errors,
    Guesses,
    clopper_pearson,
    guess,
    largest_refuted,
    tell_apart,
)
from dpexp.attacks.bounds_curves import gaussian, gaussian_epsilon, subsampled_gaussian
from dpexp.privacy.accounting import prv_epsilon
from tests.marks import some_long

CONFIDENCE = 0.95


def tail(r, v, q):
    return sum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(v, r + 1))


def mu_lower(guesses, confidence=CONFIDENCE):
    return largest_refuted(lambda mu: guesses.refutes(gaussian(mu), confidence), 20.0)


# The theorem of one run


def test_without_privacy_loss_the_p_value_is_that_of_coin_tosses():
    for r, v in ((10, 0), (10, 7), (10, 10), (25, 18)):
        assert Guesses(40, r, v).p_value(0.0, 0.0) == pytest.approx(tail(r, v, 0.5), rel=1e-9)


def test_the_p_value_is_the_theorem_written_out():
    m, r, v, epsilon, delta = 30, 20, 16, 0.7, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    alpha = max((tail(r, max(v - i, 0), q) - tail(r, v, q)) * 2 / i for i in range(1, m + 1))
    expected = tail(r, v, q) + alpha * m * delta
    assert Guesses(m, r, v).p_value(epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_all_guesses_right_bound_epsilon_in_closed_form():
    q = 0.05 ** (1 / 50)  # all of 50 are right with probability 5 % at this rate
    bound = Guesses(50, 50, 50).epsilon_lower(0.0, CONFIDENCE)
    assert bound == pytest.approx(math.log(q / (1 - q)), abs=2e-3)  # the search's tolerance, twice


def test_delta_only_lowers_the_bound_and_confidence_too():
    guesses = Guesses(1000, 200, 170)
    bounds = [guesses.epsilon_lower(delta, CONFIDENCE) for delta in (0, 1e-6, 1e-4, 1e-3)]
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] < bounds[0] - 0.1
    assert guesses.epsilon_lower(0, 0.99) < guesses.epsilon_lower(0, 0.9)


# Randomised response is the tight case: every coin told right with probability e^eps / (1 + e^eps)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_randomised_response_is_bounded_tightly_and_not_beyond(epsilon):
    rng = np.random.default_rng(0)
    m, q = 1000, 1 / (1 + math.exp(-epsilon))
    right = rng.binomial(m, q, 400)
    bound = {v: Guesses(m, m, v).epsilon_lower(0.0, CONFIDENCE) for v in set(right.tolist())}
    bounds = np.array([bound[v] for v in right.tolist()])
    # 5 % of 400, and three standard deviations of that count.
    assert (bounds > epsilon).sum() <= 20 + 3 * 4.4
    assert (bounds > epsilon).mean() > 0.01, "the bound is as tight as its confidence"
    assert bounds.mean() > 0.7 * epsilon


def test_a_mechanism_that_at_times_tells_all_stays_within_its_delta():
    """With probability delta every coin is out at once: the worst that delta allows."""
    delta = 0.06
    all_right = Guesses(100, 100, 100)
    assert all_right.epsilon_lower(delta, CONFIDENCE) == 0
    assert not all_right.refutes(lambda rate: max(0.0, rate - delta), CONFIDENCE)
    assert all_right.refutes(lambda rate: max(0.0, rate - 1e-6), CONFIDENCE)


# Trade-off curves


def literal_largest_probability(curve, m, r, v):
    """Maximise P[W >= v] over all laws that obey the inequality at every c, by its tangents."""
    w = np.arange(r + 1)
    rows, limits = [], []
    for c in range(1, r + 1):
        hits = np.where(w >= c, w / m, 0)
        misses = np.where(w >= c - 1, (r - w) / m, 0)
        for x in np.linspace(1e-4, 1 - 1e-4, 400):
            slope = (curve(x + 1e-6) - curve(x - 1e-6)) / 2e-6
            rows.append(slope * hits - misses)  # curve(x) + slope (hits - x) <= misses
            limits.append(slope * x - curve(x))
    found = linprog(
        -(w >= v).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1.0],
    )
    return -found.fun


@pytest.mark.parametrize(("m", "r", "v"), [(12, 12, 10), (20, 8, 7), (15, 10, 10)])
def test_a_curve_is_refuted_just_where_no_law_of_the_guesses_fits(m, r, v):
    curve = gaussian(0.6)
    most = literal_largest_probability(curve, m, r, v)
    # The tangents leave out a sliver of what is forbidden, so the literal answer is a little high.
    assert Guesses(m, r, v).refutes(curve, 1 - 1.02 * most)
    assert not Guesses(m, r, v).refutes(curve, 1 - 0.98 * most)


def test_a_gaussian_curve_has_the_accountants_epsilon():
    for mu in (0.3, 1.0, 2.5):
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(prv_epsilon(1.0, 1 / mu, 1, 1e-5), 5e-3)
    assert gaussian_epsilon(0.0, 1e-5) == gaussian_epsilon(1e-6, 1e-5) == 0


def test_a_composed_curve_is_what_the_best_attacker_achieves():
    """The log-likelihood ratio of simulated runs, thresholded both ways."""
    rng = np.random.default_rng(0)
    q, sigma, steps, trials = 0.25, 1.5, 30, 40_000

    def losses(is_in):
        total = np.zeros(trials)
        for _ in range(steps):
            seen = is_in * (rng.random(trials) < q) + sigma * rng.standard_normal(trials)
            total += np.log1p(q * np.expm1((2 * seen - 1) / (2 * sigma**2)))
        return total

    without, within = losses(False), losses(True)
    curve = subsampled_gaussian(q, sigma, steps)
    for rate in (0.1, 0.3, 0.6, 0.9):
        add = (without >= np.quantile(within, 1 - rate)).mean()
        remove = (within <= np.quantile(without, rate)).mean()
        error = 4 * math.sqrt(min(add, remove) * rate / trials) + 2e-3
        assert curve(rate) == pytest.approx(min(add, remove), abs=error)
    rates = np.linspace(0, 1, 201)
    values = np.array([curve(rate) for rate in rates])
    assert values[0] == 0 and values[-1] == 1 and (np.diff(values, 2) > -1e-12).all()


def test_sampling_everything_is_the_plain_gaussian_curve():
    composed, plain = subsampled_gaussian(1 - 1e-9, 3.0, 9), subsampled_gaussian(1.0, 3.0, 9)
    for rate in (0.05, 0.3, 0.7, 0.95):
        assert composed(rate) == pytest.approx(plain(rate), rel=0.01)


# A plain Gaussian mechanism, every canary a coordinate


def gaussian_scores(rng, m, mu):
    included = rng.random(m) < 0.5
    return mu * included + rng.standard_normal(m), included


def test_one_run_recovers_most_of_a_gaussian_mechanism():
    """With 10,000 canaries: half by (epsilon, delta), six tenths and more by the curve."""
    rng = np.random.default_rng(1)
    mu, delta = 0.92, 1e-5  # epsilon = 4
    epsilon = gaussian_epsilon(mu, delta)
    assert epsilon == pytest.approx(4, abs=0.05)
    scores, included = gaussian_scores(rng, 10_000, mu)
    guesses = guess(scores, included, 500)
    assert 0.4 * epsilon < guesses.epsilon_lower(delta, CONFIDENCE) < epsilon
    assert 0.6 * epsilon < gaussian_epsilon(mu_lower(guesses), delta) < epsilon


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_bounds_by_the_curve_are_above_the_truth_no_more_often_than_they_say(mu):
    rng = np.random.default_rng(2)
    trials = [guess(*gaussian_scores(rng, 200, mu), 40) for _ in range(300)]
    above = sum(guesses.refutes(gaussian(mu), CONFIDENCE) for guesses in trials)
    assert above <= 15 + 3 * 3.8  # 5 % of 300, and three standard deviations


def test_a_distinguishing_game_recovers_most_of_a_gaussian_mechanism():
    rng = np.random.default_rng(3)
    mu, delta, trials = 1.0, 1e-5, 4000
    without, within = rng.standard_normal(trials), mu + rng.standard_normal(trials)
    best = tell_apart(without, within, lambda errors: errors.mu_lower(CONFIDENCE))
    epsilon = gaussian_epsilon(mu, delta)
    assert 0.6 * epsilon < gaussian_epsilon(best.mu_lower(CONFIDENCE), delta) < epsilon
    best = tell_apart(without, within, lambda errors: errors.epsilon_lower(delta, CONFIDENCE))
    assert 0.25 * epsilon < best.epsilon_lower(delta, CONFIDENCE) < epsilon


# Nothing leaks


@pytest.mark.parametrize("trials", some_long([100, 400], [100]))
def test_scores_without_signal_seldom_bound_anything(trials):
    """In at most 5 % of the trials, and two standard deviations: 7 % of 400."""
    rng = np.random.default_rng(4)
    above = np.zeros(4)
    for _ in range(trials):
        scores, included = gaussian_scores(rng, 500, 0.0)
        guesses = guess(scores, included, 100)
        above[0] += guesses.p_value(0.0, 0.0) < 1 - CONFIDENCE
        above[1] += guesses.refutes(gaussian(0.0), CONFIDENCE)
        without, within = rng.standard_normal((2, 200))
        errors = tell_apart(without, within, lambda some: some.mu_lower(CONFIDENCE))
        above[2] += errors.mu_lower(CONFIDENCE) > 0
        above[3] += errors.epsilon_lower(0.0, CONFIDENCE) > 0
    most = 0.05 * trials + 2 * math.sqrt(0.05 * 0.95 * trials)
    assert (above <= most).all(), above


def test_equal_scores_say_nothing_whatever_the_coins():
    included = np.array([True] * 30 + [False] * 30)
    assert guess(np.zeros(60), included[::-1], 20).right == 0
    rng = np.random.default_rng(5)
    right = [guess(np.zeros(60), rng.random(60) < 0.5, 20).right for _ in range(400)]
    assert np.mean(right) == pytest.approx(10, abs=4 * math.sqrt(5 / 400))


# A distinguishing game's counts


def test_clopper_pearson_is_the_exact_interval():
    for hits, trials in ((0, 50), (3, 50), (49, 50), (50, 50)):
        exact = stats.binomtest(hits, trials, alternative="less").proportion_ci(CONFIDENCE)
        assert clopper_pearson(hits, trials, CONFIDENCE) == pytest.approx(exact.high, abs=1e-9)


def test_no_error_at_all_bounds_epsilon_by_the_number_of_trials():
    least = 1 - 0.025 ** (1 / 500)
    bound = Errors(0, 500, 0, 500).epsilon_lower(1e-5, CONFIDENCE)
    assert bound == pytest.approx(math.log((1 - 1e-5 - least) / least))
    assert Errors(250, 500, 250, 500).epsilon_lower(0, CONFIDENCE) == 0


def test_a_threshold_is_judged_by_trials_that_did_not_choose_it():
    without, within = np.zeros(40), np.zeros(40)
    within[:20] = 1.0  # a signal in the half that chooses alone
    errors = tell_apart(without, within, lambda some: some.mu_lower(CONFIDENCE))
    assert errors == Errors(0, 20, 20, 20)
