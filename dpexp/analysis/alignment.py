"""How far a step's gradient points along the true one, and what turns it away."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpexp.grad_sample.freezing import trains
from dpexp.grad_sample.passes import PUBLIC_BATCH
from dpexp.kernels import fast_kernels
from dpexp.privacy.noise import add_noise_
from dpexp.training.observation import Analysis, View, is_finite
from dpexp.types import ConfigError, Key, State, first_weight


class Alignment(Analysis):
    """Tracks what projection, clipping and noise each leave of the gradient's direction.

    g is the mean gradient of some examples with respect to all parameters that the model's author
    left trainable. A step makes its own gradient of the same examples. Records, at every
    observation,

     * `projected`: its cosine to g if neither clipped nor noisy. Below 1 are methods that train a
       subspace, or a part of the parameters; for an orthogonal projection P it is |Pg| / |g|.
     * `clipped`: the cosine once clipped, without noise.
     * `noisy`: the cosine once noisy, before any filter of gradients (`denoise`): the share of a
       step along g. To first order the loss falls in its proportion.
     * `signal` and `noise`: norm of the clipped mean, and root mean square norm of the noise on it,
       in the numbers that are released; `ratio` is noise / signal.

    Fewer examples than a batch leave `noise` as it is: it is the noise of a step's mean.
    """

    def __init__(self, batch: int, draws: int) -> None:
        """Set the options.

        Args:
            batch: number of examples, >= 1.
            draws: noise draws that `noisy` is averaged over, >= 1.

        Raises:
            ConfigError: for a value outside its range.
        """
        if batch < 1 or draws < 1:
            raise ConfigError(
                "Expected analysis.alignment.batch >= 1 and analysis.alignment.draws >= 1; got "
                f"{batch} and {draws}. Set them."
            )
        self._batch, self._draws = batch, draws

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return the cosines and norms; NaN where a number is not finite.

        Raises:
            ConfigError: the noise is correlated across steps.
        """
        mechanism = view.mechanism
        if mechanism.correlation is not None:
            raise ConfigError(
                "Expected fresh noise at every step for analysis=alignment; got noise=correlated, "
                "whose later noise takes back earlier noise. Leave the analysis out."
            )
        some = view.draw("batch", self._batch)
        true = true_gradient(view, some)
        state, projected = _means(view, some, is_clipping=False)
        _, clipped = _means(view, some, is_clipping=True)
        signal, noise = _signal(view, clipped), _noise(view, clipped)
        found = {"signal": signal, "noise": noise, "ratio": noise / signal if signal else math.inf}
        if not is_finite(memory, *true.values(), *projected.values(), *clipped.values()):
            return found | dict.fromkeys(("projected", "clipped", "noisy", "ratio"), math.nan)

        def aligned(means: Mapping[Key, Tensor]) -> float:
            return cosine(view.method.reconstruct(state, means)[0], true)

        gen = view.generator("noise")
        noisy = [aligned(_noised(view, clipped, gen)) for _ in range(self._draws)]
        return found | {
            "projected": aligned(projected),
            "clipped": aligned(clipped),
            "noisy": sum(noisy) / len(noisy),
        }

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return each trace's mean over the observations; nothing if a kill lost some of one."""
        names = ("projected", "clipped", "noisy", "signal", "noise", "ratio")
        return {name: float(traces[name].mean()) for name in names if name in traces}


@fast_kernels()
def true_gradient(view: View, some: Tensor) -> dict[str, Tensor]:
    """Return examples' mean gradient by every parameter that the model's author left trainable.

    Args:
        view: the run.
        some: indices of its training examples, [m], m >= 1.

    Returns:
        By parameter name, in its shape.
    """
    named = {name: each for name, each in view.model.named_parameters() if trains(each)}
    total = {name: torch.zeros_like(each, requires_grad=False) for name, each in named.items()}
    with view.unhooked(), torch.enable_grad():
        for part in view.examples.micro_batches(some, PUBLIC_BATCH):
            batch = view.examples.batch(part).to(view.device)
            loss = view.task.loss(view.model(batch.inputs), batch.targets)
            found = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
            for name, gradient in zip(named, found, strict=True):
                if gradient is not None:
                    total[name] += gradient
    return {name: each / len(some) for name, each in total.items()}


def cosine(update: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> float:
    """Return the cosine between an update and the true gradient, over all parameters of either.

    Args:
        update: by parameter name; a parameter that is missing does not move.
        true: by parameter name.

    Returns:
        In [-1, 1]; 0 if either is zero.
    """
    product = sum(float((g.double() * true[name].double()).sum()) for name, g in update.items())
    lengths = _norm(update.values()) * _norm(true.values())
    return product / lengths if lengths else 0.0


def _means(view: View, some: Tensor, *, is_clipping: bool) -> tuple[State, dict[Key, Tensor]]:
    """Return the state of the step and the mean of what the examples give, before noise."""
    state, sums = view.gradient.without_noise(
        view.state, view.examples, some, view.step, is_clipping=is_clipping
    )
    dtype = first_weight(view.model).dtype
    return state, {key: (total / len(some)).to(dtype) for key, total in sums.items()}


def _noised(view: View, means: Mapping[Key, Tensor], gen: torch.Generator) -> dict[Key, Tensor]:
    """Return the means with a draw of a step's noise."""
    mechanism = view.mechanism
    sums = {key: mean.cpu() * mechanism.batch_size for key, mean in means.items()}
    if mechanism.noise:
        add_noise_(sums, mechanism.releases, mechanism.noise_multiplier, gen)
    return {key: (sums[key] / mechanism.batch_size).to(mean.device) for key, mean in means.items()}


def _signal(view: View, means: Mapping[Key, Tensor]) -> float:
    """Return the norm of the means of all releases of gradients."""
    gradients = {each.name for each in view.mechanism.releases if each.clip != "count"}
    return _norm(mean for key, mean in means.items() if key.release in gradients)


def _noise(view: View, means: Mapping[Key, Tensor]) -> float:
    """Return the root mean square norm of the noise on the means of all releases of gradients."""
    mechanism, square = view.mechanism, 0.0
    if not mechanism.noise:
        return 0.0
    for release in mechanism.releases:
        if release.clip != "count":
            size = sum(mean.numel() for key, mean in means.items() if key.release == release.name)
            scale = release.multiplier(mechanism.noise_multiplier) * release.clip_norm
            square += (2 if release.noise == "laplace" else 1) * scale**2 * size
    return math.sqrt(square) / mechanism.batch_size


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in tensors))
