"""Projection residuals against Eqs. (5) and (6), term by term."""

import numpy as np
import pytest
import torch

from dpexp.analysis.residual import ProjectionResidual, principal, projection_residual
from dpexp.types import ConfigError
from tests.analysis.views import on_digits


def literal(matrix, of, rank):
    """Project a matrix off the r-SVD of another, with the projectors written out."""
    left, _, right = np.linalg.svd(of)
    left, right = left[:, :rank], right[:rank].T
    first = np.eye(len(left)) - left @ left.T
    second = np.eye(len(right)) - right @ right.T
    return np.linalg.norm(first @ matrix @ second) / np.linalg.norm(matrix)


@pytest.mark.parametrize(("shape", "rank"), [((12, 20), 3), ((20, 12), 8), ((9, 9), 1)])
def test_it_is_the_formula(shape, rank):
    now, before = np.random.default_rng(0).normal(size=(2, *shape))
    for of in (before, now):
        got = projection_residual(torch.tensor(now), *principal(torch.tensor(of), rank))
        assert got == pytest.approx(literal(now, of, rank), rel=1e-10)


def test_nothing_is_left_of_a_matrix_in_the_subspace_and_all_of_one_outside():
    left, right = torch.eye(6)[:, :2].double(), torch.eye(8)[:, :2].double()
    inside, outside = torch.zeros(6, 8), torch.zeros(6, 8)
    inside[:2], outside[3, 5] = 1.0, 2.0
    assert projection_residual(inside, left, right) == 0
    assert projection_residual(outside, left, right) == 1


def test_history_is_the_observation_before():
    """Two observations with other weights in between, against gradients by autograd."""
    name, view, memory = "blocks.1.conv1.weight", on_digits("method=rgp"), {}
    analysis = ProjectionResidual(name, rank=4, batch=60)
    batch = view.examples.batch(view.draw("batch", 60))

    def gradient():
        with view.unhooked(), torch.enable_grad():
            loss = view.task.loss(view.model(batch.inputs), batch.targets)
            found = torch.autograd.grad(loss, view.model.get_parameter(name))[0]
        return found.flatten(1).double().numpy()

    first, seen_first = gradient(), analysis.observe(view, memory)
    with torch.no_grad():
        for weight in view.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    second, seen_second = gradient(), analysis.observe(view, memory)
    assert np.isnan(seen_first["historical"])
    assert np.isnan(seen_first["self"])
    assert seen_second["historical"] == pytest.approx(literal(second, first, 4), rel=1e-3)
    assert seen_second["self"] == pytest.approx(literal(second, second, 4), rel=1e-3)
    assert seen_second["historical"] > seen_second["self"]


def test_a_rank_that_leaves_nothing_and_a_parameter_that_is_not_there_are_refused():
    view = on_digits("method=rgp")
    with pytest.raises(ConfigError, match="below 9, the smaller side of stem.weight; got 9"):
        ProjectionResidual("stem.weight", rank=9, batch=10).observe(view, {})
    with pytest.raises(ConfigError, match="Did you mean stem.weight"):
        ProjectionResidual("stem.wait", rank=2, batch=10).observe(view, {})
    with pytest.raises(ConfigError, match="rank >= 1"):
        ProjectionResidual("stem.weight", rank=0, batch=10)
