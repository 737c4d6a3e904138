"""The norm of DP-SGD's noise compared with that of the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dpexp.linalg import as_rows
from dpexp.privacy import num_steps
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.clipping import Group, bounds_of, groups_of, held_weights
from dpexp.training.observation import Analysis, View
from dpexp.types import ConfigError, Key


class NoiseNorm(Analysis):
    """Compares the norms of noise and gradient at initialisation (gep, arXiv 2102.12677, Figure 1).

    Recorded once, before the first step: `gradient`, the norm of the mean of a batch's gradients,
    each clipped to C by the run's rule; `noise`, the root mean square norm of the noise on that
    mean, sigma C sqrt(p) / B, where sigma spends the run's eps and delta in `epochs` epochs; and
    `ratio`, noise / gradient.

    Differences from the paper: the noise is calibrated by this suite's accountants, not by the
    moments accountant; batch size and clip norm are the run's, because the paper gives neither.
    """

    def __init__(self, epochs: float) -> None:
        """Set the options.

        Args:
            epochs: in which the budget is spent, > 0; the run itself may be shorter.

        Raises:
            ConfigError: for a value outside its range.
        """
        if not epochs > 0:
            raise ConfigError(f"Expected analysis.noise_norm.epochs > 0; got {epochs}. Set it.")
        self._epochs = epochs

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return both norms, at the first observation.

        Raises:
            ConfigError: the run has no budget, or its method releases more than gradients.
        """
        if not view.is_first:
            return {}
        mechanism = view.mechanism
        size = sum(view.model.get_parameter(name).numel() for name in view.trained)
        # A projection, say, has fewer numbers, and a noise of its own.
        is_other = [each.dimension for each in mechanism.releases] != [size]
        is_other |= mechanism.is_laplace
        if mechanism.target_epsilon is None or is_other or mechanism.correlation is not None:
            raise ConfigError(
                "Expected a private run that releases whole gradients, and nothing beside them, in "
                "fresh noise for analysis=noise_norm. Set method=dpsgd and eps, without "
                "clipping=adaptive and noise=correlated."
            )
        steps = num_steps(self._epochs, mechanism.dataset_size, mechanism.batch_size)
        sigma, _ = calibrate(
            mechanism.sampling_prob, steps, mechanism.delta, mechanism.target_epsilon
        )
        clip_norm = mechanism.releases[0].clip_norm
        noise = sigma * clip_norm * math.sqrt(size) / mechanism.batch_size
        gradient = self._clipped_mean(view)
        return {"noise": noise, "gradient": gradient, "ratio": noise / gradient}

    def _clipped_mean(self, view: View) -> float:
        rule, release = view.gradient.clipping, view.mechanism.releases[0]
        keys = {name: Key(release.name, name) for name in view.trained}
        groups = groups_of(rule, keys.values(), {release.name: release})
        bounds = bounds_of(groups.values(), {release.name: release})
        some = view.draw("batch", view.mechanism.batch_size)
        total: dict[str, torch.Tensor] = {}
        for gradients in view.per_example(view.examples.take(some)).micro_batches(
            torch.arange(len(some)), None
        ):
            squares: dict[Group, torch.Tensor] = {}
            for name, g in gradients.items():
                group = groups[keys[name]]
                squares[group] = squares.get(group, 0) + as_rows(g).square().sum(1)
            norms = {of: each.sqrt() for of, each in squares.items()}
            weights = {
                of: held_weights(rule.weights(each, bounds[of]), each, bounds[of])
                for of, each in norms.items()
            }
            for name, g in gradients.items():
                own = weights[groups[keys[name]]]
                total[name] = total.get(name, 0) + torch.einsum("n,n...->...", own, g)
        square = sum(float(g.double().square().sum()) for g in total.values())
        return math.sqrt(square) / len(some)

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return both norms and their ratio; nothing if a kill lost the first observation."""
        names = ("noise", "gradient", "ratio")
        return {name: float(traces[name]) for name in names if name in traces}
