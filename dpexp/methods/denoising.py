"""Filters of any method's gradients after their noise: post-processing, which costs no privacy.

`LowPass` is DOPPLER (Zhang et al. 2024, arXiv 2408.13460, Algorithm 1). Of released gradients g_t:

    m_t <- - sum_(i >= 1) a_i m_(t-i) + sum_(i >= 0) b_i g_(t-i)
    c_t <- - sum_(i >= 1) a_i c_(t-i) + sum_(i >= 0) b_i          of steps that there were
    the optimizer gets m_t / c_t

`Kalman` is DiSK (Zhang et al. 2024, arXiv 2410.03883), with gamma = (1 - kappa) / kappa, where each
example has one gradient a step. Of weights x_t:

    g_t <- the method's release at x_t + gamma (x_t - x_(t-1))
    m_t <- (1 - kappa) m_(t-1) + kappa g_t,    m_0 = g_0
    the optimizer gets m_t

Differences from the papers:
 1. What is filtered is the gradient that a method makes of its releases; for DP-SGD it is the same.
 2. DOPPLER: b_i counts in c_t only where g_(t-i) was, so that a constant g comes out as it is from
    the first step on.
 3. DiSK: any gamma but this one takes two gradients of every example, which is not offered. Their
    code has kappa and 1 - kappa exchanged in m_t; this is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.methods.wrapped import Wrapped
from dpexp.types import ConfigError, Key, Method, PublicGradients, State

MOST = 16
"""Largest number of coefficients on either side (ours); each keeps a copy of the weights' size."""

LONG = 10_000
"""Steps over which a filter's gain is looked at (ours)."""

EDGE = 1e-6
"""How near to the unit circle a pole counts as on it (ours). There, and beyond, noise grows from
step to step, also where b cancels the pole: rounding does not."""

Gradients = dict[str, Tensor]


class LowPass(Wrapped):
    """Filters gradients by a linear recursion."""

    def __init__(self, method: Method, a: Sequence[float], b: Sequence[float]) -> None:
        """Wrap a method.

        Args:
            method: whose gradients are filtered.
            a: of earlier outputs, a_1 first.
            b: of inputs, b_0 first; at least one.

        Raises:
            ConfigError: for other values, a filter that is not stable, or one whose gain is not
                positive and bounded.
        """
        super().__init__(method)
        self._a, self._b = _coefficients("a", a, 0), _coefficients("b", b, 1)
        poles = np.roots([1.0, *self._a])
        if far := [each for each in poles if abs(each) > 1 - EDGE and abs(each - 1) > EDGE]:
            raise ConfigError(
                "Expected denoise.a and denoise.b of a stable filter, whose poles lie within the "
                f"unit circle, or at 1 as a running mean's; one is {complex(far[0]):.4g}. Set "
                "them, as in a=[-0.9] b=[0.05,0.05]."
            )
        gains: list[float] = []
        for step in range(LONG):
            gain = self._gain(gains[-MOST:], step)
            if not 1e-6 < gain < 1e6:
                raise ConfigError(
                    "Expected denoise.a and denoise.b of a stable filter, with a gain above 0; its "
                    f"gain at step {step} is {gain:.4g}. Set them, as in a=[-0.9] b=[0.05,0.05]."
                )
            gains.append(gain)

    def _gain(self, gains: Sequence[float], step: int) -> float:
        """Return c_t, of a step from 0, after earlier ones."""
        earlier = zip(self._a, reversed(gains), strict=False)
        return sum(self._b[: step + 1]) - sum(a * gain for a, gain in earlier)

    def start(self, model: nn.Module) -> State:
        """Start the method, with nothing to filter."""
        return {**super().start(model), "step": 0, "inputs": [], "outputs": [], "gains": []}

    def reconstruct(self, state: State, noisy: Mapping[Key, Tensor]) -> tuple[Gradients, State]:
        """Return m_t / c_t, and the state with g_t, m_t and c_t, the newest last."""
        found, after = super().reconstruct(state, noisy)
        inputs = [*state["inputs"], found][-len(self._b) :]
        outputs = {name: self._b[0] * gradient for name, gradient in found.items()}
        for name, output in outputs.items():
            for b, before in zip(self._b[1:], reversed(inputs[:-1]), strict=False):
                output.add_(before[name], alpha=b)
            for a, before in zip(self._a, reversed(state["outputs"]), strict=False):
                output.sub_(before[name], alpha=a)
        gain = self._gain(state["gains"], state["step"])
        kept = len(self._a)
        after |= {
            "step": state["step"] + 1,
            "inputs": inputs[1:] if len(inputs) == len(self._b) else inputs,
            "outputs": [*state["outputs"], outputs][-kept:] if kept else [],
            "gains": [*state["gains"], gain][-kept:] if kept else [],
        }
        return {name: output / gain for name, output in outputs.items()}, after


