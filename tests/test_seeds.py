"""Generators that are independent and replayable."""

import pytest
import torch
from scipy import stats

from dpexp.seeds import generator, seed_default, spawned


@pytest.mark.parametrize("change", [{"seed": 6}, {"axis": "sampling"}, {"index": 8}])
def test_a_generator_depends_on_seed_axis_and_index(change):
    axes = {"seed": 5, "axis": "noise", "index": 7}
    first = torch.randn(8, generator=generator(**axes))
    assert torch.equal(first, torch.randn(8, generator=generator(**axes)))
    assert not torch.equal(first, torch.randn(8, generator=generator(**axes | change)))


def test_a_generators_whole_state_comes_from_its_name():
    """Torch on the CPU keeps only 32 bits of a seed; two names must not meet by that."""
    ours = generator(5, "noise", 7)
    theirs = torch.Generator().manual_seed(ours.initial_seed())
    assert not torch.equal(torch.rand(8, generator=ours), torch.rand(8, generator=theirs))
    drawn = torch.randn(100_000, generator=generator(5, "noise", 7), dtype=torch.float64)
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_generator_depends_on_its_name_too():
    draws = [
        torch.randn(8, device="cuda", generator=generator(5, "noise", step, "cuda"))
        for step in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_what_draws_without_a_generator_gets_the_whole_state_too():
    """A seed alone fills 32 bits of it on a CPU."""
    before = torch.get_rng_state()
    try:
        for step in (1, 2):
            seed_default(5, "forward/0", step)
            masks = torch.rand(8)
            assert torch.equal(masks, torch.rand(8, generator=generator(5, "forward/0", step)))
    finally:
        torch.set_rng_state(before)


def test_spawned_generators_are_independent_and_replayable():
    def drawn(gen, count):
        return torch.stack([torch.randn(50_000, generator=g) for g in spawned(gen, count)])

    gen = generator(0, "noise", 0)
    first, second = drawn(gen, 3), drawn(gen, 3)
    assert torch.equal(first, drawn(generator(0, "noise", 0), 3))
    assert torch.equal(first[:2], drawn(generator(0, "noise", 0), 2))
    everything = torch.cat([first, second])
    apart = everything.corrcoef() - torch.eye(6)
    assert apart.abs().max() < 5 / 50_000**0.5
    assert stats.kstest(everything.flatten().numpy(), "norm").pvalue > 1e-4
    assert not torch.equal(first, drawn(generator(0, "noise", 1), 3))


def test_spawned_generators_hang_on_all_of_four_draws_of_63_bits():
    """A short key would let two blocks of a long run share their noise."""
    gen, twin = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    words = torch.randint(2**63 - 1, (4,), generator=twin).tolist()
    key = sum(word << 63 * place for place, word in enumerate(reversed(words)))
    for k, one in enumerate(spawned(gen, 2)):
        assert torch.equal(one.get_state(), generator(key, "spawned", k).get_state())
    assert torch.equal(gen.get_state(), twin.get_state())
