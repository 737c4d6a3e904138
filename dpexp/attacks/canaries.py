"""White-box canaries: crafted gradients that join a run, and their scores.

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
    ConfigError,
    Key,
    LayerGrads,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    Size,
    State,
)

TOO_LONG = 100.0
"""A canary's norm before clipping, in clip norms (ours): what is not clipped stands out."""

Blocks = Mapping[Key, tuple[int, ...]]


@dataclass(frozen=True)
class Overheard:
    """A layer's per-example gradients that record what the real examples added to their sum.

    Attributes:
        grads: the layer's.
        heard: the real examples' clipped sum by block, so far; written to.
        key: this block's.
    """

    grads: PerExampleGrads
    heard: dict[Key, Tensor]
    key: Key

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's block from above, [n] in float64."""
        return self.grads.norms_squared()

    def measured(self) -> tuple[Size, Overheard]:
        """Return every example's size, and what to hold until the weights are known."""
        size, grads = self.grads.measured()
        return size, Overheard(grads, self.heard, self.key)

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the examples' blocks to their sum, bit by bit as without the record."""
        before = total.clone()
        self.grads.add_to(total, weights)
        self.heard[self.key] = self.heard.get(self.key, 0) + (total - before)

    def materialize(self) -> Tensor:
        """Form every example's block side by side."""
        return self.grads.materialize()

    def select(self, mask: Tensor) -> Overheard:
        """Drop the examples where mask [n] is False."""
        return Overheard(self.grads.select(mask), self.heard, self.key)

    def double(self) -> Overheard:
        """Return the same vectors in float64."""
        return Overheard(self.grads.double(), self.heard, self.key)


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
        """Begin with an empty record.

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

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return what the method does, recording its sums."""
        per_example = super().per_example_grads(state, layer, layer_grads)
        return {key: Overheard(grads, state["heard"], key) for key, grads in per_example.items()}

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return the canaries that take part in this step, too long in every release."""
        who = state["who"]
        if not len(who):
            return 0, {}
        per_example: dict[Key, PerExampleGrads] = {}
        for release, blocks, directions in self._heard_in(state):
            start = 0
            for key, shape in blocks.items():
                norm = TOO_LONG * release.clip_norm
                per_example[key] = directions.grads(who, start, shape, norm)
                start += math.prod(shape)
        return len(who), per_example

    def _heard_in(self, state: State) -> list[tuple[Release, Blocks, Directions]]:
        """List releases with their blocks, in order, and the canaries' directions in them."""
        blocks, found = self.release_shapes(state), []
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
        """Score the canaries, and reconstruct as the method does."""
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
