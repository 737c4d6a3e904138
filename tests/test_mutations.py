"""Broken on purpose, the mechanism fails the tests of its privacy (docs/privacy/breaks.md)."""

import math
import re
from functools import cache
from pathlib import Path

import pytest

from dpexp.privacy.accounting import calibrate
from dpexp.privacy.laplace import calibrate_laplace, pure_epsilon
from dpexp.privacy.pld import Part, gaussian_epsilon
from tests.mutations import BREAKS

ROOT = Path(__file__).resolve().parents[1]
BREAKS_PAGE = ROOT / "docs" / "privacy" / "breaks.md"
PLAIN = ("--disable-plugin-autoload", "-p", "no:cacheprovider")
DELTA, TARGET = 1e-5, 8.0


@pytest.mark.long
@pytest.mark.parametrize("name", BREAKS)
def test_the_named_test_fails_under_its_break_by_its_own_assertion(name, programs):
    """That it passes otherwise the rest of the suite shows."""
    broken = ["-p", "tests.mutations", "--break", name, BREAKS[name].test]
    ended = programs.run(["-m", "pytest", "-q", "--tb=short", *PLAIN, *broken])
    said = ended.stdout + ended.stderr
    errors = "\n".join(re.findall(r"^E +(.*)$", said, re.M))
    assert ended.returncode == 1 and re.search(r"^1 failed\b.* in ", said, re.M), said
    assert re.search(BREAKS[name].says, errors), errors


def test_every_named_test_is_one_of_make_tests(programs):
    tests = {one.test for one in BREAKS.values()}
    files = sorted({test.partition("::")[0] for test in tests})
    listed = programs.run(["-m", "pytest", "-q", "--collect-only", *PLAIN, *files]).stdout
    known = {*listed.splitlines()}
    assert tests <= known, tests - known


@cache
def delivered(excess, noise, q, accounted, drawn):
    """Say in words what epsilon is, where 8 is claimed, if more leaves than is accounted for."""
    if excess is None:
        return "none known"
    if excess == math.inf:
        return "∞"
    if noise == "laplace":
        scale = calibrate_laplace(q, TARGET / accounted) / excess
        epsilon = pure_epsilon(q, scale, [1.0] * drawn)
    else:
        sigma, _ = calibrate(q, accounted, DELTA, TARGET)
        # Epsilon grows about as the square of a sensitivity; the grid needs its size.
        size = TARGET * excess**2 * drawn / accounted
        epsilon = gaussian_epsilon((Part(q, sigma / excess, drawn),), DELTA, size)
    return f"{epsilon:,.{1 if epsilon < 1000 else 0}f}"  # further digits depend on threads


def told():
    """Return the page's rows by break."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in BREAKS_PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row for row in rows}


def test_the_document_names_every_break_and_its_test():
    rows = told()
    assert list(rows) == list(BREAKS)
    for name, one in BREAKS.items():
        function = one.test.partition("::")[2].partition("[")[0]
        assert f"`{function}`" in rows[name][2], name


@pytest.mark.long
def test_the_document_says_what_every_break_does_to_epsilon():
    rows = told()
    for name, one in BREAKS.items():
        epsilon = delivered(one.excess, one.noise, one.q, one.accounted, one.drawn)
        assert epsilon in rows[name][-1], name
