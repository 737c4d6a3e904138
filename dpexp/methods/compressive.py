"""Compressive SGD: a sparsified gradient, measured, noised and recovered (Farokhi 2020).

arXiv 2011.14572, Algorithms 1 to 3, for a convex loss of n parameters. At step k:

    g     <- mean of the examples' gradients, each coordinate within Xi      Assumption 1
    v     <- the kappa largest entries of g                                  Eq. (2)
    Psi   <- p x n, sqrt(p) Psi standard Gaussian                            Algorithm 2, line 2
    y     <- Psi v / (2 Xi kappa) + Laplace noise                            line 3
    v*    <- 2 Xi kappa CoSaMP(Psi, kappa, y)                                lines 4-5, Algorithm 1
    theta <- theta - rho_k v*                                                Algorithm 3

For all data, v has kappa entries within [-Xi, Xi]. Between any two data sets v / (2 Xi kappa)
therefore changes by at most 1 in l1, and Psi v / (2 Xi kappa) by at most the largest l1 norm of
Psi's columns. This bound does not decrease with the number of examples: one example can decide
which entries are kept, so all kappa places may change at once.

Differences from the paper:
 1. Xi is enforced by clamping each coordinate of every example's gradient, and of their sum over
    the expected batch size.
 2. The noise has scale max_j |Psi_j|_1 / eps, for the Psi that was drawn. The paper's scale,
    sqrt(p) / eps, is too small if a column's norm exceeds sqrt(p). The certificate states the
    epsilon of the paper's scale.
 3. The release is Psi v over that largest norm, times the expected batch size, so that the
    sensitivity is the same at every step and the trainer's division gives a mean.
 4. `psi=none` releases v itself, with noise of scale 2 Xi kappa / eps on all n coordinates. With
    `kappa=null`, which keeps all entries, this is our reading of the paper's run without
    sparsification, whose noise it does not print.
    `bound=example` gives that run the noise it needs: without a choice of entries one example
    changes the mean by at most n Xi / B in l1, not by 2 Xi n.
 5. Batches may be Poisson samples; Psi is drawn anew at every step either way.
 6. Only the model's head trains, where the loss is convex, whatever is below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.methods.cosamp import cosamp, keep_largest
from dpexp.methods.selection import head_parameters, shapes_of
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
from dpexp.warned import warn_caller

GRADIENT = "measurements"
MEASURED = Key(GRADIENT, "all", "psi")
"""The one released block, for all parameters together."""

LEAST_ROWS = 3
"""Least number of Psi's rows (Algorithm 2, line 1)."""


