"""Which entries a sparse method keeps: as many as it says, and none smaller than another."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpexp.linalg import places
from dpexp.methods.sparsity import is_most_important, most_important, num_kept, spread

VALUES = {
    "all differ": lambda gen, size: torch.randperm(size, generator=gen).float(),
    "many are equal": lambda gen, size: torch.randint(3, (size,), generator=gen).float(),
    "all are equal": lambda gen, size: torch.full((size,), 0.25),
    "most are zero": lambda gen, size: torch.randn(size, generator=gen).clamp(min=1.5) - 1.5,
    "some are infinite": lambda gen, size: torch.randn(size, generator=gen).abs().exp2() / 0.0,
    "tiny": lambda gen, size: 1e-44 * torch.rand(size, generator=gen),
}


@settings(max_examples=200, deadline=None)
@example("all differ", 10, 0.5, torch.float32, 0)  # as many are kept as are not
@given(
    st.sampled_from(sorted(VALUES)),
    st.integers(1, 400),
    st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.integers(0, 2**31),
)
def test_as_many_as_it_says_and_none_smaller_than_another(kind, size, p, dtype, seed):
    importance = VALUES[kind](torch.Generator().manual_seed(seed), size).to(dtype)
    is_kept = is_most_important(importance, p)
    count = num_kept(size, p)
    if is_kept is None:
        assert count == size
        return
    assert is_kept.dtype == torch.bool and int(is_kept.sum()) == count
    assert importance[is_kept].min() >= importance[~is_kept].max()
    if kind == "all differ" and dtype != torch.bfloat16:
        assert places(is_kept).equal(most_important(importance, p))


@pytest.mark.parametrize("lost", [1, 30, 100])
def test_weights_that_are_lost_count_as_the_most_important(lost):
    """A run that diverges ends for that reason, and not for a shape."""
    importance = torch.rand(100)
    importance[:lost] = math.nan
    is_kept = is_most_important(importance, 0.5)
    assert int(is_kept.sum()) == 50
    assert is_kept[:lost].all() or lost == 100


def test_a_lost_weight_beside_equal_ones():
    """Two fours make up for one that is lost, by number alone."""
    is_kept = is_most_important(torch.tensor([math.nan, 5, 4, 4, 1]), 0.4)
    assert int(is_kept.sum()) == 3 and is_kept[:2].all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 300), st.floats(0, 1), st.integers(0, 2**31))
def test_kept_values_return_to_their_places(size, share, seed):
    gen = torch.Generator().manual_seed(seed)
    is_kept = torch.rand(size, generator=gen) < share
    values = torch.randn(size, generator=gen)
    assert places(is_kept).equal(is_kept.nonzero().flatten())
    assert spread(values[is_kept], is_kept).equal(values * is_kept)
