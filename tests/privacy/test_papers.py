"""The papers' accountants: their arithmetic, what they ask for, what YAML and docs say of it."""

import re
from pathlib import Path

import pytest
from opacus.accountants.analysis.rdp import compute_rdp

from dpexp.cli import noise
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.papers import (
    ORDERS,
    moments_epsilon,
    moments_multiplier,
    papers_multiplier,
)
from dpexp.privacy.whole_orders import whole_orders_rdp

ROOT = Path(__file__).parents[2]

CIFAR10 = [  # releases, steps, ε, ours, the paper's; q = 0.02, δ = 1e-5
    (2, 2500, 2, 3.04, 3.63),
    (2, 5000, 5, 2.06, 2.24),
    (2, 10000, 8, 1.97, 2.09),
    (1, 10000, 8, 1.39, 1.56),
    (1, 10000, 2, 4.07, 5.07),
]


@pytest.mark.parametrize(("q", "sigma"), [(0.02, 1.5), (0.0017, 0.6), (0.3, 4.0), (1.0, 20.0)])
def test_rdp_is_that_of_opacus(q, sigma):
    some = [0, 1, 5, 30, 200]
    expected = compute_rdp(
        q=q, noise_multiplier=sigma, steps=1, orders=[ORDERS[each] for each in some]
    )
    assert whole_orders_rdp(q, sigma, ORDERS)[some] == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("releases", "steps", "epsilon", "ours", "theirs"), CIFAR10)
def test_noise_on_cifar10_by_both_accountants(releases, steps, epsilon, ours, theirs):
    found = moments_multiplier(0.02, steps, 1e-5, epsilon, num_releases=releases)
    assert found == pytest.approx(theirs, abs=0.005)
    assert moments_epsilon(0.02, found, steps, 1e-5, num_releases=releases) <= epsilon
    less = moments_epsilon(0.02, 0.999 * found, steps, 1e-5, num_releases=releases)
    assert less > epsilon
    sigma, _ = calibrate(0.02, steps, 1e-5, epsilon)
    assert sigma * releases**0.5 == pytest.approx(ours, abs=0.005)


@pytest.mark.parametrize(("q", "steps", "epsilon"), [(0.02, 10, 0.01), (1.0, 10**12, 0.03)])
def test_a_budget_that_no_noise_reaches_has_none(q, steps, epsilon):
    assert moments_multiplier(q, steps, 1e-5, epsilon) == float("inf")


def test_noise_beyond_any_that_is_used_is_found():
    found = moments_multiplier(1.0, 10**6, 1e-5, 0.03)
    assert 1e4 < found < 1e6 and moments_epsilon(1.0, found, 10**6, 1e-5) <= 0.03
    assert moments_multiplier(1e-5, 1, 1e-5, 1e4) < 0.1


def lines():
    """Read docs/noise.md: paper, where, releases, q, steps, δ, ε, ours, theirs, share."""
    for line in (ROOT / "docs/noise.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if cells[0] in ("rgp", "gep"):
            yield cells


def test_the_documents_words_are_those_that_the_command_prints():
    assert (ROOT / "docs/noise.md").read_text(encoding="utf-8").startswith(noise.HEAD + "\n| rgp")


@pytest.mark.long
def test_the_document_says_what_is_computed():
    # q is printed with three digits, so that a line is held to one percent.
    for _, _, releases, q, steps, delta, epsilon, ours, theirs, share in lines():
        found = moments_multiplier(
            float(q),
            int(steps.replace(",", "")),
            float(delta),
            float(epsilon),
            num_releases=int(releases),
        )
        assert found == pytest.approx(float(theirs), rel=0.01, abs=0.006)
        assert float(share.rstrip(" %")) == pytest.approx(100 * float(ours) / float(theirs), abs=1)


def test_which_noise_is_the_larger_is_as_the_document_says():
    larger = {line[3] for line in lines() if float(line[7]) > float(line[8])}
    smaller = {line[3] for line in lines() if float(line[7]) <= float(line[8])}
    pairs = [line for line in lines() if line[2] == "2" and float(line[7]) > float(line[8])]
    assert larger == {"0.00165"} and len(pairs) == 3  # SVHN's pair alone
    assert {"0.02", "0.0167"} <= smaller


def test_no_note_of_an_artifact_has_noise_that_is_not_computed():
    computed, told_of = {number for line in lines() for number in line[7:9]}, 0
    for path in (ROOT / "conf/artifact").glob("*/*.yaml"):
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert not re.search(r"takes? more (of it|noise) than the authors", text), path
        for sentence in re.findall(r"multipliers? (?:at|is)[^()]*?accountant[^()]*", text):
            told = re.findall(r"\b\d+\.\d\d\b", sentence)
            assert told and set(told) <= computed, (path, sentence)
            told_of += len(told)
    assert told_of


def test_a_certificate_without_noise_or_of_another_paper_has_no_other_multiplier():
    gaussian = {"noise": "gaussian"}
    private = {
        "releases": [gaussian, gaussian],
        "q": 0.02,
        "planned_steps": 10000,
        "delta": 1e-5,
        "target_epsilon": 8.0,
        "deviations": [],
    }
    assert papers_multiplier("gep", private) == pytest.approx(2.09, abs=0.005)
    assert papers_multiplier("lsg", private) is None
    assert papers_multiplier("rgp", {**private, "target_epsilon": None}) is None
    assert papers_multiplier("rgp", {**private, "releases": [{"noise": "laplace"}]}) is None
    assert papers_multiplier("rgp", {**private, "deviations": ["no noise: no privacy"]}) is None
