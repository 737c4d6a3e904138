"""RGP with a core between public bases (ours, after arXiv 2106.09352 and 2102.12677).

For each weight matrix W [p, d] (a kernel flattened to [p, d k k]), from public examples alone and
once, before the first step:

    A <- sum_i dW_i dW_i^T,  B <- sum_i dW_i^T dW_i     over the public examples' gradients
    L [p, r], R [r, d] <- principal eigenvectors of A and B, seen through r random directions
    S [r, r] <- root mean square of the entries of L^T dW_i R^T, to the power `exponent`

and at every step, with what RGP does in between (clip jointly, sum, add noise):

    dM_i = (L^T dW_i R^T) / S                           [r, r]
    dW   <- L (dM / S) R

RGP's dL_i and dR_i hold (p + d) r numbers a layer, the core r r: the noise on the clipped vector
has that much less squared norm, at the price of an update that stays within two bases. Private
gradients lie near the principal subspace of public ones (gep, Section 3). Dividing by S before
clipping keeps a few large entries from taking all of C; with the second division the step is plain
descent on M in W + L (M / S) R.

S is scaled so that the public gradients' root mean square norm is 1: C is in that unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.methods.anchor import draw_public, has_random_labels
from dpexp.methods.head import head_blocks, head_grads
from dpexp.methods.selection import (
    OUTSIDE,
    head_parameters,
    matrices_and_head,
    matrix_of,
    one_release,
    require_rank,
    shapes_of,
)
from dpexp.models.matrices import matrix_parameters, require_embeddings, why_no_matrix
from dpexp.privacy.stated import Stated
from dpexp.types import (
    ConfigError,
    Key,
    LayerCallback,
    LayerGrads,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
    first_weight,
)

CORE = "core"
FLOOR = 1e-3  # ours: of the mean square of all entries, added to each; bounds what S may enlarge


class CoreRGP(Method):
    """Releases one vector a step: every layer's scaled core gradient and the scaled head."""

    def __init__(
        self,
        rank: int,
        exponent: float,
        head_scale: float,
        head: str,
        public_examples: int,
        public_labels: str | bool,
        embeddings: bool = False,
    ) -> None:
        """Set the options.

        Args:
            rank: r >= 1, at most the smaller side of the largest layer; smaller sides cap it.
            exponent: of the root mean square in S, in [0, 1]: 0 leaves the entries' proportions as
                they are, 1 makes them equally large.
            head_scale: factor > 0 on the classifier's gradient before clipping; as S, it is
                applied twice, so that the classifier's step shrinks by its square.
            head: the classifier's name in the model.
            public_examples: m >= 1.
            public_labels: "random", or "true", the public set's own.
            embeddings: whether tables of embeddings are reparametrized, too; rgp and lsg freeze
                them.

        Raises:
            ConfigError: for a value outside its range.
        """
        if not 0 <= exponent <= 1 or not head_scale > 0 or public_examples < 1:
            raise ConfigError(
                "Expected method.exponent in [0, 1], method.head_scale > 0 and "
                f"method.public_examples >= 1; got {exponent}, {head_scale} and {public_examples}."
            )
        self._rank, self._exponent = rank, exponent
        self._head_scale, self._head = head_scale, head
        self._embeddings = require_embeddings(embeddings)
        self.public_size = public_examples
        self._has_random_labels = has_random_labels("method.public_labels", public_labels)

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one vector, clipped jointly, that verification expects."""
        return [Stated("core", float(config["privacy"]["clip_norm"]))]

    @staticmethod
    def stated_public_examples(settings: Mapping[str, Any]) -> int:
        """Return the number of public examples that verification expects."""
        return settings["public_examples"]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Name the weight matrices and the classifier; biases and norms stay frozen."""
        return matrices_and_head(model, self._head, embeddings=self._embeddings)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why a parameter is neither a matrix nor the classifier's."""
        return why_no_matrix(model, parameter, embeddings=self._embeddings) or OUTSIDE

    def start(self, model: nn.Module) -> State:
        """Note the shapes; bases and scales come with the first step.

        Raises:
            ConfigError: if no layer is as large as the rank.
        """
        matrices = matrix_parameters(model, self._head, embeddings=self._embeddings)
        require_rank(self._rank, model, matrices)
        return {
            "matrices": shapes_of(model, matrices),
            "head": shapes_of(model, head_parameters(model, self._head)),
            "left": {},
            "right": {},
            "scale": {},
        }

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Find L, R and S before the first step, from public examples."""
        if state["scale"]:
            return state
        assert public is not None, "a method that takes public examples is given some"
        indices, labels = draw_public(
            public, self.public_size, state["head"], self._has_random_labels, gen
        )

        def visit(callback: LayerCallback) -> None:
            public.visit_layers(indices, labels, callback)

        like = first_weight(model)
        left, right = self._bases(state["matrices"], visit, gen, like)
        state = {**state, "left": left, "right": right}
        return {**state, "scale": self._scales(state, visit, like)}

    def _bases(
        self,
        matrices: Mapping[str, tuple[int, ...]],
        visit: Callable[[LayerCallback], None],
        gen: torch.Generator,
        like: Tensor,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Find the eigenvectors from A and B seen through r random directions a side.

        E[dW Q Q^T dW^T] = r dW dW^T for standard normal Q [d, r], so that no gradient is ever
        formed. Meanwhile p^2 + d^2 numbers are held for every layer at once.
        """
        sketches, seconds = {}, {}
        for name, shape in matrices.items():
            p, d = shape[0], prod(shape[1:])
            sketches[name] = [
                torch.randn(size, generator=gen, device=like.device, dtype=like.dtype)
                for size in ((p, min(self._rank, p)), (min(self._rank, d), d))
            ]
            seconds[name] = like.new_zeros(p, p), like.new_zeros(d, d)

        def add(layer: str, layer_grads: LayerGrads) -> None:
            name = matrix_of(layer, layer_grads, matrices)
            if name is not None:
                to_left, to_right = sketches[name]
                columns = layer_grads.left(to_right).materialize().transpose(0, 1).flatten(1)
                rows = layer_grads.right(to_left).materialize().flatten(0, 1)
                seconds[name][0].addmm_(columns, columns.T)
                seconds[name][1].addmm_(rows.T, rows)

        visit(add)
        total = sum(float(each.abs().sum()) for two in seconds.values() for each in two)
        if not 0 < total < math.inf:
            raise ConfigError(
                "Expected gradients of public examples that are finite and not all zero; their "
                f"second moments add up to {total}. Set another public set or model."
            )
        left, right = {}, {}
        for name in list(seconds):
            a, b = seconds.pop(name)
            left[name] = _principal(a, self._rank)
            right[name] = _principal(b, self._rank).T.contiguous()
        return left, right

    def _scales(
        self,
        state: State,
        visit: Callable[[LayerCallback], None],
        like: Tensor,
    ) -> dict[str, Tensor]:
        """Return S for every layer; the classifier's layers have one number each."""
        squares: dict[str, Tensor] = {}

        def add(layer: str, layer_grads: LayerGrads) -> None:
            name = matrix_of(layer, layer_grads, state["matrices"])
            if name is not None:
                part = _core(state, name, layer_grads).square().sum(0)
            else:  # as many entries as the layer has, equally scaled
                norms = (
                    layer_grads.gradient(key).norms_squared().sum()
                    for key in layer_grads.parameters
                )
                part = cast(Tensor, sum(norms))
            place = layer if name is None else _place_of(name, state)
            squares[place] = squares.get(place, 0) + part / self.public_size

        visit(add)
        sizes: Counter[str] = Counter()
        for key, shape in self.release_shapes(state).items():
            sizes[_place_of(key.parameter, state)] += prod(shape)
        floor = FLOOR * sum(each.sum() for each in squares.values()) / sum(sizes.values())
        places = {_place_of(name, state) for name in state["matrices"]}
        scale, norm = {}, like.new_zeros(())
        for layer, each in squares.items():
            mean = each / (sizes[layer] / each.numel())
            scale[layer] = (mean + floor).pow(self._exponent / 2)
            if layer not in places:
                scale[layer] = scale[layer] / self._head_scale
            norm += (each / scale[layer].square()).sum()
        return {layer: each * norm.sqrt() for layer, each in scale.items()}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return dM_i, or the classifier's scaled gradient."""
        weight = matrix_of(layer, layer_grads, state["matrices"])
        if weight is not None:
            core = _core(state, weight, layer_grads) / state["scale"][_place_of(weight, state)]
            return {Key(CORE, weight): MaterializedGrads(core)}
        return head_grads(CORE, layer, layer_grads, 1 / float(state["scale"][layer]))

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [r, r] for every layer, smaller where a side is, and the classifier's shapes."""
        shapes: dict[Key, tuple[int, ...]] = {}
        for name, shape in state["matrices"].items():
            sides = shape[0], prod(shape[1:])
            shapes[Key(CORE, name)] = tuple(min(self._rank, side) for side in sides)
        return shapes | head_blocks(CORE, state["head"])

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare the one vector, clipped jointly over all layers."""
        return one_release(CORE, self.release_shapes(state), clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Scale again, and put the cores back between their bases."""
        gradients = {}
        for key, value in noisy.items():
            name = key.parameter
            value = value / state["scale"][_place_of(name, state)]
            if name in state["matrices"]:
                value = state["left"][name] @ value @ state["right"][name]
                value = value.view(state["matrices"][name])
            gradients[name] = value
        return gradients, state


def _place_of(name: str, state: State) -> str:
    """Return what a parameter's scale stands under: its layer, or a matrix by its own name."""
    layer, _, own = name.rpartition(".")
    return name if name in state["matrices"] and own != "weight" else layer


def _core(state: State, name: str, layer_grads: LayerGrads) -> Tensor:
    """Form L^T dW_i R^T, [n, r, r]."""
    return state["left"][name].T @ layer_grads.left(state["right"][name]).materialize()


def _principal(second_moment: Tensor, rank: int) -> Tensor:
    """Return the eigenvectors of the largest eigenvalues, largest first, [m, min(rank, m)]."""
    vectors = torch.linalg.eigh(second_moment).eigenvectors
    return vectors[:, -min(rank, len(vectors)) :].flip(1).contiguous()
