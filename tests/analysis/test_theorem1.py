"""Theorem 1's bound: the paper's formula written out, and the terms it is made of."""

import math

import numpy as np
import pytest
import torch

from dpexp import cli, records
from dpexp.analysis.theorem1 import RECOVERY, Theorem1, Theorem1Bound
from dpexp.methods.cosamp import cosamp, keep_largest
from dpexp.types import ConfigError


def paper(n, kappa, p, xi, eps, d, t):
    """Theorem 1 as printed, with the least C'' that Proposition 2 allows."""
    c2 = p / (kappa * math.log(n / kappa))
    c = 8 * RECOVERY**2 * c2**2
    root = math.sqrt(kappa * (1 + c * kappa**3 * math.log(n / kappa) ** 2 / eps**2))
    last = math.sqrt(c) * kappa**2 * math.log(n / kappa) / eps
    inside = math.sqrt(2) / math.sqrt(t) * root + math.sqrt(2 * (n - kappa)) + last
    return d * xi * (2 + math.log(t)) * inside


@pytest.mark.parametrize("kappa", [1, 5, 49])
@pytest.mark.parametrize("eps", [0.1, 1.0, 1e6])
@pytest.mark.parametrize("iterate", [1, 2, 1000])
def test_it_is_the_formula_of_the_paper(kappa, eps, iterate):
    theorem = Theorem1(size=50, kappa=kappa, rows=20, xi=0.1, eps=eps, diameter=3.0)
    expected = paper(50, kappa, 20, 0.1, eps, 3.0, iterate)
    assert theorem.bound(iterate) == pytest.approx(expected, rel=1e-12)


def test_its_own_rate_is_the_one_with_the_least_bound():
    theorem = Theorem1(size=50, kappa=5, rows=20, xi=0.1, eps=1.0, diameter=3.0)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert theorem.bound(100, factor * theorem.rate) > theorem.bound(100)
    assert theorem.bound(100, theorem.rate) == theorem.bound(100)


def test_all_coordinates_kept_leave_no_term_for_those_that_are_not():
    theorem = Theorem1(size=50, kappa=50, rows=20, xi=0.1, eps=1e12, diameter=3.0)
    by_hand = 3.0 * 2 * math.sqrt(2) * 0.1 * math.sqrt(50)
    assert theorem.bound(1) == pytest.approx(by_hand, rel=1e-6)


def test_what_measuring_and_noise_do_to_a_gradient_stays_below_w():
    n, kappa, p, xi, eps = 50, 2, 40, 0.1, 1.0
    theorem = Theorem1(size=n, kappa=kappa, rows=p, xi=xi, eps=eps, diameter=1.0)
    gen = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    squares = []
    for _ in range(50):
        v = keep_largest(xi * (2 * torch.rand(n, generator=gen, dtype=torch.float64) - 1), kappa)
        psi = torch.randn(p, n, generator=gen, dtype=torch.float64) / math.sqrt(p)
        e = torch.distributions.Laplace(0.0, math.sqrt(p) / eps).sample((p,)).double()
        recovered = cosamp(psi, kappa, psi @ v / (2 * xi * kappa) + e)
        squares.append(float((2 * xi * kappa * recovered - v).square().sum()))
    assert 0 < math.sqrt(np.mean(squares)) < theorem.noise


def test_a_run_shows_its_loss_and_a_bound_that_it_stays_below(tmp_path):
    words = ["profile=embedded", "task=regression", "method=compressive", "analysis=theorem1"]
    words += ["privacy.budget=per_step", "eps=10", "epochs=6", "eval_every=2", "device=cpu"]
    where = cli.execute(cli.compose([*words, f"results={tmp_path}"]))
    seen = np.load(where / records.ANALYSIS)
    loss, bound = seen["theorem1/loss"], seen["theorem1/bound"]
    assert math.isnan(bound[0]) and (loss[1:] < bound[1:]).all()
    assert (np.diff(seen["theorem1/diameter"][1:]) >= 0).all()
    xs, losses = records.series(where, "relative_loss", "epoch")
    np.testing.assert_allclose(loss[1:], losses, rtol=1e-4)
    np.testing.assert_allclose(seen["epoch"][1:], xs)


@pytest.mark.parametrize(("kappa", "psi"), [(None, "gaussian"), (5, "none")])
def test_a_run_that_does_not_sparsify_is_refused(kappa, psi):
    with pytest.raises(ConfigError, match="which is about sparsified gradients"):
        Theorem1Bound(kappa=kappa, rows=20, psi=psi, xi=0.1, rate=0.1)
