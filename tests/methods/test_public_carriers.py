"""RGP with the carriers of a public gradient."""

import pytest
import torch
from torch import nn

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.methods.rgp_public import PublicRGP
from dpexp.privacy import whole_batch
from dpexp.privacy.seeds import generator
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, MATRICES, NUM, TinyNet, data

CPU = torch.device("cpu")
PUBLIC = 300  # more than go through the model at once


def public_set(labelled=True):
    gen = torch.Generator().manual_seed(5)
    x = torch.randn(PUBLIC, 2, 6, 6, generator=gen, dtype=torch.float64)
    y = torch.randint(3, (PUBLIC,), generator=gen)
    return Examples(x, y if labelled else torch.full_like(y, -1))


def gradient_of(model, method, public):
    mechanism = whole_batch(NUM, method.releases(method.start(model), CLIP_NORM))
    return PrivateGradient(model, method, mechanism, Ranks(0, 1, CPU), NUM, public)


def make(**options):
    defaults = {
        "rank": 2,
        "power_iterations": 1,
        "head_factor": 0.1,
        "head": "head",
        "public_examples": PUBLIC,
        "public_labels": "random",
    }
    return PublicRGP(**defaults | options)


def test_a_total_is_the_sum_of_the_examples_gradients():
    model, public = TinyNet(), public_set()
    indices = torch.randint(PUBLIC, (280,), generator=torch.Generator().manual_seed(0))
    with gradient_of(model, make(), public) as gradient:
        total = gradient.passes(public).total(indices, None)
    outputs = model(public.inputs[indices])
    nn.functional.cross_entropy(outputs, public.targets[indices], reduction="sum").backward()
    assert set(total) == {
        "conv1.weight",
        "conv2.weight",
        "hidden.weight",
        "head.weight",
        "head.bias",
    }
    for name, value in total.items():
        torch.testing.assert_close(value, model.get_parameter(name).grad, **CLOSE)


def test_carriers_span_the_principal_subspace_of_the_public_gradient():
    model, public, (x, y) = TinyNet(), public_set(), data()
    # As many iterations as it takes, so that the start no longer shows.
    method = make(public_labels=True, power_iterations=300)
    with gradient_of(model, method, public) as gradient:
        got = gradient(method.start(model), Examples(x, y), 0)
    drawn = torch.randint(PUBLIC, (PUBLIC,), generator=generator(0, "method", 0, CPU))
    loss = nn.functional.cross_entropy(model(public.inputs[drawn]), public.targets[drawn])
    loss.backward()
    assert got.state["left"].keys() == set(MATRICES)
    for name, left in got.state["left"].items():
        right = got.state["right"][name]
        columns, _, rows = torch.linalg.svd(model.get_parameter(name).grad.flatten(1))
        columns, rows = columns[:, :2], rows[:2]
        torch.testing.assert_close(left @ left.T, columns @ columns.T, **CLOSE)
        torch.testing.assert_close(right.T @ right, rows.T @ rows, **CLOSE)


def test_a_step_with_public_carriers_is_the_literal_one():
    model, public, (x, y) = TinyNet(), public_set(), data()
    method = make(public_labels=True)
    with gradient_of(model, method, public) as gradient:
        got = gradient(method.start(model), Examples(x, y), 0)
    bases = {
        name: (got.state["left"][name], got.state["right"][name]) for name in got.state["left"]
    }
    expected = literal.rgp(model, bases, x, y, CLIP_NORM, NUM, "head", 0.1, "both")
    assert got.clipped > 0
    for name, value in expected.items():
        torch.testing.assert_close(got.gradients[name], value, **CLOSE)


def test_no_private_example_moves_the_carriers():
    model, public, (x, y) = TinyNet(), public_set(), data()
    seen = []
    for inputs in (x, 100 * x):
        method = make()
        with gradient_of(model, method, public) as gradient:
            seen.append(gradient(method.start(model), Examples(inputs, y), 0).state["left"])
    assert seen[0].keys() == seen[1].keys() == set(MATRICES)
    for name, left in seen[0].items():
        assert torch.equal(left, seen[1][name])


def test_public_examples_and_their_labels_are_drawn_afresh_at_every_step():
    model, public = TinyNet(), public_set()
    for labels in (True, "random"):
        method = make(public_labels=labels, public_examples=40)
        with gradient_of(model, method, public) as gradient:
            state = method.start(model)
            first, second = (
                method.prepare(
                    model, state, gradient.passes(public), generator(0, "method", at, CPU)
                )
                for at in (0, 1)
            )
        drawn = [torch.outer(*2 * [one["left"]["hidden.weight"][:, 0]]) for one in (first, second)]
        assert not torch.allclose(*drawn, atol=1e-3)


def test_random_labels_do_for_a_set_that_has_none():
    model, (x, y) = TinyNet(), data()
    for labels, refused in (("random", False), (True, True)):
        method = make(public_labels=labels)
        with gradient_of(model, method, public_set(labelled=False)) as gradient:
            if refused:
                with pytest.raises(ConfigError, match=r"Set method\.public_labels=random"):
                    gradient(method.start(model), Examples(x, y), 0)
            else:
                assert gradient(method.start(model), Examples(x, y), 0).gradients


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"public_examples": 0}, r"method\.public_examples >= 1; got 0"),
        ({"power_iterations": 0}, r"method\.power_iterations >= 1"),
        ({"public_labels": "some"}, r"public_labels to be one of random, true"),
    ],
)
def test_options_out_of_range_are_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        make(**options)
