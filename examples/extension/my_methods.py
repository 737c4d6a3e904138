"""Three methods of one's own: one release, two releases, and post-processing of a release.

Index legend: n examples, p outputs, d inputs, r rank. W is a layer's weight, flattened to [p, d].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.linalg import orthonormal_columns
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.selection import all_parameters, one_release, shapes_of
from dpexp.models.matrices import matrix_parameters
from dpexp.privacy.stated import Stated
from dpexp.types import (
    Key,
    LayerGrads,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
    full_name,
)


class Subspace(Method):
    """DP-SGD in random subspaces, drawn anew at every step.

    The bases are those of Gressmann et al. 2020 (arXiv 2011.04720), one per matrix:

        R     random [r, d], orthonormal rows        the same for all examples
        L_i   <- dW_i R^T                            [p, r]
        L_i   <- L_i / max(1, |L_i| / C)             jointly over all matrices and vectors
        L~    <- (sum_i L_i + N(0, sigma^2 C^2)) / B
        g     <- L~ R                                for the optimizer

    Biases, norms and the classifier are released whole, in the same vector.
    """

    def __init__(self, rank: int, head: str) -> None:
        """Set r >= 1, and the classifier's name in the model."""
        self._rank, self._head = rank, head

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one vector, clipped jointly; its dimension depends on the model."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]))]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Name every parameter."""
        return all_parameters(model)

    def start(self, model: nn.Module) -> State:
        """Return the shapes, and the width d of each matrix wider than the rank."""
        shapes = shapes_of(model, self.trainable(model))
        names = matrix_parameters(model, self._head)
        widths = {name: model.get_parameter(name).flatten(1).shape[1] for name in names}
        return {
            "shapes": shapes,
            "widths": {name: d for name, d in widths.items() if d > self._rank},
        }

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Draw R for every matrix, from this step's generator and no example."""
        like = next(model.parameters())
        bases = {}
        for name, d in state["widths"].items():
            drawn = torch.randn(d, self._rank, generator=gen, device=like.device, dtype=like.dtype)
            bases[name] = orthonormal_columns(drawn).T
        return {**state, "bases": bases}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return each matrix's L_i, and whole gradients of the rest."""
        blocks = {}
        for name in layer_grads.parameters:
            full = full_name(layer, name)
            if full in state["widths"]:
                blocks[Key("gradient", full, "left")] = layer_grads.left(state["bases"][full])
            elif full in state["shapes"]:
                blocks[Key("gradient", full)] = layer_grads.gradient(name)
        return blocks

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [p, r] for a matrix, and a parameter's own shape for the rest."""
        blocks = {}
        for name, shape in state["shapes"].items():
            if name in state["widths"]:
                blocks[Key("gradient", name, "left")] = (shape[0], self._rank)
            else:
                blocks[Key("gradient", name)] = shape
        return blocks

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare the one vector."""
        return one_release("gradient", self.release_shapes(state), clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return L~ R for a matrix, and the rest as it is."""
        gradients = {}
        for key, block in noisy.items():
            shape = state["shapes"][key.parameter]
            is_left = key.part == "left"
            gradients[key.parameter] = (
                (block @ state["bases"][key.parameter]).view(shape) if is_left else block
            )
        return gradients, state


class TwoClips(DPSGD):
    """DP-SGD with a clip norm for the classifier and one for all other layers.

    Group-wise clipping, He et al. 2022 (arXiv 2212.01539), in two groups k:

        g_ik  <- g_ik / max(1, |g_ik| / C_k)
        g~_k  <- (sum_i g_ik + N(0, sigma^2 C_k^2)) / B

    A step releases two vectors, each of sensitivity 1 in its own clip norm. Both of them count: one
    example moves them by root two together.
    """

    def __init__(self, head_clip: float, head: str) -> None:
        """Set the classifier's clip norm, > 0, and its name in the model."""
        super().__init__("all", head)
        self._head_clip, self._of_head = head_clip, f"{head}."

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the two vectors, each with its own clip norm."""
        return [
            Stated("body", float(config["privacy"]["clip_norm"])),
            Stated("head", float(config["method"]["head_clip"])),
        ]

    def _key(self, name: str) -> Key:
        return Key("head" if name.startswith(self._of_head) else "body", name)

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return whole gradients, each in its own group's release."""
        grads = super().per_example_grads(state, layer, layer_grads)
        return {self._key(key.parameter): block for key, block in grads.items()}

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return each parameter's shape, in its group."""
        return {self._key(name): shape for name, shape in state["shapes"].items()}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare the two vectors."""
        blocks = self.release_shapes(state)
        of = {
            name: {key: shape for key, shape in blocks.items() if key.release == name}
            for name in ("body", "head")
        }
        return one_release("body", of["body"], clip_norm) + one_release(
            "head", of["head"], self._head_clip
        )


class Filtered(DPSGD):
    """DP-SGD whose noisy gradients pass a low-pass filter.

    DOPPLER, Zhang et al. 2024 (arXiv 2408.13460), of first order, with bias correction:

        m_t   <- a m_{t-1} + (1 - a) (g~_t + g~_{t-1}) / 2
        c_t   <- a c_{t-1} + (1 - a)                         half of 1 - a at the first step
        g_t   <- m_t / c_t                                   for the optimizer

    The filter sees only what was released, so it costs no privacy: the state between steps may hold
    noisy gradients, and nothing of the examples besides.
    """

    def __init__(self, decay: float, head: str) -> None:
        """Set a in [0, 1), and the classifier's name in the model."""
        super().__init__("all", head)
        self._decay = decay

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the whole gradient, clipped jointly."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]), dimension=size)]

    def start(self, model: nn.Module) -> State:
        """Return the shapes, and a filter that has seen nothing."""
        return {**super().start(model), "mean": {}, "last": {}, "weight": 0.0}

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the filtered gradients, and the filter's new state."""
        gradients, _ = super().reconstruct(state, noisy)
        a, mean = self._decay, {}
        for name, gradient in gradients.items():
            before = state["last"].get(name, torch.zeros_like(gradient))
            held = state["mean"].get(name, torch.zeros_like(gradient))
            mean[name] = a * held + (1 - a) * (gradient + before) / 2
        weight = a * state["weight"] + (1 - a) * (1.0 if state["last"] else 0.5)
        filtered = {name: value / weight for name, value in mean.items()}
        return filtered, {**state, "mean": mean, "last": gradients, "weight": weight}