class Compressive(Method):
    """Releases p measurements of the mean gradient's kappa largest entries at every step."""

    def __init__(
        self,
        kappa: int | None,
        p: int,
        psi: str,
        bound: str,
        xi: float,
        batch_size: int,
        head: str,
    ) -> None:
        """Set the options.

        Args:
            kappa: entries to keep, in [1, n]; None keeps all.
            p: rows of Psi, >= 3.
            psi: "gaussian" or "none".
            bound: what the noise hides: "box", any change of a vector in the box (the paper), or
                one "example" (only with psi "none" and kappa None).
            xi: bound on each coordinate, > 0.
            batch_size: expected number of examples a step, > 0.
            head: the classifier's name in the model.

        Raises:
            ConfigError: if a value is outside its range.
        """
        require_word("method.psi", psi, ("gaussian", "none"))
        require_word("method.bound", bound, ("box", "example"))
        if p < LEAST_ROWS:
            raise ConfigError(f"Expected p >= {LEAST_ROWS}; got p={p}. Set method.p.")
        if not 0 < xi < math.inf:
            raise ConfigError(f"Expected xi > 0; got xi={xi}. Set privacy.clip_norm.")
        if bound == "example" and (psi, kappa) != ("none", None):
            raise ConfigError(
                "Expected bound=example with psi=none and kappa=null only, as one example may "
                f"change which entries are kept; got psi={psi} and kappa={kappa}. "
                "Set method.bound=box."
            )
        self._kappa, self._p, self._psi = kappa, p, psi
        self._bound, self._xi, self._batch_size = bound, xi, batch_size
        self._head = head

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        return {"p": "method.psi=none"} if settings["psi"] == "none" else {}

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the release that verification expects: the measurements, with l1 sensitivity."""
        method, clip_norm = config["method"], float(config["privacy"]["clip_norm"])
        if method["bound"] == "example":
            change = size * method["xi"]
        else:
            kappa = size if method["kappa"] is None else method["kappa"]
            change = 2 * kappa * method["batch_size"] * method["xi"]
        return [Stated("measurements", clip_norm, change / clip_norm, "laplace", "coordinates")]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the classifier's parameters."""
        return head_parameters(model, self._head)

    def start(self, model: nn.Module) -> State:
        """Return the parameters' shapes, their size and kappa.

        Raises:
            ConfigError: if kappa is not within [1, n].
        """
        shapes = shapes_of(model, self.trainable(model))
        size = sum(map(math.prod, shapes.values()))
        kappa = size if self._kappa is None else self._kappa
        if type(kappa) is not int or not 1 <= kappa <= size:
            raise ConfigError(
                f"Expected kappa in [1, {size}], the number of trained coordinates, or null for "
                f"all; got kappa={kappa}. Set method.kappa."
            )
        if self._psi == "gaussian" and self._p > size:
            warn_caller(
                f"p={self._p} measurements of {size} coordinates do not compress. Set method.p."
            )
        return {"shapes": shapes, "size": size, "kappa": kappa, "column_norms": []}

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with a new Psi, [p, n]."""
        if self._psi == "none":
            return state
        like = first_weight(model)
        psi = torch.randn(
            (self._p, state["size"]), generator=gen, device=like.device, dtype=like.dtype
        ) / math.sqrt(self._p)
        return {**state, "psi": psi}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return the classifier's gradient."""
        return {
            Key(GRADIENT, full_name(layer, name)): layer_grads.gradient(name)
            for name in layer_grads.parameters
        }

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return the classifier's shapes."""
        return {Key(GRADIENT, name): shape for name, shape in state["shapes"].items()}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the release: the batch size times a vector in the box, with l1 sensitivity."""
        dimension = state["size"] if self._psi == "none" else self._p
        sensitivity = 2 * state["kappa"] * self._batch_size * self._xi / clip_norm
        if self._bound == "example":
            sensitivity = float(state["size"])
        return (Release(GRADIENT, dimension, clip_norm, sensitivity, "laplace", "coordinates"),)

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Return measurements of the mean's largest entries, times the batch size."""
        total = torch.cat([sums[key].flatten() for key in self.release_shapes(state)])
        mean = (total / self._batch_size).clamp(-self._xi, self._xi)
        kept = keep_largest(mean, state["kappa"])
        if self._psi == "gaussian":
            kept = state["psi"].to(kept.dtype) @ kept / _column_norm(state["psi"])
        return {MEASURED: self._batch_size * kept}

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the recovered gradient, and a state with Psi's largest column norm, not Psi."""
        vector, norms = noisy[MEASURED], state["column_norms"]
        if self._psi == "gaussian":
            scale, norm = 2 * self._xi * state["kappa"], _column_norm(state["psi"])
            vector = scale * cosamp(state["psi"], state["kappa"], norm * vector / scale)
            norms = [*norms, norm]
        sizes = [math.prod(shape) for shape in state["shapes"].values()]
        pieces = zip(state["shapes"].items(), vector.split(sizes), strict=True)
        gradients = {name: piece.view(shape) for (name, shape), piece in pieces}
        kept = {key: value for key, value in state.items() if key != "psi"}
        return gradients, {**kept, "column_norms": norms}

    def remarks(
        self, state: State, epsilon_at: Callable[[Sequence[float]], float | None]
    ) -> dict[str, Any]:
        """Return the drawn Psis' column norms, the paper's norm, and the epsilon of its noise."""
        norms, paper = state["column_norms"], math.sqrt(self._p)
        if not norms:
            return {}
        return {
            "column_norms": {"mean": sum(norms) / len(norms), "largest": max(norms)},
            "paper": {
                "column_norm": paper,
                "epsilon": epsilon_at([norm / paper for norm in norms]),
            },
        }


def _column_norm(psi: Tensor) -> float:
    """Return the largest l1 norm of a column, in float64, as the release is divided by it."""
    return float(psi.abs().sum(0, dtype=torch.float64).max())
