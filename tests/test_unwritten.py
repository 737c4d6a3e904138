"""What counts as a parameter that was written to as examples passed."""

from itertools import combinations

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
    "channels": lambda size: torch.randn(size, 3, 3, 3).contiguous(
        memory_format=torch.channels_last
    ),
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


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["float32", "float64", "bfloat16", "columns", "within another", "channels"]),
    st.integers(2, 400),
    st.integers(0, 2**31),
)
def test_signs_that_change_in_pairs_are_noticed(kind, size, seed):
    torch.manual_seed(seed)  # an even number of signs, which exclusive or cannot see
    model = model_of(kind, size)
    before = look_at(model)
    held = model.weight.data
    places = torch.randperm(held.numel())[:2]
    numbers = held.flatten()
    numbers[places] *= -1
    held.copy_(numbers.view(held.shape))
    if numbers[places].sum() != 0:
        with pytest.raises(ConfigError, match="'weight' is written to"):
            require_unwritten(before, model)


def test_every_sign_that_changes_at_once_is_noticed():
    model = nn.Linear(8, 6, bias=False).double()
    before = look_at(model)
    model.weight.data.neg_()
    with pytest.raises(ConfigError, match="'weight' is written to"):
        require_unwritten(before, model)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["float32", "float64", "bfloat16", "within another", "channels"]),
    st.integers(2, 400),
    st.sampled_from(["two", "rolled", "sorted"]),
    st.integers(0, 2**31),
)
def test_numbers_that_change_places_are_noticed(kind, size, how, seed):
    torch.manual_seed(seed)
    model = model_of(kind, 8 * size)  # whole words of eight bytes, even where numbers are of two
    before = look_at(model)
    held = model.weight.data
    numbers = held.flatten()
    if how == "two":
        places = torch.randperm(len(numbers))[:2]
        numbers[places] = numbers[places.flip(0)]
    else:
        numbers = numbers.roll(1) if how == "rolled" else numbers.sort().values
    if torch.equal(numbers, held.flatten()):
        return
    held.copy_(numbers.view(held.shape))
    with pytest.raises(ConfigError, match="'weight' is written to"):
        require_unwritten(before, model)


@pytest.mark.parametrize("size", [2, 4, 10, 19])  # a square of words, and none to six beside it
def test_any_two_numbers_that_change_places_are_noticed(size):
    model = model_of("float64", size)
    before, held = look_at(model), model.weight.data
    for one, other in combinations(range(size), 2):
        was = held.clone()
        held[[one, other]] = held[[other, one]]
        with pytest.raises(ConfigError, match="'weight' is written to"):
            require_unwritten(before, model)
        held.copy_(was)


def test_what_holds_no_numbers_is_passed_over():
    model = nn.Linear(2, 2)
    model.none = nn.Parameter(torch.empty(0))
    model.register_buffer("neither", torch.empty(3, 0))
    require_unwritten(look_at(model), model)
