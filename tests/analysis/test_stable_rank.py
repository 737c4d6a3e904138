"""Stable rank against singular values."""

import numpy as np
import pytest
import torch

from dpexp.analysis.stable_rank import StableRank, stable_rank
from dpexp.types import ConfigError
from tests.analysis.views import on_digits


@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4), (1, 6), (7, 1)])
def test_it_is_the_sum_of_squared_singular_values_over_the_largest(shape):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = np.linalg.svd(matrix.numpy(), compute_uv=False)
    assert stable_rank(matrix) == pytest.approx((values**2).sum() / values.max() ** 2, rel=1e-12)


def test_its_bounds_are_one_and_the_smaller_side():
    assert stable_rank(torch.outer(torch.arange(1.0, 4), torch.arange(1.0, 6))) == pytest.approx(1)
    assert stable_rank(3 * torch.eye(6)) == pytest.approx(6)
    assert np.isnan(stable_rank(torch.zeros(3, 4)))


def test_every_trained_matrix_is_followed_and_kernels_are_flattened():
    view = on_digits("method=rgp")
    found = StableRank(batch=40).observe(view, {})
    batch = view.examples.batch(view.draw("batch", 40))
    with view.unhooked(), torch.enable_grad():
        loss = view.task.loss(view.model(batch.inputs), batch.targets)
        names = list(found)
        weights = [view.model.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(loss, weights)
    assert names == [n for n, w in view.model.named_parameters() if w.ndim > 1]
    for name, gradient in zip(names, gradients, strict=True):
        values = np.linalg.svd(gradient.reshape(len(gradient), -1).numpy(), compute_uv=False)
        assert found[name] == pytest.approx((values**2).sum() / values.max() ** 2, rel=1e-3)


def test_an_empty_batch_is_refused():
    with pytest.raises(ConfigError, match="batch >= 1; got 0"):
        StableRank(batch=0)
