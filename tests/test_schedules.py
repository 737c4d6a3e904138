"""What multiplies the learning rate."""

import pytest

from dpexp.training.schedules import InverseRoot, Milestones


def test_milestones_multiply_at_their_share_of_all_steps():
    by_fives = Milestones([0.3, 0.6, 0.8], 0.2)
    rates = [by_fives(step, 10) for step in range(10)]
    assert rates == pytest.approx([1, 1, 1, 0.2, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])
    assert {Milestones([], 1.0)(step, 7) for step in range(7)} == {1.0}


def test_the_inverse_root_counts_steps_from_one():
    assert [InverseRoot()(step, 9) for step in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
