"""The search for an example's influence on whole private steps of networks and methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.attacks.influence import OTHERS, Knobs, Moved, drawing
from dpexp.attacks.influence_forms import positions
from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.gep import GEP
from dpexp.methods.lsg import LSG
from dpexp.methods.powersgd import PowerSGD
from dpexp.methods.rgp import RGP
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.methods.wrapped import Wrapped
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.types import Key, Method, State


class TwoPositions(nn.Module):
    """A linear layer at two positions, and a classifier on the difference of its outputs."""

    def __init__(self, inputs: int, hidden: int) -> None:
        """Set the sizes."""
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, 2, inputs] to [n, 2]."""
        h = self.hidden(x)
        return self.head(h[:, 0] - h[:, 1])


class TwoChannels(nn.Module):
    """A convolution, and a classifier on the sum of its pixels with alternating signs."""

    def __init__(self, inputs: int, hidden: int) -> None:
        """Set the sizes."""
        super().__init__()
        self.hidden = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, 2]."""
        h = self.hidden(x).flatten(2)
        return self.head(h[:, :, ::2].sum(2) - h[:, :, 1::2].sum(2))


class _Caught(Wrapped):
    """A method that keeps its sums before the noise."""

    sums: Tensor

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Keep the sums."""
        self.sums = torch.cat([block.flatten() for block in sums.values()]).double()
        return super().compress(state, sums)


@dataclass(frozen=True)
class Network:
    """A small network trained with a method.

    Micro-batches hold one example. Clipping does not bound how examples of one micro-batch affect
    each other's rounding in the forward pass (docs/privacy/rounding.md).

    Attributes:
        new_method: returns the method.
        new_model: returns the network.
        shape: of an input; two positions, or an image.
    """

    new_method: Callable[[], Method]
    new_model: Callable[[], nn.Module] = lambda: TwoPositions(384, 192)
    shape: tuple[int, ...] = (2, 384)

    def moved(self, knobs: Knobs, seed: int) -> Moved:
        """Return how far the example changes a step's sum; `log_h` scales the classifier."""
        gen = drawing(seed, 1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(drawing(seed, 3).get_state())
            model = self.new_model()
        with torch.no_grad():
            model.get_parameter("head.weight").mul_(10.0 ** max(-30.0, min(15.0, knobs.log_h)))
        near = positions(self.shape, knobs, gen)
        apart = 1 + torch.randn(near.shape, generator=gen) * 10.0**knobs.log_gap
        paired = near[::2].repeat_interleave(2, 0)[: len(near)] * apart
        x = (paired if knobs.pairing > 0.3 else near) * 10.0**knobs.log_x
        x = x.T.reshape(self.shape) if len(self.shape) == 3 else x.reshape(self.shape)
        many = 0 if OTHERS[round(knobs.others)] == "none" else round(10.0**knobs.log_num_others)
        others = torch.randn(many, *self.shape, generator=gen)
        if OTHERS[round(knobs.others)] != "random":
            others = x * (1 + 1e-3 * others)
        xs = torch.cat([others, x[None]])
        if knobs.coarse > 0.5:
            xs = xs.bfloat16().float()
        clip_norm = 10.0**knobs.log_clip
        with_it = self._summed(model, xs, clip_norm)
        without = self._summed(model, xs[:-1], clip_norm) if many else 0.0
        distance = float(torch.linalg.vector_norm(with_it - without)) / clip_norm
        return Moved(math.inf if math.isnan(distance) else distance, True)

    def _summed(self, model: nn.Module, xs: Tensor, clip_norm: float) -> Tensor:
        method = _Caught(self.new_method())
        state = method.start(model)
        mechanism = whole_batch(len(xs), method.releases(state, clip_norm))
        examples = Examples(xs, torch.zeros(len(xs), dtype=torch.long))
        ranks = Ranks(0, 1, xs.device)
        with PrivateGradient(model, method, mechanism, ranks, 1, loss=_summed_loss) as gradient:
            gradient(state, examples, 0)
        return method.sums


def _summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def _rgp(carriers: str) -> RGP:
    return RGP(4, carriers, 1, 0, "update", True, 0.01, "head")


NETWORKS: Mapping[str, Network] = {
    "DP-SGD": Network(lambda: DPSGD("all", "head")),
    "DP-SGD, convolution": Network(
        lambda: DPSGD("all", "head"), lambda: TwoChannels(32, 32), (32, 4, 4)
    ),
    "Sparse DP-SGD": Network(lambda: SparseDPSGD(0.5, "importance", "all", "head")),
    "DP-PowerSGD": Network(lambda: PowerSGD(4, True, False, "head")),
    "RGP": Network(lambda: _rgp("both")),
    "RGP, left": Network(lambda: _rgp("left")),
    "RGP, convolution": Network(lambda: _rgp("both"), lambda: TwoChannels(64, 64), (64, 4, 4)),
    "LSG": Network(lambda: LSG(4, 0.5, "importance", 0, 1, 0.01, "head", 8, 8)),
    "B-GEP": Network(
        lambda: GEP(8, 8, "all", 1, "random", "random", False, 1.0, "head"),
        lambda: TwoPositions(64, 32),
        (2, 64),
    ),
}
"""Whole steps of the methods that sum gradients."""
