"""Theorem 1 of compressive, with all its constants, compared with the loss it bounds."""

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
Theorem 6), if Psi's isometry constant of order 4 kappa is at most 0.1."""


@dataclass(frozen=True)
class Theorem1:
    """An upper bound on E f(theta[T]) - f(theta*) (compressive, arXiv 2011.14572, Theorem 1).

    With n coordinates of theta and p measurements:

        C''  p / (kappa log(n / kappa)), the least that Proposition 2 allows
        C    8 C'^2 C''^2                                              Proposition 2
        W    sqrt(C) Xi kappa^2 log(n / kappa) / eps, bounds the root of E|w|^2, where w is the
             total error of measurement, noise and recovery
             = sqrt(8) C' p Xi kappa / eps: the logarithms cancel, so that kappa = n is no pole
        G^2  Xi^2 kappa (1 + C kappa^3 log^2(n / kappa) / eps^2) = Xi^2 kappa + W^2
        T    index of the iterate: theta[T] is reached after T - 1 steps

    Differences from the paper:
     1. C' has no value there; here it is `RECOVERY`, from the source of the lemma.
     2. The proof of Proposition 2 uses p exp(-x) = exp(-x log p), which is false. Its conclusion
        holds: the noise e has E|e|^2 = 2 p b^2 for scale b = sqrt(p) / eps, and C'^2 times that is
        its final bound.

    Attributes:
        size: n, number of coordinates of theta.
        kappa: in [1, n], number of coordinates that a gradient keeps.
        rows: p, of Psi.
        xi: Xi > 0, the bound on each coordinate of a gradient.
        eps: of one step, in which the noise on each measurement has scale sqrt(p) / eps.
        diameter: D, of a convex set Theta that contains theta* and all iterates.
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
        """G, the bound on the root mean square norm of a step's gradient."""
        return math.hypot(self.xi * math.sqrt(self.kappa), self.noise)

    @property
    def rate(self) -> float:
        """The theorem's c of the learning rate c / sqrt(k), D / (sqrt(2) G).

        This is the value in the proof; the paper's footnote has D / (2 G), which does not give its
        bound.
        """
        return self.diameter / (math.sqrt(2) * self.gradient)

    def bound(self, iterate: int, rate: float | None = None) -> float:
        """Return the bound on the expected excess loss.

        Args:
            iterate: T >= 1.
            rate: c > 0 of the learning rate; None: the theorem's. For other values the bound is the
                one in the proof before c is chosen.
        """
        c, d, g = rate or self.rate, self.diameter, self.gradient
        optimisation = (d * d / (2 * c) + c * g * g) / math.sqrt(iterate)
        sparsification = math.sqrt(2 * (self.size - self.kappa)) * self.xi
        return (optimisation + d * (sparsification + self.noise)) * (2 + math.log(iterate))


class Theorem1Bound(Analysis):
    """Tracks Theorem 1's bound and the loss that it bounds, both relative to f(theta*).

    Records `loss`, f(theta) / f(theta*) - 1; `bound`, the theorem as stated, at its own learning
    rate; and `bound_at_c`, the bound at the run's rate c / sqrt(k), which applies to this run. The
    constants are: Xi, the clip norm of coordinates; eps of a step, such that sqrt(p) / eps is the
    largest scale of noise drawn so far; Theta, the smallest ball about theta* that contains the
    iterates so far, so that projecting on it would change nothing; and D, its diameter.

    A run may violate two assumptions of the theorem: gradients of f within Xi before clipping, and
    a Psi with a small isometry constant.
    """

    def __init__(self, kappa: int | None, rows: int, psi: str, xi: float, rate: float) -> None:
        """Set the run's options.

        Args:
            kappa: number of entries kept.
            rows: p, of Psi.
            psi: "gaussian".
            xi: bound on each coordinate.
            rate: c of the learning rate c / sqrt(k).

        Raises:
            ConfigError: the run does not sparsify.
        """
        if kappa is None or psi != "gaussian":
            raise ConfigError(
                "Expected kappa and psi=gaussian for analysis=theorem1, which is about sparsified "
                f"gradients; got kappa={kappa}, psi={psi}. Set method.kappa, or analysis=[]."
            )
        self._kappa, self._rows, self._xi, self._rate = kappa, rows, xi, rate

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return loss and bounds of theta[step + 1]."""
        x, y = view.task.train.inputs.double().cpu(), view.task.train.targets.double().cpu()
        if "best" not in memory:
            memory.update(best=torch.linalg.lstsq(x, y[:, None]).solution[:, 0], radius=0.0)
        best = memory["best"].cpu()
        weights = [view.model.get_parameter(n) for n in view.trained]
        theta = torch.cat([weight.flatten() for weight in weights]).double().cpu()
        if theta.isfinite().all():
            memory["radius"] = max(memory["radius"], float((theta - best).norm()))
        least = float((y - x @ best).square().mean())
        loss = {"loss": float((y - x @ theta).square().mean()) / least - 1}
        norms = view.state["column_norms"]
        names = ("bound", "bound_at_c", "diameter", "noise", "gradient", "rate")
        # No ball contains an iterate that is not finite.
        if not is_finite(memory, theta) or not norms:
            return loss | dict.fromkeys(names, math.nan)
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
        values = (*(value / least for value in bounds), *constants)
        return loss | dict(zip(names, values, strict=True))

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return the last observation."""
        return {name: float(traces[name][-1]) for name in traces if name not in ("step", "epoch")}
