"""Draws that are independent, replayable and of the stated probability."""

import numpy as np
import torch
from scipy import stats

from dpexp.privacy.sampling import poisson, shuffled


def inclusions(seed, steps, size, q):
    table = np.zeros((steps, size), dtype=bool)
    for step in range(steps):
        table[step, poisson(seed, step, size, q).numpy()] = True
    return table


def test_every_example_takes_part_with_the_stated_probability():
    steps, size, q = 1000, 400, 0.05
    table = inclusions(0, steps, size, q)
    assert stats.binomtest(int(table.sum()), table.size, q).pvalue > 1e-4
    per_example = stats.chisquare(table.sum(0), np.full(size, table.sum() / size)).pvalue
    assert per_example > 1e-4
    # Batch sizes are binomial: neither fixed nor spread more than coins spread.
    sizes = table.sum(1)
    assert 0.85 < sizes.var() / (size * q * (1 - q)) < 1.15


def test_sizes_of_draws_have_the_law_of_coins():
    """Up to the largest and down to the least: none is cut to fit, filled up or drawn anew."""
    steps, size, q = 4000, 400, 0.05
    sizes = [len(poisson(2, step, size, q)) for step in range(steps)]
    low, high = 8, 34  # each, with all beyond, is due six times
    law = stats.binom(size, q)
    due = [law.cdf(low), *law.pmf(range(low + 1, high)), law.sf(high - 1)]
    found = np.bincount(np.clip(sizes, low, high), minlength=high + 1)[low:]
    assert stats.chisquare(found, steps * np.array(due)).pvalue > 1e-4


def test_steps_are_drawn_independently():
    steps, size, q = 1000, 400, 0.2
    table = inclusions(1, steps, size, q)
    both = int((table[1:] & table[:-1]).sum())
    assert stats.binomtest(both, (steps - 1) * size, q * q).pvalue > 1e-4
    neighbours = int((table[:, 1:] & table[:, :-1]).sum())
    assert stats.binomtest(neighbours, steps * (size - 1), q * q).pvalue > 1e-4


def test_a_seed_gives_the_same_draws_in_any_order_and_another_seed_others():
    forward = [poisson(3, step, 500, 0.1) for step in range(10)]
    backward = [poisson(3, step, 500, 0.1) for step in reversed(range(10))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forward, backward, strict=True))
    assert not any(torch.equal(a, poisson(4, step, 500, 0.1)) for step, a in enumerate(forward))


def test_draws_may_be_empty_and_may_be_everything():
    empty = poisson(0, 0, 10, 1e-12)
    assert empty.dtype == torch.int64 and empty.shape == (0,)
    assert torch.equal(poisson(0, 0, 10, 1.0), torch.arange(10))


def test_shuffled_epochs_visit_every_example_once():
    batches = [shuffled(0, step, 103, 10) for step in range(22)]
    for epoch in (batches[:11], batches[11:]):
        assert torch.equal(torch.cat(epoch).sort().values, torch.arange(103))
    assert [len(batch) for batch in batches[:11]] == [10] * 10 + [3]
    assert not torch.equal(batches[0], batches[11])
