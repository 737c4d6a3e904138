"""Three methods that are refused. Each of them claims DP-SGD's privacy and does not have it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor

from dpexp.methods.dpsgd import DPSGD
from dpexp.privacy.stated import Stated
from dpexp.types import Key, LayerGrads, PerExampleGrads, Release, State


class LayerWise(DPSGD):
    """Clips each parameter by itself, and declares the sensitivity of joint clipping."""

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return each parameter's gradient as a release of its own."""
        grads = super().per_example_grads(state, layer, layer_grads)
        return {Key(key.parameter, key.parameter): block for key, block in grads.items()}

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return each parameter's shape, in a release of its own."""
        return {Key(name, name): shape for name, shape in state["shapes"].items()}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare 1 in all. Wrong: each of k parameters may move by C, which is root k C."""
        share = len(state["shapes"]) ** -0.5
        return tuple(
            Release(name, prod(shape), clip_norm, sensitivity=share)
            for name, shape in state["shapes"].items()
        )


class Peeking(DPSGD):
    """Gives the noisy gradient the length that the exact sum had."""

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the whole gradient, clipped jointly."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]), dimension=size)]

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Return the sums, and remember their norm."""
        self._norm = sum(float(total.square().sum()) for total in sums.values()) ** 0.5
        return sums

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Scale to that norm. Wrong: it is computed from the private batch, without noise."""
        norm = sum(float(block.square().sum()) for block in noisy.values()) ** 0.5
        return {key.parameter: self._norm / norm * block for key, block in noisy.items()}, state


class Steered(DPSGD):
    """Takes shorter steps as the training error falls."""

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the whole gradient, clipped jointly."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]), dimension=size)]

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return whole gradients, and remember the error |softmax - target| of the last batch."""
        if layer == self._head:
            self._error = float(layer_grads.gradient("bias").materialize().abs().mean())
        return super().per_example_grads(state, layer, layer_grads)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Scale by that error. Wrong: it is computed from the private batch, without noise."""
        return {key.parameter: self._error * block for key, block in noisy.items()}, state
