"""What multiplies the learning rate."""

import math

import pytest

from dpexp.training.schedules import InverseRoot, Milestones, require_rates
from dpexp.types import ConfigError


def test_milestones_multiply_at_their_share_of_all_steps():
    by_fives = Milestones([0.3, 0.6, 0.8], 0.2)
    rates = [by_fives(step, 10) for step in range(10)]
    assert rates == pytest.approx([1, 1, 1, 0.2, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])
    assert {Milestones([], 1.0)(step, 7) for step in range(7)} == {1.0}


def test_the_inverse_root_counts_steps_from_one():
    assert [InverseRoot()(step, 9) for step in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])


class Plateau:
    """Counts its calls."""

    calls = 0

    def __call__(self, step, num_steps):
        self.calls += 1
        return 0.99**self.calls


def test_a_schedule_that_counts_its_calls_is_refused_before_the_first_step():
    said = "schedule to follow from the step .*; Plateau gives 0.99 at step 0, and 0.9135"
    with pytest.raises(ConfigError, match=said):
        require_rates([0.1], Plateau(), 8)


def test_a_schedule_that_gives_nan_later_is_refused_there():
    later = []
    multiplier = require_rates([0.1], lambda step, num_steps: math.nan if later else 1.0, 8)
    later.append(1)
    with pytest.raises(ConfigError, match="<lambda> gives 1 at step 2, and nan when it is asked"):
        multiplier(2)


def test_a_schedule_that_follows_the_loss_is_refused_at_the_step_where_it_shows():
    loss = [2.0]

    def by_loss(step, num_steps):
        return 1.0 if loss[-1] > 1 else 0.5

    multiplier = require_rates([0.1], by_loss, 8)
    assert multiplier(0) == 1.0
    loss.append(0.9)
    with pytest.raises(ConfigError, match="by_loss gives 1 at step 1, and 0.5 when it is asked"):
        multiplier(1)
