"""What counts as a parameter that was written to as examples passed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.training.unwritten import look_at, require_unwritten
from dpexp.types import ConfigError

KINDS = {
    "float32": lambda size: torch.randn(size, 3),
    "float64": lambda size: torch.randn(size).double(),
    "bfloat16": lambda size: torch.randn(size, 1).bfloat16(),
    "columns": lambda size: torch.randn(size, 4)[:, ::2],
    "within another": lambda size: torch.randn(size + 1)[1:],
    "a number": lambda size: torch.randn(()),
}


def model_of(kind, size):
    model = nn.Module()
    model.before = nn.Parameter(torch.ones(3))
    model.weight = nn.Parameter(KINDS[kind](size))
    return model


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 40), st.integers(0, 2**31))
def test_one_number_that_changes_in_its_last_bit_is_noticed(kind, size, seed):
    torch.manual_seed(seed)
    model = model_of(kind, size)
    before = look_at(model)
    assert look_at(model) == before
    held = model.weight.data
    place = tuple(int(torch.randint(length, ())) for length in held.shape)
    was = held[place].clone()
    held[place] = was * (1 + 2 * torch.finfo(held.dtype).eps)  # not counted as a write
    with pytest.raises(ConfigError, match="'weight' is written to"):
        require_unwritten(before, model)
    held[place] = was
    require_unwritten(before, model)


@pytest.mark.parametrize("kind", ["float32", "columns", "within another"])
def test_bits_that_change_in_pairs_are_noticed(kind):
    torch.manual_seed(0)
    model = model_of(kind, 10)
    before = look_at(model)
    model.weight.data.neg_()  # an even number of signs, which a hash by exclusive or cannot see
    with pytest.raises(ConfigError, match="'weight' is written to"):
        require_unwritten(before, model)
