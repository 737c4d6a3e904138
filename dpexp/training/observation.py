"""Analyses of a running training: what they see, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample.passes import PUBLIC_BATCH, Passes
from dpexp.models.mode import in_mode
from dpexp.privacy import ANALYSED, Mechanism
from dpexp.privacy.seeds import generator
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train_state import TrainState
from dpexp.types import ConfigError, LayerGrads, Method, State, full_name, one_line

NONFINITE = "nonfinite"
"""Key of an analysis's memory that counts observations with numbers that are not finite."""

WHEN = ("step", "epoch")
"""Times of an observation, stored in analysis.npz."""


def is_finite(memory: dict[str, Any], *tensors: Tensor) -> bool:
    """Return whether all tensors are finite; count the observation if not.

    A diverged run is still analysed: an analysis then returns NaN, and result.json has the number
    of such observations as NAME_nonfinite.

    Args:
        memory: the analysis's own.
        tensors: of one observation.
    """
    is_whole = all(bool(tensor.isfinite().all()) for tensor in tensors)
    if not is_whole:
        memory[NONFINITE] = memory.get(NONFINITE, 0) + 1
    return is_whole


@dataclass(frozen=True)
class View:
    """A run between two steps, its model in eval mode.

    Attributes:
        task: that it trains on.
        model: after the last step; not to be changed.
        method: of the run.
        state: the method's after the last step; before the first, that of `start`.
        mechanism: sampler, noise and releases; its `batch_size` is the normaliser.
        examples: the training set, on a device that the model can read.
        step: steps taken.
        device: the model's.
        gradient: computes a step's private gradient.
    """

    task: Any
    model: nn.Module
    method: Method
    state: State
    mechanism: Mechanism
    examples: Any
    step: int
    device: torch.device
    gradient: PrivateGradient

    @property
    def epoch(self) -> float:
        """Passes over the training set so far, as in metrics.jsonl."""
        return self.step * self.mechanism.sampling_prob

    @property
    def trained(self) -> tuple[str, ...]:
        """Return the names of the parameters that the method updates."""
        return self.gradient.trained

    @property
    def is_first(self) -> bool:
        """Whether no step was taken yet."""
        return self.step == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last observation."""
        return self.step == self.mechanism.num_steps

    def generator(self, axis: str, step: int | None = None) -> torch.Generator:
        """Return a generator for the analysis's own random numbers, on the CPU.

        Args:
            axis: what they are for; each axis has its own numbers.
            step: a fixed step gives the same numbers at every observation; None: this step's.
        """
        index = self.step if step is None else step
        return generator(self.mechanism.seed, f"analysis/{axis}", index)

    def draw(self, axis: str, size: int) -> Tensor:
        """Return min(size, N) random training indices, the same at every observation."""
        order = torch.randperm(len(self.examples), generator=self.generator(axis, 0))
        return order[:size]

    def per_example(self, examples: Any, setting: str = "method.public_labels") -> Passes:
        """Return per-example gradients: `micro_batches(indices, targets=None)`.

        Args:
            examples: the training set, the test set or a public set.
            setting: the setting that asks for the set's own labels, for errors.
        """
        return self.gradient.passes(examples, setting)

    def mean_gradients(
        self, examples: Any, indices: Tensor, names: Sequence[str]
    ) -> dict[str, Tensor]:
        """Return the mean gradient of examples' loss with respect to parameters, in their shapes.

        Args:
            examples: any set.
            indices: of it, [m], m >= 1.
            names: of parameters that the method trains, as in `named_parameters`.
        """
        weights = dict(self.model.named_parameters())
        totals = {name: torch.zeros_like(weights[name], requires_grad=False) for name in names}

        def add(layer: str, layer_grads: LayerGrads) -> None:
            for own in layer_grads.parameters:
                if (name := full_name(layer, own)) in totals:
                    layer_grads.gradient(own).add_to(totals[name], None)

        passes = self.per_example(examples)
        for some in examples.micro_batches(indices, PUBLIC_BATCH):
            passes.backward(examples.batch(some).to(self.device), add)
        return {name: total / len(indices) for name, total in totals.items()}

    def unhooked(self) -> AbstractContextManager[None]:
        """Remove the hooks within the context; parameters require gradients again."""
        return self.gradient.unhooked()

    def require(self, setting: str, names: Sequence[str]) -> None:
        """Check that the method trains the named parameters.

        Args:
            setting: that names them, e.g. "analysis.stable_rank.parameters".
            names: as in `named_parameters`.

        Raises:
            ConfigError: naming the nearest trained parameter.
        """
        for name in names:
            if name not in self.trained:
                nearest = get_close_matches(name, self.trained, 1, 0.0)[0]
                raise ConfigError(
                    f"Expected {setting} to name parameters that the method trains; got {name}. "
                    f"Did you mean {nearest}?"
                )


class Analysis(Protocol):
    """An analysis of a run's gradients (`dpexp.analysis`); it does not affect the run.

    Analyses subclass it.

    Attributes:
        deviation: entry for the certificate's deviations.
        public_size: how many public examples it needs; none are loaded if 0.
    """

    deviation: str = ANALYSED
    public_size: int = 0

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Return numbers and arrays; called before the first step and after every evaluation.

        Args:
            view: the run.
            memory: the analysis's own state, kept between observations and in checkpoints: numbers,
                strings, tensors on the view's device, and lists and dicts of them.

        Returns:
            Numbers and arrays by name: each name at every observation and in one shape (NaN for a
            missing value), or at a single observation.

        Raises:
            ConfigError: if the run cannot be analysed this way.
        """

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return further entries for result.json (usually none).

        Args:
            traces: the stacked observations, with "step" and "epoch".
        """
        return {}


class Observers:
    """A run's analyses; they observe on rank 0 only."""

    def __init__(
        self,
        analyses: Mapping[str, Analysis],
        task: Any,
        model: nn.Module,
        method: Method,
        examples: Any,
        gradient: PrivateGradient,
        mechanism: Mechanism,
        ranks: Ranks,
    ) -> None:
        """Take the run's parts; `examples` is its training set on the model's device."""
        self._analyses, self._is_first_rank = analyses, ranks.is_first
        self._task, self._model, self._method, self._examples = task, model, method, examples
        self._gradient, self._mechanism, self._device = gradient, mechanism, ranks.device

    @property
    def deviations(self) -> list[str]:
        """Return the analyses' deviations for the certificate, without duplicates."""
        return list(dict.fromkeys(one.deviation for one in self._analyses.values()))

    def observe(self, now: TrainState) -> None:
        """Run every analysis, and keep its results in `now`.

        The model's mode and torch's random state are restored, and no gradients are left on the
        model.

        Raises:
            ConfigError: if an analysis meets numbers that cannot be decomposed.
            ValueError: if an analysis returns a name neither always nor once, or changes its shape.
        """
        if not self._analyses or not self._is_first_rank:
            return
        view = View(
            task=self._task,
            model=self._model,
            method=self._method,
            state=now.method_state,
            mechanism=self._mechanism,
            examples=self._examples,
            step=now.step,
            device=self._device,
            gradient=self._gradient,
        )
        seen: dict[str, Any] = {"step": now.step, "epoch": view.epoch}
        cuda = [self._device] if self._device.type == "cuda" else []
        mode = in_mode(self._model, is_training=False)
        with mode, torch.random.fork_rng(cuda), torch.no_grad():
            for name, analysis in self._analyses.items():
                memory = now.memories.setdefault(name, {})
                try:
                    given = analysis.observe(view, memory)
                except torch.linalg.LinAlgError as error:
                    raise ConfigError(
                        f"Expected numbers that analysis={name} can decompose at step {now.step}; "
                        f"{one_line(error)} Leave the analysis out, or lower optimizer.lr."
                    ) from error
                seen |= {f"{name}/{what}": value for what, value in given.items()}
        self._model.zero_grad()
        _keep(now.traces, seen)

    def arrays(self, now: TrainState) -> dict[str, np.ndarray]:
        """Return the arrays of analysis.npz; repeated observations are stacked."""
        count = len(now.traces.get("step", []))
        return {
            name: (torch.stack(values) if len(values) == count else values[0]).numpy()
            for name, values in now.traces.items()
        }

    def numbers(self, now: TrainState) -> dict[str, float]:
        """Return the analyses' numbers for result.json, each under NAME_number.

        NAME_nonfinite is the number of observations with values that are not finite, if any.
        """
        arrays = self.arrays(now)
        numbers: dict[str, float] = {}
        for name, analysis in self._analyses.items() if arrays else ():
            own = {w: arrays[w] for w in WHEN}
            prefix = f"{name}/"
            own |= {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            if count := now.memories.get(name, {}).get(NONFINITE, 0):
                numbers[f"{name}_{NONFINITE}"] = count
            numbers |= {f"{name}_{what}": x for what, x in analysis.numbers(own).items()}
        return numbers


def _keep(traces: dict[str, list[Tensor]], seen: Mapping[str, Any]) -> None:
    """Add an observation; a name that is missing later would misalign the rest."""
    for name, value in seen.items():
        kept = traces.setdefault(name, [])
        kept.append(_held(value))
        if kept[-1].shape != kept[0].shape:
            raise ValueError(f"{name} changed its shape: {kept[0].shape} to {kept[-1].shape}")
    count = len(traces["step"])
    for name, kept in traces.items():
        if len(kept) not in (1, count):
            raise ValueError(f"{name} was given at {len(kept)} of {count} observations")


def _held(value: Any) -> Tensor:
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    return torch.as_tensor(value).detach().cpu().clone()
