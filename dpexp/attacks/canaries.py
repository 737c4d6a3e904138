"""White-box canaries: crafted gradients and their scores.

A canary is an example whose gradient the attacker chooses: far longer than the clip norm, in its
own direction. It is sampled in each step with the run's probability q. The attacker is that of
differential privacy: it knows every real example and which were sampled, and sees all noisy
releases, but does not know whether or when a canary was sampled. A canary's score is the sum, over
releases and steps, of

    <release - the real examples' clipped sum, canary's direction> / C      1 if it was sampled,
                                                                            else 0, plus noise

Where noise is correlated across steps (`dpexp.privacy.correlation`) a canary is of a group as any
example is, and C undoes the correlation first: C (releases) has fresh noise and holds c_i of a
canary's vector i steps after it was sampled. Of a canary that may have been sampled i steps ago, a
step's term is c_i times the score of C (releases).

Where a count of the examples within the clip norm is released too (`dpexp.methods.adaptive`), a
canary is far too long at some steps and just short enough at others, as a coin known to the
attacker says. So each canary has a pattern of its own in the counts, and a second score:

    (count - the real examples' count) * (1/2 or -1/2) * 4                  the same
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.attacks.directions import KINDS, Directions
from dpexp.methods.wrapped import Wrapped
from dpexp.privacy import Mechanism
from dpexp.privacy.correlation import Correlation
from dpexp.privacy.seeds import generator
from dpexp.types import (
    ConfigError,
    Key,
    LayerGrads,
    Losses,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    Size,
    State,
    first_weight,
)

TOO_LONG = 100.0
"""A canary's norm before clipping, in clip norms (ours): a missing clip becomes obvious."""

WITHIN = 0.95
"""Norm of a canary that is to count as lying within the clip norm (ours)."""

SCORES = ("scores", "counts")
"""Entries of the state that hold canaries' scores, by kind."""

Blocks = Mapping[Key, tuple[int, ...]]


def weights_of(scores: np.ndarray) -> np.ndarray:
    """Return weights [kinds] for the sum of several kinds of scores, the less noisy the larger.

    Args:
        scores: [n, kinds], with the same expectation of each kind.
    """
    spread = np.maximum(scores.var(0), np.finfo(float).tiny)
    return spread[0] / np.maximum(spread, 1e-12 * spread[0])


@dataclass(frozen=True)
class RecordedGrads:
    """A layer's per-example gradients that record the real examples' clipped sum.

    Attributes:
        grads: the layer's.
        sums: the real examples' clipped sum so far, by block; updated in place.
        key: this block's.
    """

    grads: PerExampleGrads
    sums: dict[Key, Tensor]
    key: Key

    def norms_squared(self) -> Tensor:
        """Return an upper bound on every example's squared l2 norm, [n] in float64."""
        return self.grads.norms_squared()

    def measured(self) -> tuple[Size, RecordedGrads]:
        """Return every example's size, and the gradients to keep until the weights are known."""
        size, grads = self.grads.measured()
        return size, RecordedGrads(grads, self.sums, self.key)

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the examples' blocks to their sum, bit for bit as without the record."""
        before = total.clone()
        self.grads.add_to(total, weights)
        self.sums[self.key] = self.sums.get(self.key, 0) + (total - before)

    def materialize(self) -> Tensor:
        """Return every example's block, [n, ...]."""
        return self.grads.materialize()

    def select(self, mask: Tensor) -> RecordedGrads:
        """Drop the examples where mask [n] is False."""
        return RecordedGrads(self.grads.select(mask), self.sums, self.key)

    def double(self) -> RecordedGrads:
        """Return the same vectors in float64."""
        return RecordedGrads(self.grads.double(), self.sums, self.key)


