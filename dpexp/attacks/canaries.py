"""White-box canaries: made-up gradients that join a run, and how loudly each is heard.

A canary is an example whose gradient the attacker chooses: far longer than the clip norm, in a
direction of its own. It takes part in each step by its own coin, with the run's probability q.
The attacker is the one that differential privacy is about: it knows every real example and who was
drawn, sees all noisy releases, and does not know whether, and at which steps, a canary took part.
So what it hears of a canary at a step is

    <release - the real examples' clipped sum, canary's direction> / C      1 if it took part, or 0,
                                                                            plus noise
summed over releases and steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpexp.attacks.canaries_wrapped import Wrapped
from dpexp.attacks.directions import KINDS, Directions
from dpexp.privacy.seeds import generator
from dpexp.types import (
    Carrier,
    ConfigError,
    Key,
    Method,
    PublicGradients,
    Release,
    Size,
    State,
    Tap,
)

TOO_LONG = 100.0
"""A canary's norm before clipping, in clip norms (ours): what is not clipped stands out."""

Blocks = Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True)
class Overheard:
    """A layer's carrier that remembers what the real examples added to their sum.

    Attributes:
        carrier: the layer's.
        heard: the real examples' clipped sum by block, so far; written to.
        key: this block's.
    """

    carrier: Carrier
    heard: dict[Key, Tensor]
    key: Key

    def squared_norms(self) -> Tensor:
        """Bound the squared l2 norm of every example's block from above, [n] in float64."""
        return self.carrier.squared_norms()

    def measured(self) -> tuple[Size, Overheard]:
        """Give every example's size, and what to hold until the weights are known."""
        size, carrier = self.carrier.measured()
        return size, Overheard(carrier, self.heard, self.key)

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the examples' blocks to their sum, to the last bit as if nobody listened."""
        before = total.clone()
        self.carrier.add_to(total, weights)
        self.heard[self.key] = self.heard.get(self.key, 0) + (total - before)

    def each(self) -> Tensor:
        """Form every example's block side by side."""
        return self.carrier.each()

    def keep(self, mask: Tensor) -> Overheard:
        """Drop the examples where mask [n] is False."""
        return Overheard(self.carrier.keep(mask), self.heard, self.key)

    def widened(self) -> Overheard:
        """Give the same vectors in float64."""
        return Overheard(self.carrier.widened(), self.heard, self.key)


class Canaried(Wrapped):
    """A method with canaries among its examples; all else is the method's own.

    Of several ranks the first one adds the canaries, and it subtracts its own examples only: the
    scores are noisier then, and the bounds from them as valid.
    """

    def __init__(
        self,
        method: Method,
        *,
        kind: str,
        included: Tensor,
        sampling_prob: float,
        clip_norm: float,
        batch_size: int,
        seed: int,
    ) -> None:
        """Put canaries in.

        Args:
            method: what is audited.
            kind: "dirac" (a coordinate each) or "random" (a direction each).
            included: which canaries are examples of the run, [m], bool.
            sampling_prob: q, with which such a one takes part in a step.
            clip_norm: as `releases` takes it.
            batch_size: what sums are divided by before `reconstruct` sees them.
            seed: directions and draws derive from it.
        """
        super().__init__(method)
        self._draw_directions, self._included = KINDS[kind], included
        self._sampling_prob, self._clip_norm = sampling_prob, clip_norm
        self._batch_size, self._seed = batch_size, seed
        self._directions: dict[tuple[str, int], Directions] = {}

    def start(self, model: nn.Module) -> State:
        """Begin with nothing heard.

        Raises:
            ConfigError: if the method does not release the sum of clipped vectors, in which a
                canary's direction would be found again.
        """
        state = super().start(model)
        for release in self.releases(state, self._clip_norm):
            if release.clip != "norm":
                raise ConfigError(
                    "Expected a method that clips examples' norms with canaries in gradients; this "
                    "one clips coordinates. Set audit.canaries=mislabelled."
                )
        device = next(model.parameters()).device
        scores = torch.zeros(len(self._included), dtype=torch.float64, device=device)
        return {**state, "step": 0, "scores": scores}

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Prepare the method's step, and toss the canaries' coins."""
        coins = torch.rand(
            len(self._included),
            dtype=torch.float64,
            generator=generator(self._seed, "canary/draw", state["step"]),
        )
        who = torch.nonzero(self._included & (coins < self._sampling_prob)).flatten()
        return {
            **super().prepare(model, state, public, gen),
            "who": who.to(state["scores"].device),
            "heard": {},
            "like": next(model.parameters()).new_empty(0),
        }

    def carry(self, state: State, layer: str, tap: Tap) -> Mapping[Key, Carrier]:
        """Carry what the method does, and listen to what becomes of it."""
        carried = super().carry(state, layer, tap)
        return {key: Overheard(carrier, state["heard"], key) for key, carrier in carried.items()}

    def crafted(self, state: State) -> tuple[int, Mapping[Key, Carrier]]:
        """Give the canaries that take part in this step, too long in every release."""
        who = state["who"]
        if not len(who):
            return 0, {}
        carried: dict[Key, Carrier] = {}
        for release, blocks, directions in self._heard_in(state):
            start = 0
            for key, shape in blocks.items():
                norm = TOO_LONG * release.clip_norm
                carried[key] = directions.carrier(who, start, shape, norm)
                start += math.prod(shape)
        return len(who), carried

    def _heard_in(self, state: State) -> list[tuple[Release, Blocks, Directions]]:
        """List releases with their blocks, in order, and the canaries' directions in them."""
        blocks, found = self.blocks(state), []
        for release in self.releases(state, self._clip_norm):
            own = {key: shape for key, shape in blocks.items() if key.release == release.name}
            dimension = sum(math.prod(shape) for shape in own.values())
            place = (release.name, dimension)
            if place not in self._directions:
                gen = generator(self._seed, f"canary/direction/{release.name}", dimension)
                self._directions[place] = self._draw_directions(
                    len(self._included), dimension, gen, state["like"]
                )
            found.append((release, own, self._directions[place]))
        return found

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Listen for the canaries, and reconstruct as the method does."""
        scores = state["scores"].clone()
        for release, blocks, directions in self._heard_in(state):
            left = [
                (self._batch_size * noisy[key] - state["heard"].get(key, 0)).flatten()
                for key in blocks
            ]
            scores += directions.inner(torch.cat(left)) / release.clip_norm
        gradients, after = super().reconstruct(state, noisy)
        return gradients, {
            "method": after["method"],
            "step": state["step"] + 1,
            "scores": scores,
        }
