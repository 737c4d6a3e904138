"""DP-GRAPE: gradients are privatised after a random projection (Mulrooney et al. 2025).

arXiv 2506.15588. G_i [p, d] is example i's gradient of a weight matrix (a kernel flattened to
[p, d k k]), g_i its gradient of everything else that trains. At step t:

    P       <- N(0, 1/r), [d, r]                    a draw a matrix, anew every F steps
    v_i     <- (G_i P of all matrices, g_i)         one vector an example
    v_i     <- v_i / max(1, |v_i| / C)              clipped jointly
    v~      <- (sum_i v_i + N(0, sigma^2 C^2 I)) / B  B the expected batch size
    m       <- b1 m + (1 - b1) v~                   Adam's moments, [p, r] as the release
    s       <- b2 s + (1 - b2) v~^2
    u       <- m / (1 - b1^t) / (sqrt(s / (1 - b2^t)) + e)
    W       <- W - lr u P^T                         the same without P for what is not projected

E[P P^T] = I, so that G_i P P^T is G_i in the mean.

Sensitivity. P comes from the run's public seed and the step's number, not from any example. For
given P and weights v_i depends on example i alone, 1 / r included, and its clipped norm is at most
C. One example more or less moves the sum by at most C in l2, whatever P was drawn. Moments and P^T
see the noisy release and public numbers alone.

G_i P is computed as a product of the output gradient and the projected input (`LayerGrads.left`):
p r numbers an example are held, and G_i is never formed.

Differences from the paper:
 1. The side of the inputs is projected, whichever is longer. A matrix of d <= r is not, nor is the
    classifier.
 2. P is held for its F steps, r d numbers a matrix, and not drawn again from its seed where used.
 3. `moments=none` leaves the step to the run's own optimizer, in the space of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.methods.selection import one_release, shapes_of, trained_parameters, why_outside
from dpexp.models.matrices import matrix_parameters
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
    full_name,
    require_word,
)

PROJECTED = "projected"


class DPGRAPE(Method):
    """Releases one vector a step: all matrices' projected gradients, and what is not projected."""

    def __init__(
        self,
        rank: int,
        every: int,
        moments: str,
        betas: tuple[float, float],
        eps: float,
        train: str,
        head: str,
    ) -> None:
        """Set the options.

        Args:
            rank: r >= 1; matrices with at most r inputs are not projected.
            every: F >= 1, steps with one projection.
            moments: "adam", in the space of the release, or "none", which leaves the update to the
                run's optimizer.
            betas: b1 and b2 of Adam, each in [0, 1).
            eps: e of Adam, > 0.
            train: "all" parameters, or the "matrices" and the classifier.
            head: the classifier's name in the model.

        Raises:
            ConfigError: for a value outside its range.
        """
        require_word("method.moments", moments, ("adam", "none"))
        require_word("method.train", train, ("all", "matrices"))
        for name, value in {"rank": rank, "every": every}.items():
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"Expected method.{name} to be a whole number of at least 1; got {value!r}. "
                    f"Set method.{name}."
                )
        _check_adam(betas, eps)
        self._rank, self._every, self._train, self._head = rank, every, train, head
        self._has_moments = moments == "adam"
        self._betas, self._eps = betas, eps

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        if settings["moments"] != "none":
            return {}
        return dict.fromkeys(("betas", "eps"), "method.moments=none")

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one vector that verification expects, clipped jointly."""
        return [Stated("projected", float(config["privacy"]["clip_norm"]))]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the parameters that this method updates."""
        return trained_parameters(model, self._train, self._head)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why a parameter is not of the chosen kind."""
        return why_outside(model, parameter, self._train)

    def start(self, model: nn.Module) -> State:
        """Return all shapes, and moments that have seen nothing.

        Raises:
            ConfigError: if no matrix has more inputs than the rank.
        """
        shapes = shapes_of(model, matrix_parameters(model, self._head))
        matrices = {name: shape for name, shape in shapes.items() if prod(shape[1:]) > 1}
        largest = max((prod(shape[1:]) for shape in matrices.values()), default=0)
        if not matrices or self._rank >= largest:
            found, ways = "the model has none", "model"
            if matrices:  # of two inputs or more, so some rank is small enough
                found, ways = f"the largest has {largest}", "method.rank, model,"
            raise ConfigError(
                f"Expected a weight matrix besides the classifier with more inputs than rank="
                f"{self._rank}; {found}. Set {ways} or method=dpsgd."
            )
        projected = {
            name: shape for name, shape in matrices.items() if prod(shape[1:]) > self._rank
        }
        whole = [name for name in self.trainable(model) if name not in projected]
        return {
            "step": 0,
            "matrices": projected,
            "whole": shapes_of(model, whole),
            "projections": {},
            "first": {},
            "second": {},
        }

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with every matrix's P^T [r, d], drawn anew every F steps."""
        step, projections = state["step"], state["projections"]
        if step % self._every == 0:
            like = first_weight(model)
            projections = {
                name: torch.randn(
                    (self._rank, prod(shape[1:])),
                    generator=gen,
                    device=like.device,
                    dtype=like.dtype,
                ).div_(math.sqrt(self._rank))
                for name, shape in state["matrices"].items()
            }
        return {**state, "step": step + 1, "projections": projections}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return G_i P of a matrix, and whole gradients of the layer's other parameters."""
        per_example: dict[Key, PerExampleGrads] = {}
        for name in layer_grads.parameters:
            full = full_name(layer, name)
            if full in state["matrices"]:
                projection = state["projections"][full]
                per_example[Key(PROJECTED, full, PROJECTED)] = layer_grads.left(projection)
            elif full in state["whole"]:
                per_example[Key(PROJECTED, full)] = layer_grads.gradient(name)
        return per_example

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [p, r] for every projected matrix, and the others' shapes."""
        matrices = {
            Key(PROJECTED, name, PROJECTED): (shape[0], self._rank)
            for name, shape in state["matrices"].items()
        }
        return matrices | {Key(PROJECTED, name): shape for name, shape in state["whole"].items()}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the one release, clipped jointly over all parameters."""
        return one_release(PROJECTED, self.release_shapes(state), clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the update, projected back, and the moments behind it."""
        updates = {key.parameter: block for key, block in noisy.items()}
        if self._has_moments:
            updates, state = self._adam(updates, state)
        for name, shape in state["matrices"].items():
            updates[name] = (updates[name] @ state["projections"][name]).view(shape)
        return updates, state

    def _adam(
        self, releases: Mapping[str, Tensor], state: State
    ) -> tuple[dict[str, Tensor], State]:
        """Return Adam's direction in the space of the release, and the state with its moments."""
        (b1, b2), updates = self._betas, {}
        first: dict[str, Tensor] = {}
        second: dict[str, Tensor] = {}
        for name, gradient in releases.items():
            zero = torch.zeros_like(gradient)
            first[name] = torch.lerp(gradient, state["first"].get(name, zero), b1)
            second[name] = torch.lerp(gradient.square(), state["second"].get(name, zero), b2)
            mean = first[name] / (1 - b1 ** state["step"])
            root = (second[name] / (1 - b2 ** state["step"])).sqrt()
            updates[name] = mean / (root + self._eps)
        return updates, {**state, "first": first, "second": second}


def _check_adam(betas: Any, eps: Any) -> None:
    """Check Adam's settings.

    Raises:
        ConfigError: for a value outside its range.
    """
    try:
        is_right = all(0 <= b < 1 for b in betas) and len(betas) == 2 and 0 < eps < math.inf
    except TypeError:
        is_right = False
    if not is_right:
        raise ConfigError(
            "Expected method.betas to be two numbers in [0, 1), and method.eps above 0; got "
            f"betas={betas} and eps={eps}. Set method.betas or method.eps."
        )