class Canaried(Wrapped):
    """Adds canaries to a method's examples.

    With several ranks, rank 0 adds the canaries and subtracts only its own examples. The scores are
    noisier then, and the bounds from them remain valid.
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
        """Set up the canaries.

        Args:
            method: to audit.
            kind: "dirac" (one coordinate each) or "random" (one direction each).
            included: which canaries are examples of the run, [m], bool.
            sampling_prob: q, the probability that an included canary is sampled in a step.
            clip_norm: argument of `releases`.
            batch_size: divisor of the sums that `reconstruct` gets.
            seed: of directions and draws.
        """
        super().__init__(method)
        self._draw_directions, self._included = KINDS[kind], included
        self._sampling_prob, self._clip_norm = sampling_prob, clip_norm
        self._batch_size, self._seed = batch_size, seed
        self._directions: dict[tuple[str, int], Directions] = {}
        self._correlation = Correlation((1.0,))
        self._groups = torch.zeros(len(included), dtype=torch.int64)

    def correlate(self, mechanism: Mechanism, groups: Tensor | None = None) -> None:
        """Take part as examples do in a run with correlated noise.

        Args:
            mechanism: of the run.
            groups: of the canaries, [m]; None: drawn.
        """
        if mechanism.correlation is None:
            return
        self._correlation, self._sampling_prob = mechanism.correlation, mechanism.participation_prob
        if groups is None:
            gen = generator(self._seed, "canary/group", 0)
            groups = torch.randint(mechanism.bands, self._groups.shape, generator=gen)
        self._groups = groups

    def start(self, model: nn.Module) -> State:
        """Start the method, with all scores at zero.

        Raises:
            ConfigError: the method clips coordinates, which changes a canary's direction.
        """
        state = super().start(model)
        releases = self.releases(state, self._clip_norm)
        for release in releases:
            if release.clip == "coordinates":
                raise ConfigError(
                    "Expected a method that clips examples' norms with crafted gradients; this "
                    "one clips coordinates. Set audit.canaries=mislabelled."
                )
        device = first_weight(model).device
        scores = torch.zeros(len(self._included), dtype=torch.float64, device=device)
        kinds = SCORES if any(each.clip == "count" for each in releases) else SCORES[:1]
        bands = self._correlation.bands
        return {
            **state,
            "step": 0,
            **({} if bands == 1 else {"earlier": []}),
            **{kind: scores.clone() for kind in kinds},
        }

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Prepare the method's step, and sample the canaries."""
        draws = torch.rand(
            len(self._included),
            dtype=torch.float64,
            generator=generator(self._seed, "canary/draw", state["step"]),
        )
        is_due = self._groups == state["step"] % self._correlation.bands
        is_drawn = self._included & is_due & (draws < self._sampling_prob)
        sampled = torch.nonzero(is_drawn).flatten()
        coins = generator(self._seed, "canary/length", state["step"])
        is_within = torch.rand(len(self._included), generator=coins) < 0.5
        device = state["scores"].device
        return {
            **super().prepare(model, state, public, gen),
            "sampled": sampled.to(device),
            "half": (is_within.double() - 0.5).to(device),
            "sums": {},
            "like": first_weight(model).new_empty(0),
        }

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return the method's per-example gradients, which record their sums."""
        per_example = super().per_example_grads(state, layer, layer_grads)
        return _recorded(per_example, state["sums"])

    def per_example_scalars(self, state: State, losses: Losses) -> Mapping[Key, PerExampleGrads]:
        """Return the method's blocks from losses, which record their sums."""
        return _recorded(super().per_example_scalars(state, losses), state["sums"])

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return the canaries sampled in this step.

        They are longer than the clip norm of every release; where a count is released, some not.
        """
        sampled = state["sampled"]
        if not len(sampled):
            return 0, {}
        per_example: dict[Key, PerExampleGrads] = {}
        for release, blocks, directions in self._release_directions(state):
            start = 0
            for key, shape in blocks.items():
                norms = self._lengths(state)[sampled] * release.clip_norm
                per_example[key] = directions.grads(sampled, start, shape, norms)
                start += math.prod(shape)
        return len(sampled), per_example

    def _lengths(self, state: State) -> Tensor:
        """Return every canary's norm at this step, in clip norms, [m]."""
        lengths = torch.full_like(state["half"], TOO_LONG)
        return lengths.masked_fill(state["half"] > 0, WITHIN) if "counts" in state else lengths

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Compress as the method does, and note the real examples' count."""
        key = self._count_key(state)
        if key is not None:
            state["sums"][key] = sums[key] - state["half"][state["sampled"]].sum()
        return super().compress(state, sums)

    def _count_key(self, state: State) -> Key | None:
        releases = self.releases(state, self._clip_norm)
        counts = {each.name for each in releases if each.clip == "count"}
        return next((key for key in self.release_shapes(state) if key.release in counts), None)

    def _release_directions(self, state: State) -> list[tuple[Release, Blocks, Directions]]:
        """Return each release with its blocks, in order, and the canaries' directions in it."""
        shapes = self.release_shapes(state)
        result: list[tuple[Release, Blocks, Directions]] = []
        for release in self.releases(state, self._clip_norm):
            if release.clip == "count":
                continue
            blocks = {key: shape for key, shape in shapes.items() if key.release == release.name}
            dimension = sum(math.prod(shape) for shape in blocks.values())
            place = (release.name, dimension)
            if place not in self._directions:
                gen = generator(self._seed, f"canary/direction/{release.name}", dimension)
                self._directions[place] = self._draw_directions(
                    len(self._included), dimension, gen, state["like"]
                )
            result.append((release, blocks, self._directions[place]))
        return result

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Score the canaries, and reconstruct as the method does."""
        seen = torch.zeros_like(state["scores"])
        for release, blocks, directions in self._release_directions(state):
            residual = [
                (self._batch_size * noisy[key] - state["sums"].get(key, 0)).flatten()
                for key in blocks
            ]
            seen += directions.inner(torch.cat(residual)) / release.clip_norm
        said = {"step": state["step"] + 1, **self._scored(state, seen)}
        if (key := self._count_key(state)) is not None:
            heard = self._batch_size * noisy[key].double() - state["sums"].get(key, 0)
            said["counts"] = state["counts"] + 4 * state["half"] * heard
        gradients, after = super().reconstruct(state, noisy)
        return gradients, {"method": after["method"], **said}

    def _scored(self, state: State, seen: Tensor) -> dict[str, object]:
        """Return the scores after a step in whose release `seen` [m] is of each canary."""
        if self._correlation.bands == 1:
            return {"scores": state["scores"] + seen}
        bands, coefficients = self._correlation.bands, self._correlation.coefficients
        recent = [seen, *state["earlier"]][:bands]
        undone = sum(c * each for c, each in zip(coefficients, recent, strict=False))
        since = (state["step"] - self._groups) % bands  # steps since it may have been sampled
        weights = torch.tensor(coefficients, dtype=torch.float64)[since].to(seen.device)
        weights *= (since <= state["step"]).to(seen.device)
        scores = state["scores"] + weights * undone
        return {"scores": scores, "earlier": recent[: bands - 1]}


def _recorded(
    per_example: Mapping[Key, PerExampleGrads], sums: dict[Key, Tensor]
) -> dict[Key, PerExampleGrads]:
    """Return per-example gradients that record their clipped sums."""
    return {key: RecordedGrads(grads, sums, key) for key, grads in per_example.items()}
