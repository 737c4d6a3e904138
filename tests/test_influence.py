"""What one example may move: the clipped sums by the clip norm, and nothing where it is broken."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.powersgd import PowerSGD
from tests.steps import RandomNet, flat, rgp, sums_of

DRAWN = given(
    seed=st.integers(0, 2**31),
    groups=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 9), st.integers(2, 5), st.integers(1, 4)),
    log_scale=st.floats(-12, 30),
    log_weights=st.floats(-3, 4),
    log_clip=st.floats(-3, 3),
    which=st.sampled_from(["dpsgd", "rgp", "left", "random", "no residual", "powersgd"]),
)


@settings(max_examples=40, deadline=None)
@DRAWN
def test_adding_one_example_moves_the_sums_by_at_most_the_clip_norm(**drawn):
    assert_bounded(**drawn)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@DRAWN
def test_so_it_does_at_length(**drawn):
    assert_bounded(**drawn)


def assert_bounded(seed, groups, sizes, log_scale, log_weights, log_clip, which):
    hidden, classes, rank = sizes
    torch.manual_seed(seed)
    model = RandomNet(2 * groups, groups, hidden, classes)
    with torch.no_grad():
        model.head.weight *= 10**log_weights
    method = {
        "dpsgd": DPSGD("all", "head"),
        "rgp": rgp(1 + rank % min(2 * groups, hidden)),
        "left": rgp(1, carriers="left"),
        "random": rgp(1, carriers="random"),
        "no residual": rgp(1, residual=False),
        "powersgd": PowerSGD(1, warm_start=True, error_feedback=True, head="head"),
    }[which]
    x = torch.randn(6, 2 * groups, 4, 4)
    x[-1] *= 10**log_scale
    y = torch.randint(classes, (6,))
    clip_norm = 10**log_clip
    without, _ = sums_of(model, method, x[:5], y[:5], clip_norm, micro_batch=2)
    full, _ = sums_of(model, method, x, y, clip_norm, micro_batch=4)
    moved = float(torch.linalg.vector_norm(flat(full) - flat(without)))
    assert moved <= clip_norm * (1 + 1e-9)


def test_an_example_that_moves_the_head_alone_moves_it_by_at_most_the_clip_norm():
    torch.manual_seed(0)
    model = RandomNet(2, 1, 4, 3)
    with torch.no_grad():
        model.head.weight.zero_()  # so that no gradient reaches what is below
        model.hidden.bias.fill_(1e4)  # the head sees something large
    x, y = torch.randn(1, 2, 4, 4), torch.tensor([1])
    sums, outcome = sums_of(model, rgp(1, head_factor=0.01), x, y, 1.0, micro_batch=1)
    assert outcome.clipped == 1
    assert float(torch.linalg.vector_norm(flat(sums))) <= 1 + 1e-9
