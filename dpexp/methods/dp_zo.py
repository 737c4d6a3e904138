"""DP-ZO: only the length of a step along a random direction depends on the examples.

Tang et al. 2024 (arXiv 2401.04343), after MeZO (Malladi et al. 2023, arXiv 2305.17333). With losses
L_i of examples i, c the perturbation, and directions j = 1 .. k:

    z_j     <- N(0, I), in the space of the weights      anew at every step
    s_ij    = (L_i(theta + c z_j) - L_i(theta - c z_j)) / 2c
    s_i     <- clip(s_i), [k]                            see below
    s~      <- (sum_i s_i + noise) / B                   B the expected batch size
    theta   <- theta - lr (1/k) sum_j s~_j z_j

Two forward passes a direction, no backward pass, no hooks. E[z z^T] = I, so that without clipping
and as c goes to 0 the step is the gradient's in the mean.

Sensitivity. z_j come from the run's public seed and the step's number, not from any example. For
given z and theta the vector s_i depends on example i alone.

- Gaussian noise: s_i is clipped to l2 norm C, so that one example more or less moves the sum by at
  most C in l2. With k = 1 that clips |s_i| at C.
- Laplace noise: each |s_ij| is clipped at C, so that the sum moves by at most k C in l1. The run is
  then (eps, 0)-private: a step on a subsample costs ln(1 + q (e^(1/b) - 1)), b the scale over k C,
  and steps add up.

The step along z sees the noisy release and public numbers alone.

Differences from the paper:
 1. The k numbers of a step are clipped jointly under Gaussian noise, which is accounted as one
    release.
 2. Weights are put back from a copy and not by subtracting what was added, which rounds. Directions
    and copy take the memory of 1 + k models.
 3. The optimizer gets the estimate as it gets any gradient, so that momentum is possible.
 4. C bounds the slope s_ij. A bound on the difference of the two losses is 2c times as large.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.grad_sample.rounding import unit
from dpexp.methods.selection import TRAINED, shapes_of, trained_parameters
from dpexp.privacy.stated import Stated
from dpexp.types import (
    ConfigError,
    Key,
    Losses,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
    first_weight,
    require_word,
)

DIFFERENCES = "differences"
KEY = Key(DIFFERENCES, "directions")
FARTHEST = 1000
"""Largest perturbation (ours); a direction's entries are about 1."""


class DPZO(Method):
    """Releases k numbers a step: the clipped sums of loss differences along k directions."""

    is_forward_only = True

    def __init__(
        self, directions: int, perturbation: float, noise: str, train: str, head: str
    ) -> None:
        """Set the options.

        Args:
            directions: k >= 1.
            perturbation: c in (0, 1000].
            noise: "gaussian", or "laplace" for pure epsilon.
            train: "all" parameters, the "matrices" and the head, the "biases" with scales of norms
                and the head, or the "head" alone.
            head: the classifier's name in the model.

        Raises:
            ConfigError: for a value outside its range.
        """
        require_word("method.noise", noise, ("gaussian", "laplace"))
        require_word("method.train", train, TRAINED)
        if type(directions) is not int or directions < 1:
            raise ConfigError(
                "Expected method.directions to be a whole number of at least 1; got "
                f"{directions!r}. Set method.directions."
            )
        is_number = isinstance(perturbation, int | float) and not isinstance(perturbation, bool)
        if not is_number or not 0 < perturbation <= FARTHEST:
            raise ConfigError(
                f"Expected method.perturbation above 0 and at most {FARTHEST}; got "
                f"{perturbation!r}. Set method.perturbation."
            )
        self._count, self._perturbation = directions, perturbation
        self._is_laplace = noise == "laplace"
        self._train, self._head = train, head

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        return {"head": "method.train=all"} if settings["train"] == "all" else {}

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the step's k numbers; each counts by itself under Laplace noise."""
        k, clip_norm = config["method"]["directions"], float(config["privacy"]["clip_norm"])
        if config["method"]["noise"] == "laplace":
            return [Stated("differences", clip_norm, k, "laplace", "coordinates", k)]
        return [Stated("differences", clip_norm, dimension=k)]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the parameters that this method updates."""
        return trained_parameters(model, self._train, self._head)

    def start(self, model: nn.Module) -> State:
        """Return the parameters' shapes.

        Raises:
            ConfigError: for more directions than the trained parameters have, or a perturbation so
                small that the rounding of losses shows in their difference.
        """
        dtype = _precision(model)
        # Where a loss's rounding over c is as large as c (ours), in the digits that are told.
        least = float(f"{1.01 * sqrt(unit(dtype)):.3g}")
        if self._perturbation < least:
            raise ConfigError(
                f"Expected method.perturbation of at least {least:g}: a loss's rounding in "
                f"{dtype}, which depends on who shares its micro-batch, is divided by it; got "
                f"{self._perturbation:g}. Set method.perturbation"
                f"{'' if dtype == first_weight(model).dtype else ' or model.precision=float32'}."
            )
        shapes = shapes_of(model, self.trainable(model))
        size = sum(map(prod, shapes.values()))
        if self._count > size:
            raise ConfigError(
                f"Expected at most {size} directions, one for each number that trains; got "
                f"{self._count}. Set method.directions."
            )
        return {"shapes": shapes, "directions": {}}

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with this step's directions, [k, ...] for every parameter."""
        like = first_weight(model)
        directions = {
            name: torch.randn(
                (self._count, *shape), generator=gen, device=like.device, dtype=like.dtype
            )
            for name, shape in state["shapes"].items()
        }
        return {**state, "directions": directions}

    def per_example_scalars(self, state: State, losses: Losses) -> Mapping[Key, PerExampleGrads]:
        """Return s_ij, [n, k]."""
        columns = []
        for j in range(self._count):
            direction = {name: each[j] for name, each in state["directions"].items()}
            plus = losses(direction, self._perturbation)
            minus = losses(direction, -self._perturbation)
            columns.append((plus - minus) / (2 * self._perturbation))
        like = next(iter(state["directions"].values()))
        return {KEY: MaterializedGrads(torch.stack(columns, 1).to(like.dtype))}

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [k]."""
        return {KEY: (self._count,)}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the one release."""
        if self._is_laplace:
            sensitivity = float(self._count)
            noise, clip = "laplace", "coordinates"
            return (Release(DIFFERENCES, self._count, clip_norm, sensitivity, noise, clip),)
        return (Release(DIFFERENCES, self._count, clip_norm),)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the mean of the directions, each times its number; they are dropped then."""
        lengths = noisy[KEY] / self._count
        gradients = {
            name: torch.tensordot(lengths, each, dims=1)
            for name, each in state["directions"].items()
        }
        return gradients, {**state, "directions": {}}


def _precision(model: nn.Module) -> torch.dtype:
    """Return the least precise type of a forward pass: the weights', or a classifier's own."""
    weight = first_weight(model)
    tellers = [getattr(module, "precision_on", None) for module in model.modules()]
    return max([weight.dtype, *(tell(weight.device) for tell in tellers if tell)], key=unit)
