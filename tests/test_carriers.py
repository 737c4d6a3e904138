"""Batches of per-example vectors: their norms, however long they are and however they lie."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.carriers import Explicit, Masked, Outer
from dpexp.chunks import BUDGET_BYTES
from dpexp.taps.linear import LinearWeight


def test_float32_norms_of_long_vectors_keep_seven_digits():
    gen = torch.Generator().manual_seed(0)
    x, dh = torch.randn(2, 3, 1024, generator=gen), torch.randn(2, 3, 2048, generator=gen)
    whole = Outer(LinearWeight(), x, dh)
    entries = torch.arange(0, 2**21, 2)
    expected = whole.each().double().flatten(1)[:, entries].square().sum(1)
    for carrier in (
        Masked(whole, entries, (2048, 1024)),
        Explicit(whole.each().flatten(1)[:, ::2]),
    ):
        got = carrier.squared_norms().double()
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [2**10, 2**10 + 1, 9216, 2**16, 2**18])
def test_float32_norms_of_equal_entries_keep_nearly_six_digits(size):
    """Where rounding does not average out."""
    values = torch.full((2, size), 1 / 3)
    got = Explicit(values).squared_norms().double()
    torch.testing.assert_close(got, values.double().square().sum(1), rtol=2e-6, atol=0)


class Largest(TorchDispatchMode):
    """Watches how large the arrays are that are made on the way."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        storages = {arg.untyped_storage()._cdata for arg in args if isinstance(arg, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage()._cdata not in storages:
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("lies", ["plainly", "transposed", "with gaps"])
@pytest.mark.parametrize("num", [0, 1, 4, 7])
def test_long_vectors_are_squared_a_few_at_a_time(num, lies):
    gen = torch.Generator().manual_seed(0)
    values = torch.randn(num, 400, 600, generator=gen, dtype=torch.float64)
    values = {"plainly": values[:, :, :300], "transposed": values.mT, "with gaps": values[:, ::2]}[
        lies
    ]
    values = values.contiguous() if lies == "plainly" else values
    with Largest() as largest:
        squares = Explicit(values).squared_norms()
    torch.testing.assert_close(squares, values.square().sum((1, 2)), rtol=1e-12, atol=0)
    assert squares.shape == (num,) and 8 * largest.numbers <= BUDGET_BYTES["cpu"]
