"""Methods on a small nn.TransformerEncoder, whose projections are matrices as others are."""

import pytest
import torch
from torch import nn

from tests.contract.test_methods import blocks_alone, clipped
from tests.marks import few
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, data, make_rgp, step
from tests.methods.test_lsg import algorithm_1, kernel_sums, make, unimportant
from tests.steps import Setting, composed, distance

pytestmark = pytest.mark.filterwarnings("ignore")

IN_PROJ = "encoder.layers.0.self_attn.in_proj_weight"
MATRICES = {
    "embed.weight",
    IN_PROJ,
    "encoder.layers.0.self_attn.out_proj.weight",
    "encoder.layers.0.linear1.weight",
    "encoder.layers.0.linear2.weight",
    *(f"across.{each}_proj_weight" for each in "qkv"),
    "across.out_proj.weight",
}


class Encoder(nn.Module):
    """Classifies an image by its rows; they look at each other, and at a part of themselves."""

    def __init__(self, input_shape, num_classes, width=8):
        super().__init__()
        channels, _, side = input_shape
        self.embed = nn.Linear(channels * side, width)
        layer = nn.TransformerEncoderLayer(width, 2, 12, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.across = nn.MultiheadAttention(width, 2, kdim=5, vdim=4, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        h = self.encoder(self.embed(x.transpose(1, 2).flatten(2)))
        h = h + self.across(h, h[..., :5], h[..., :4], need_weights=False)[0]
        return self.head(h.mean(1))


def encoder():
    torch.manual_seed(0)
    return Encoder((2, 6, 6), 3).double()


def assert_close(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, **CLOSE)


@pytest.mark.parametrize("carriers", ["both", "left", "random"])
def test_rgp_is_its_algorithm(carriers):
    model, (x, y) = encoder(), data()
    got = step(model, make_rgp(carriers=carriers), x, y, micro_batch=4)
    left, right = got.state["left"], got.state["right"]
    assert left.keys() == MATRICES and left[IN_PROJ].shape == (24, 3)  # one matrix, not three
    bases = {name: (left[name], right[name]) for name in left}
    sides = "left" if carriers == "left" else "both"
    assert_close(got.gradients, literal.rgp(model, bases, x, y, CLIP_NORM, NUM, "head", 0.1, sides))
    assert got.clipped > 0


def test_lsg_is_its_algorithm():
    model, (x, y) = encoder(), data()
    got = step(model, make(), x, y, micro_batch=4)
    left, right = got.state["left"], got.state["right"]
    assert left.keys() == MATRICES
    frozen = {
        name: [unimportant(kernel_sums(model.get_parameter(name), axis), 0.5) for axis in (0, 1)]
        for name in left
    }
    bases = {name: (left[name], right[name]) for name in left}
    assert_close(got.gradients, algorithm_1(model, bases, frozen, x, y))


BY_BLOCKS = ["sparse_dpsgd", "rgp_core", "dp_powersgd", "dp_lora"]


@pytest.mark.parametrize("method", few(BY_BLOCKS, BY_BLOCKS[::3]))
def test_a_sum_is_that_of_every_examples_blocks_clipped_one_by_one(method):
    words = ["model=python", "target=tests.methods.test_attention.Encoder", "batch_size=12"]
    words += [] if method == "sparse_dpsgd" else ["method.rank=3"]
    setting = Setting(composed(method, *words), torch.float64)
    outcome = setting.step(micro_batch=5, noise=False)
    assert IN_PROJ in outcome.gradients or method == "dp_lora"
    drawn, releases = setting.mechanism.sample(0), setting.mechanism.releases
    expected = {key: torch.zeros_like(total) for key, total in setting.method.summed.items()}
    for index in drawn:
        for key, block in clipped(blocks_alone(setting, index), releases).items():
            expected[key] += block
    assert distance(setting.method.summed, expected) < 1e-11
