"""A sum without clip weights: the ordinary gradient, in one product a layer."""

from dataclasses import dataclass

import pytest
import torch

from dpexp.grad_sample.conv2d import Conv2dWeight
from dpexp.grad_sample.geometry import Geometry
from dpexp.grad_sample.per_example import FactoredGrads


@dataclass(frozen=True)
class Counted(Conv2dWeight):
    """A convolution's rule that notes how many examples each product takes."""

    taken: tuple = ()

    def add_to(self, total, x, dh):
        self.taken[0].append(len(x))
        super().add_to(total, x, dh)


@pytest.mark.parametrize("stride", [1, 2])
def test_without_weights_a_layer_takes_one_product_with_the_sum_that_weights_of_one_give(stride):
    torch.manual_seed(0)
    x, side = torch.randn(6, 3, 64, 64), 64 // stride
    dh, products = torch.randn(6, 4, side, side), []
    rule = Counted(Geometry((3, 3), (stride, stride), (1, 1), (1, 1), 1), (products,))
    whole, weighted = torch.zeros(4, 3, 3, 3), torch.zeros(4, 3, 3, 3).double()
    FactoredGrads(rule, x, dh).add_to(whole, None)
    assert products == [6]
    FactoredGrads(rule, x, dh).add_to(weighted, torch.ones(6))
    assert len(products) > 2  # clipped sums keep their pieces, which bound the rounding
    torch.testing.assert_close(whole.double(), weighted, rtol=1e-4, atol=1e-3)
