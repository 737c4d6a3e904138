"""Residuals and projection errors against literal sums, and analyses against plain autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dpexp.analysis.anchors import projection_error, residual
from dpexp.analysis.gradient_rank import GradientRank
from dpexp.analysis.projection import Projection
from dpexp.data import Examples
from dpexp.types import ConfigError
from tests.analysis.views import on_digits
from tests.methods import literal

M, BATCH = 12, 20
WORDS = ("method=nonprivate", "model=cnn", "public=shapes", "analysis=[gradient_rank,projection]")
WORDS = (*WORDS, f"analysis.gradient_rank.m={M}", "analysis.gradient_rank.k=4")
WORDS = (*WORDS, f"analysis.projection.m={M}")
OPTIONS = {"m": M, "groups": "all", "power_iterations": 1, "public_labels": "random"}


def matrix(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_residual_is_what_no_basis_vector_holds():
    gradients, basis = matrix(7, 11), literal.gram_schmidt(matrix(11, 3, seed=1)).T
    for gradient, got in zip(gradients, residual(gradients, basis), strict=True):
        left = gradient.clone()
        for vector in basis:
            left -= (gradient @ vector) * vector
        torch.testing.assert_close(got, left)


def test_the_error_is_that_of_the_mean_residual():
    gradients, basis = matrix(7, 11), literal.gram_schmidt(matrix(11, 3, seed=1)).T
    mean = sum(residual(g, basis) for g in gradients) / 7
    got = projection_error(gradients.mean(0), basis)
    assert got == pytest.approx(float(mean.norm() / gradients.mean(0).norm()), rel=1e-12)
    assert projection_error(basis[1] - 2 * basis[0], basis) == pytest.approx(0, abs=1e-12)
    assert projection_error(residual(gradients[0], basis), basis) == pytest.approx(1)


@pytest.fixture(scope="module")
def view():
    return on_digits(*WORDS)


def rows(view, examples):
    """Per-example gradients of all parameters side by side, by plain autograd, [n, p]."""
    with view.unhooked(), torch.enable_grad():
        each = literal.gradients(view.model, *examples)
    return torch.cat([each[name].flatten(1) for name in each], 1).double().numpy()


def anchor_basis(view, k):
    """Rows that span what one power iteration gives, from its Gaussian start."""
    batch = view.task.public.batch(torch.arange(M))
    labels = torch.randint(view.task.num_classes, (M,), generator=view.generator("labels"))
    anchors = rows(view, (batch.inputs, labels))
    gen = torch.Generator().manual_seed(view.generator(f"basis/{k}").initial_seed())
    start = torch.randn(k, anchors.shape[1], generator=gen).double().numpy()
    return np.linalg.qr((start @ anchors.T @ anchors).T)[0].T


def test_ranks_are_those_of_per_example_gradients_and_of_what_the_anchors_leave(view):
    found = GradientRank(batch=BATCH, k=4, **OPTIONS).observe(view, {})
    batch = view.examples.batch(view.draw("batch", BATCH))
    gradients, basis = rows(view, (batch.inputs, batch.targets)), anchor_basis(view, 4)
    left = gradients - gradients @ basis.T @ basis
    for name, each in (("all", gradients), ("residual/all", left)):
        values = np.linalg.svd(each, compute_uv=False)
        assert found[name] == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-3)


def test_errors_are_those_of_the_mean_gradient_and_fall_with_k(view):
    found = Projection(batch=BATCH, shares=[0.25, 1], **OPTIONS).observe(view, {})
    batch = view.examples.batch(view.draw("batch", BATCH))
    with view.unhooked(), torch.enable_grad():
        loss = F.cross_entropy(view.model(batch.inputs), batch.targets)
        mean = torch.autograd.grad(loss, list(view.model.parameters()))
    mean = torch.cat([part.flatten() for part in mean]).double()
    basis = torch.from_numpy(anchor_basis(view, 3))
    assert found["anchor/all/0.25"] == pytest.approx(projection_error(mean, basis), rel=1e-3)
    assert found["anchor/all/1"] < found["anchor/all/0.25"]
    assert found["random/all/1"] == pytest.approx((1 - M / len(mean)) ** 0.5, rel=1e-3)


def test_every_group_of_a_network_has_its_line():
    view = on_digits(*WORDS)
    options = OPTIONS | {"groups": "layers", "m": 8}
    ranks = GradientRank(batch=5, k=4, **options)
    seen = ranks.observe(view, {})
    groups = {name.rpartition(".")[0] for name, _ in view.model.named_parameters()}
    assert set(seen) == groups | {f"residual/{group}" for group in groups}
    traces = {name: np.array([value, 3 * value]) for name, value in seen.items()}
    traces |= {f"residual/{group}": 2 * traces[group] for group in groups}
    assert ranks.numbers(traces) == pytest.approx({f"ratio/{group}": 2.0 for group in groups})


def test_an_analysis_that_cannot_be_meant_says_what_to_set(view):
    """The settings are the analysis's own; the method's of the same names decide nothing here."""
    layers = OPTIONS | {"groups": "layers"}
    with pytest.raises(ConfigError, match=r"got k=1\. Set analysis\.gradient_rank\.k\."):
        GradientRank(batch=5, k=1, **layers).observe(view, {})
    with pytest.raises(ConfigError, match=r"got k=1\. Set analysis\.projection\.shares\."):
        Projection(batch=5, shares=[1 / M], **layers).observe(view, {})


def test_missing_labels_name_the_setting_of_the_analysis_that_wants_them(view):
    public = view.task.public
    bare = replace(view.task, public=Examples(public.inputs, torch.full((len(public),), -1)))
    analysis = Projection(batch=5, shares=[1], **OPTIONS | {"public_labels": True})
    with pytest.raises(ConfigError, match=r"Set analysis\.projection\.public_labels=random"):
        analysis.observe(replace(view, task=bare), {})


def test_public_images_that_are_not_there_are_asked_for(view):
    with pytest.raises(ConfigError, match=r"Expected 5000 public examples for analysis=projection"):
        Projection(batch=5, shares=[1], **OPTIONS | {"m": 5000}).observe(view, {})
    with pytest.raises(ConfigError, match="method that trains every parameter"):
        frozen = on_digits("method=dpsgd", "method.train=head")
        GradientRank(batch=5, k=4, **OPTIONS).observe(frozen, {})
    with pytest.raises(ConfigError, match=r"shares in \(0, 1\]"):
        Projection(batch=5, shares=[0.5, 1.5], **OPTIONS)
    with pytest.raises(ConfigError, match="Did you mean stages"):
        GradientRank(batch=5, k=4, **OPTIONS | {"groups": "stage"})