def _coefficients(name: str, values: Sequence[Any], least: int) -> list[float]:
    """Return a filter's coefficients as a list.

    Raises:
        ConfigError: if they are something else.
    """
    is_list = not isinstance(values, str | Mapping) and isinstance(values, Sequence)
    numbers = [each for each in values if type(each) in (int, float)] if is_list else []
    if not is_list or len(numbers) != len(values) or not least <= len(values) <= MOST:
        raise ConfigError(
            f"Expected denoise.{name} to be a list of {least} to {MOST} numbers; got {values}. Set "
            f"denoise.{name}, as in {name}=[0.1]."
        )
    if not all(math.isfinite(each) for each in numbers):
        raise ConfigError(f"Expected denoise.{name} to be finite; got {values}.")
    return [float(each) for each in numbers]


class Kalman(Wrapped):
    """Takes gradients ahead of the weights, and averages them."""

    def __init__(self, method: Method, kappa: float) -> None:
        """Wrap a method.

        Args:
            method: whose gradients are filtered.
            kappa: weight of the new gradient, in (0, 1]; 1 leaves gradients as they are.

        Raises:
            ConfigError: for another kappa, or a method without gradients.
        """
        super().__init__(method)
        if not 0.01 <= kappa <= 1:
            raise ConfigError(
                f"Expected denoise.kappa from 0.01 to 1; got {kappa}. Set denoise.kappa."
            )
        if self.is_forward_only:
            raise ConfigError(
                "Expected a method that takes gradients of examples beside denoise=disk, which "
                "takes them ahead of the weights; this one takes losses alone. Set another method, "
                "or denoise=doppler."
            )
        self._kappa = kappa

    def start(self, model: nn.Module) -> State:
        """Start the method, with no weights and gradients before."""
        return {**super().start(model), "last": {}, "ahead": {}, "mean": {}}

    @torch.no_grad()
    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Prepare the method's step, and find the weights ahead: both are known from releases.

        Raises:
            ConfigError: if the method has other weights in the forward pass.
        """
        after = super().prepare(model, state, public, gen)
        if super().forward_weights(after):
            raise ConfigError(
                "Expected a method whose forward pass has the model's weights beside denoise=disk; "
                "this one replaces them. Leave denoise out, or keep the residual "
                "(method.residual=true)."
            )
        weights = {name: model.get_parameter(name) for name in self.trainable(model)}
        gamma = (1 - self._kappa) / self._kappa
        ahead = {
            name: weight + gamma * (weight - state["last"][name])
            for name, weight in weights.items()
            if state["last"]
        }
        return {**after, "last": {k: each.clone() for k, each in weights.items()}, "ahead": ahead}

    def forward_weights(self, state: State) -> Mapping[str, Tensor]:
        """Return the weights ahead; at the first step the model's own are in place."""
        return state["ahead"]

    def reconstruct(self, state: State, noisy: Mapping[Key, Tensor]) -> tuple[Gradients, State]:
        """Return m_t."""
        found, after = super().reconstruct(state, noisy)
        mean = {
            name: torch.lerp(before, found[name], self._kappa)
            for name, before in (state["mean"] or found).items()
        }
        # A copy: an optimizer may change what it is given.
        return {k: each.clone() for k, each in mean.items()}, {**after, "mean": mean, "ahead": {}}
