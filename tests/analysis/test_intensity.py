"""Pictures of |W| and |dW|, and what is counted of them, entry by entry."""

import numpy as np
import pytest
import torch

from dpexp.analysis.intensity import Intensity, blocks, largest_share, line_share
from dpexp.types import ConfigError
from tests.analysis.views import on_digits


def test_blocks_are_means_and_small_matrices_stay_whole():
    matrix = torch.randn(12, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = blocks(matrix, 4)
    expected = [
        [float(matrix[3 * i : 3 * i + 3, 5 * j : 5 * j + 5].mean()) for j in range(4)]
        for i in range(4)
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert torch.equal(blocks(matrix, 64), matrix)
    assert blocks(torch.ones(100, 30), 64).shape == (64, 30)


def test_the_share_of_the_largest_is_counted_literally():
    matrix = np.random.default_rng(0).standard_t(2, size=(10, 30))
    squares = sorted((matrix**2).ravel(), reverse=True)
    expected = sum(squares[:30]) / sum(squares)
    assert largest_share(torch.tensor(matrix), 0.1) == pytest.approx(expected, rel=1e-12)
    assert largest_share(torch.ones(10, 30), 0.1) == pytest.approx(0.1)


def test_the_share_of_lines_is_that_of_a_two_way_table():
    """Rows and columns fitted by least squares, with a column of the design for each."""
    matrix = np.random.default_rng(1).normal(size=(6, 9)) * np.arange(1, 7)[:, None]
    values = np.abs(matrix)
    rows, columns = np.indices(values.shape).reshape(2, -1)
    design = np.hstack([np.eye(6)[rows], np.eye(9)[columns]])
    fitted = design @ np.linalg.lstsq(design, values.ravel(), rcond=None)[0]
    expected = fitted.var() / values.var()
    assert line_share(torch.tensor(matrix)) == pytest.approx(expected, rel=1e-10)
    assert line_share(torch.outer(torch.ones(4), torch.arange(5.0))) == pytest.approx(1)


def test_independent_entries_have_about_no_lines():
    matrix = torch.randn(100, 200, generator=torch.Generator().manual_seed(2))
    assert line_share(matrix) == pytest.approx(300 / 20_000, abs=0.005)


@pytest.mark.parametrize(("when", "step"), [("start", 0), ("end", 80)])
def test_it_looks_once_and_gives_numbers(when, step):
    analysis = Intensity("blocks.2.conv2.weight", when=when, blocks=32, batch=20)
    found = {at: analysis.observe(on_digits("method=rgp", step=at), {}) for at in (0, 40, 80)}
    assert [at for at, some in found.items() if some] == [step]
    seen = found[step]
    assert seen["weight"].shape == seen["gradient"].shape == (32, 32)
    numbers = analysis.numbers({name: np.asarray(value) for name, value in seen.items()})
    assert numbers.keys() == {
        *("weight_tenth", "weight_lines", "gradient_tenth", "gradient_lines"),
    }
    assert all(0 < value < 100 for value in numbers.values())


def test_an_unknown_time_is_refused():
    with pytest.raises(ConfigError, match="Did you mean end"):
        Intensity("stem.weight", when="ende", blocks=4, batch=4)
