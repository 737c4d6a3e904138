"""RGP: reparametrized gradient perturbation (Yu et al. 2021, arXiv 2106.09352).

Algorithm 1, for each weight matrix W [p, d] (a kernel flattened to [p, d k k], Section 2.1):

    Delta_t  <- W_t during warm-up, W_t - W_0 after            line 5
    L, R     <- power method on Delta_t, orthonormal           Algorithm 2
    dL_i     = dW_i R^T [p, r],  dR_i = L^T dW_i [r, d]        Theorem 2.1
    clip (dL_i, dR_i) of all layers jointly, sum, add noise    lines 10-13
    dW       <- dL R + L dR - L L^T dL R                       Eq. (3)

The classifier is not reparametrized. Its gradient, times `head_factor`, is part of the clipped
vector, and the optimizer uses its release unchanged, as in the authors' code.

Differences from the paper:
 1. Carrier gradients come from the layer's input and output gradient, so the forward pass is the
    ordinary one and W's own gradient is never formed; by Theorem 2.1 they are the same numbers.
 2. QR (`dpexp.linalg`) replaces Gram-Schmidt: the same span, more stable in floating point.
 3. Without warm-up, the first step still decomposes W, as there is no update yet.
 4. `carriers=left` trains dW = dL R alone, as the authors' released vision code does.
 5. Layers smaller than the rank use min(rank, p, d).
 6. `decompose` adds two choices for line 5 after warm-up, both from that code: W_t itself, its
    default, and W_t / |W_t| - W_0 / |W_0|, an option of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.linalg import power_iterations, random_bases, reparametrized_update
from dpexp.methods.head import head_blocks, head_gradients, head_grads
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
    LayerGrads,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
    first_weight,
    require_word,
)

CARRIERS = "carriers"


class RGP(Method):
    """Releases one vector a step: all layers' carrier gradients and the classifier's gradient."""

    def __init__(
        self,
        rank: int,
        carriers: str,
        power_iterations: int,
        warm_up_steps: int,
        decompose: str,
        residual: bool,
        head_factor: float,
        head: str,
        embeddings: bool = False,
    ) -> None:
        """Set the options.

        Args:
            rank: r >= 1, at most the smaller side of the largest layer.
            carriers: "both" (the paper), "left" (the authors' vision code) or "random" (both
                sides, drawn anew at every step: RGP-random).
            power_iterations: K >= 1 of Algorithm 2.
            warm_up_steps: T_warm-up >= 0.
            decompose: what is decomposed after warm-up: "update" (the paper), "directions" (the
                difference of the weights divided by their norms) or "weight".
            residual: False runs the forward pass with L R instead of W (Appendix C.2).
            head_factor: > 0, multiplies the classifier's gradient before clipping; it is not
                divided out later.
            head: the classifier's name in the model.
            embeddings: whether tables of embeddings are reparametrized, too; rgp and lsg freeze
                them.

        Raises:
            ConfigError: if a value is outside its range.
        """
        require_word("method.carriers", carriers, ("both", "left", "random"))
        require_word("method.decompose", decompose, ("update", "directions", "weight"))
        if power_iterations < 1 or warm_up_steps < 0 or not head_factor > 0:
            raise ConfigError(
                "Expected method.power_iterations >= 1, method.warm_up_steps >= 0 and method."
                f"head_factor > 0; got {power_iterations}, {warm_up_steps} and {head_factor}."
            )
        self._rank = rank
        self._carriers = carriers
        self._power_iterations = power_iterations
        self._warm_up_steps = warm_up_steps
        self._decompose = decompose
        self._residual = residual
        self._head_factor = head_factor
        self._head, self._embeddings = head, require_embeddings(embeddings)

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        found, warm_up = {}, settings["warm_up_steps"]
        if max(warm_up, 1) >= steps:
            found["decompose"] = f"method.warm_up_steps={warm_up} in a run of {steps} steps"
        if settings["decompose"] == "weight":
            found["warm_up_steps"] = "method.decompose=weight"
        if settings["carriers"] == "random":
            drawn = ("power_iterations", "warm_up_steps", "decompose")
            found |= dict.fromkeys(drawn, "method.carriers=random")
        return found

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one release that verification expects, clipped jointly."""
        return [Stated("carriers", float(config["privacy"]["clip_norm"]))]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the weight matrices and the classifier; the rest is frozen."""
        return matrices_and_head(model, self._head, embeddings=self._embeddings)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why a parameter is neither a matrix nor the classifier's."""
        return why_no_matrix(model, parameter, embeddings=self._embeddings) or OUTSIDE

    def start(self, model: nn.Module) -> State:
        """Return all shapes, and W_0 of all reparametrized layers if updates are decomposed.

        Raises:
            ConfigError: if no layer is as large as the rank.
        """
        matrices = matrix_parameters(model, self._head, embeddings=self._embeddings)
        require_rank(self._rank, model, matrices)
        initial = {}
        if self._uses_history:
            initial = {name: model.get_parameter(name).detach().clone() for name in matrices}
        return {
            "step": 0,
            "shapes": shapes_of(model, matrices),
            "head": shapes_of(model, head_parameters(model, self._head)),
            "initial": initial,
            "left": {},
            "right": {},
        }

    @property
    def _uses_history(self) -> bool:
        """Whether some step decomposes a difference from W_0."""
        return self._carriers != "random" and self._decompose != "weight"

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with this step's L and R (line 5), from weights already released."""
        left, right = {}, {}
        if self._carriers == "random":
            sides = [(shape[0], prod(shape[1:])) for shape in state["shapes"].values()]
            sizes = [(p, d, min(self._rank, p, d)) for p, d in sides]
            like = first_weight(model)
            drawn = random_bases(sizes, gen, like)
            for name, (of_outputs, of_inputs) in zip(state["shapes"], drawn, strict=True):
                left[name], right[name] = of_outputs, of_inputs
        else:
            deltas = self.deltas(model, state, public, gen)
            matrices = ((name, delta.flatten(1)) for name, delta in deltas)
            found = power_iterations(matrices, self._rank, self._power_iterations, gen)
            for name, of_outputs, of_inputs in found:
                left[name], right[name] = of_outputs, of_inputs
        return {**state, "step": state["step"] + 1, "left": left, "right": right}

    def deltas(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each layer's Delta_t, in its weight's shape; it uses no private data."""
        has_warmed_up = state["step"] >= max(self._warm_up_steps, 1)
        for name in state["shapes"]:
            weight = model.get_parameter(name).detach()
            if has_warmed_up and self._uses_history:
                initial = state["initial"][name]
                if self._decompose == "directions":
                    weight, initial = _direction(weight), _direction(initial)
                weight = weight - initial
            yield name, weight

    def forward_weights(self, state: State) -> Mapping[str, Tensor]:
        """Return L R for every layer if the residual weight is dropped (Eq. 12)."""
        if self._residual:
            return {}
        return {
            name: (state["left"][name] @ state["right"][name]).view(shape)
            for name, shape in state["shapes"].items()
        }

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return dL_i and dR_i, or the classifier's scaled gradient."""
        weight = matrix_of(layer, layer_grads, state["shapes"])
        if weight is not None:
            per_example = {Key(CARRIERS, weight, "left"): layer_grads.left(state["right"][weight])}
            if self._carriers != "left":
                per_example[Key(CARRIERS, weight, "right")] = layer_grads.right(
                    state["left"][weight]
                )
            return per_example
        return head_grads(CARRIERS, layer, layer_grads, self._head_factor)

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [p, r] and [r, d] for every layer, and the classifier's shapes."""
        shapes: dict[Key, tuple[int, ...]] = {}
        for name, shape in state["shapes"].items():
            p, d = shape[0], prod(shape[1:])
            rank = min(self._rank, p, d)
            shapes[Key(CARRIERS, name, "left")] = (p, rank)
            if self._carriers != "left":
                shapes[Key(CARRIERS, name, "right")] = (rank, d)
        return shapes | head_blocks(CARRIERS, state["head"])

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the one release, clipped jointly over all layers."""
        return one_release(CARRIERS, self.release_shapes(state), clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return full matrices (Eq. 3), and the classifier's release unchanged."""
        gradients = head_gradients(CARRIERS, noisy, state["head"])
        for name, shape in state["shapes"].items():
            left, right = state["left"][name], state["right"][name]
            d_left = noisy[Key(CARRIERS, name, "left")]
            if self._carriers == "left":
                update = d_left @ right
            else:
                d_right = noisy[Key(CARRIERS, name, "right")]
                update = reparametrized_update(left, right, d_left, d_right)
            gradients[name] = update.view(shape)
        return gradients, state


def _direction(weight: Tensor) -> Tensor:
    """Return the weight over its norm; zeros stay zero."""
    return weight / weight.norm().clamp_min(torch.finfo(weight.dtype).tiny)
