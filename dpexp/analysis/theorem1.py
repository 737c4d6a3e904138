"""Theorem 1 of compressive, with every constant in it, beside the loss it bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError, joint_sensitivity

RECOVERY = 20.0
"""C': CoSaMP's error over the noise's norm after 6 (kappa + 1) rounds (Needell and Tropp 2009,
Theorem 6), where Psi's isometry constant of order 4 kappa is at most 0.1."""


@dataclass(frozen=True)
class Theorem1:
    """What E f(theta[T]) - f(theta*) is at most (compressive, arXiv 2011.14572, Theorem 1).

    With n coordinates of theta and p measurements:

        C''  p / (kappa log(n / kappa)), the least that Proposition 2 allows
        C    8 C'^2 C''^2                                              Proposition 2
        W    sqrt(C) Xi kappa^2 log(n / kappa) / eps, bounds the root of E|w|^2, w the error that
             measuring, noise and recovery make together
             = sqrt(8) C' p Xi kappa / eps: the logarithms cancel, so that kappa = n is no pole
        G^2  Xi^2 kappa (1 + C kappa^3 log^2(n / kappa) / eps^2) = Xi^2 kappa + W^2
        T    which iterate: theta[T] is what T - 1 steps give

    Differences from the paper:
     1. C' has no value there; here it is `RECOVERY`, from the paper it takes the lemma from.
     2. The proof of Proposition 2 has p exp(-x) = exp(-x log p), which is false. Its conclusion
        stands: the noise e has E|e|^2 = 2 p b^2 for scale b = sqrt(p) / eps, and C'^2 times that is
        the bound it ends on.

    Attributes:
        size: n, coordinates of theta.
        kappa: in [1, n], how many the gradient keeps.
        rows: p, of Psi.
        xi: Xi > 0, the bound on each coordinate of a gradient.
        eps: of one step, where the noise on each measurement has scale sqrt(p) / eps.
        diameter: D, of a convex set Theta that holds theta* and every iterate.
    """

    size: int
    kappa: int
    rows: int
    xi: float
    eps: float
    diameter: float

    @property
    def noise(self) -> float:
        """W, the bound on the root mean square of |w|."""
        return math.sqrt(8) * RECOVERY * self.rows * self.xi * self.kappa / self.eps

    @property
    def gradient(self) -> float:
        """G, which bounds the root mean square of the norm of a step's gradient."""
        return math.hypot(self.xi * math.sqrt(self.kappa), self.noise)

    @property
    def rate(self) -> float:
        """The c of the learning rate c / sqrt(k) that the theorem chooses, D / (sqrt(2) G).

        The proof's value; the paper's footnote says D / (2 G), which does not give its bound.
        """
        return self.diameter / (math.sqrt(2) * self.gradient)

    def bound(self, iterate: int, rate: float | None = None) -> float:
        """Bound the expected excess loss.

        Args:
            iterate: T >= 1.
            rate: c > 0 of the learning rate; None: the theorem's own. Another one's bound is the
                proof's, from before it chooses c.
        """
        c, d, g = rate or self.rate, self.diameter, self.gradient
        optimisation = (d * d / (2 * c) + c * g * g) / math.sqrt(iterate)
        sparsification = math.sqrt(2 * (self.size - self.kappa)) * self.xi
        return (optimisation + d * (sparsification + self.noise)) * (2 + math.log(iterate))


class Theorem1Bound(Analysis):
    """Follows Theorem 1's bound and the loss that it is on, both over f(theta*).

    Gives `loss`, f(theta) / f(theta*) - 1; `bound`, the theorem as stated, at its own learning
    rate; and `bound_at_c`, the same at the run's rate c / sqrt(k), which is the one that speaks of
    this run. Its constants here: Xi is the clip norm, to which coordinates are clipped; eps that of
    a step with which sqrt(p) / eps would be the largest scale of noise that was drawn so far; Theta
    a ball about theta* that just holds the iterates seen so far, D its diameter, so that the
    theorem's projection on Theta would have changed nothing.

    What the theorem asks for and a run may not give: gradients of f within Xi unclipped, and a Psi
    of small isometry constant.
    """

    def __init__(self, kappa: int | None, rows: int, psi: str, xi: float, rate: float) -> None:
        """Set the options, those of the run.

        Args:
            kappa: entries kept.
            rows: p, of Psi.
            psi: "gaussian".
            xi: bound on each coordinate.
            rate: c of the learning rate c / sqrt(k).

        Raises:
            ConfigError: for a run that does not sparsify.
        """
        if kappa is None or psi != "gaussian":
            raise ConfigError(
                "Expected kappa and psi=gaussian for analysis=theorem1, which is about sparsified "
                f"gradients; got kappa={kappa}, psi={psi}. Set method.kappa, or analysis=[]."
            )
        self._kappa, self._rows, self._xi, self._rate = kappa, rows, xi, rate

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return loss and bounds at theta[step + 1]."""
        x, y = view.task.train.inputs.double().cpu(), view.task.train.targets.double().cpu()
        if "best" not in memory:
            memory.update(best=torch.linalg.lstsq(x, y[:, None]).solution[:, 0], radius=0.0)
        best = memory["best"].cpu()
        weights = [view.model.get_parameter(n) for n in view.trained]
        theta = torch.cat([weight.flatten() for weight in weights]).double().cpu()
        if theta.isfinite().all():
            memory["radius"] = max(memory["radius"], float((theta - best).norm()))
        least = float((y - x @ best).square().mean())
        seen = {"loss": float((y - x @ theta).square().mean()) / least - 1}
        norms = view.state["column_norms"]
        names = ("bound", "bound_at_c", "diameter", "noise", "gradient", "rate")
        # No ball holds an iterate that is not finite.
        if not is_finite(memory, theta) or not norms:
            return seen | dict.fromkeys(names, math.nan)
        mechanism = view.mechanism
        of_step = joint_sensitivity(mechanism.releases) / mechanism.noise_multiplier
        theorem = Theorem1(
            size=len(theta),
            kappa=self._kappa,
            rows=self._rows,
            xi=self._xi,
            eps=of_step * math.sqrt(self._rows) / max(norms),
            diameter=2 * memory["radius"],
        )
        bounds = (theorem.bound(view.step + 1), theorem.bound(view.step + 1, self._rate))
        constants = (theorem.diameter, theorem.noise, theorem.gradient, theorem.rate)
        given = (*(value / least for value in bounds), *constants)
        return seen | dict(zip(names, given, strict=True))

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return what was last observed."""
        return {name: float(traces[name][-1]) for name in traces if name not in ("step", "epoch")}
