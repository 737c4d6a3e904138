"""The cost of a private step compared with a non-private one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import torch

from dpexp.distributed import memory as machine
from dpexp.distributed.ranks import Ranks
from dpexp.kernels import fast_kernels
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.training.observation import Analysis, View
from dpexp.types import ConfigError

Step = Callable[[], Any]
Measure = Callable[[Step, torch.device], float]
Measured = Callable[[Measure], float]


class Cost(Analysis):
    """Measures time and memory of a private step and a non-private one, on the same examples.

    The two alternate before the first step of the run (rgp Table 1, gep Table 4, whose formulas
    predict how both grow). A private step is the run's own: bases, the views of an augmentation,
    forward, backward, clipping by the run's rule, noise, reconstruction and a filter of gradients.
    Not counted are the optimizer and an average of the weights. The non-private one is forward,
    backward and the gradient of every parameter, on the examples as they are. Writes to result.json
    `private_s` and `nonprivate_s`, medians over rounds in seconds, and their `ratio`; `private_mb`
    and `nonprivate_mb`, the step's peak minus the memory in use before it, in MB (of tensors on a
    GPU, resident elsewhere), and their `memory_ratio`.
    """

    def __init__(self, batch: int, micro_batch: int, rounds: int) -> None:
        """Set the options.

        Args:
            batch: examples per step, >= 1.
            micro_batch: examples per micro-batch, >= 1.
            rounds: number of timed steps of each kind, >= 1, after an untimed one.

        Raises:
            ConfigError: for a value outside its range.
        """
        if batch < 1 or micro_batch < 1 or rounds < 1:
            raise ConfigError(
                "Expected analysis.cost.batch, micro_batch and rounds >= 1; got "
                f"{batch}, {micro_batch} and {rounds}. Set them."
            )
        self._batch, self._micro_batch, self._rounds = batch, micro_batch, rounds

    def observe(self, view: View, memory: dict[str, Any]) -> Mapping[str, Any]:
        """Measure once, before the first step."""
        if not view.is_first:
            return {}
        examples = view.examples.take(view.draw("batch", self._batch))
        view.model.train()
        with view.unhooked():
            plain, private = self._steps(view, examples)
            plain_mb, private_mb = plain(_weigh), private(_weigh)
            turns = [(plain(_seconds), private(_seconds)) for _ in range(self._rounds)]
        view.model.eval()
        return {
            "nonprivate_s": median(seconds for seconds, _ in turns),
            "private_s": median(seconds for _, seconds in turns),
            "ratio": median(private_s / plain_s for plain_s, private_s in turns),
            "nonprivate_mb": plain_mb,
            "private_mb": private_mb,
            "memory_ratio": private_mb / plain_mb if plain_mb else math.nan,
        }

    def _steps(self, view: View, examples: Any) -> tuple[Measured, Measured]:
        """Return functions that apply a measure to a non-private and to a private step."""
        model, task, device = view.model, view.task, view.device
        mechanism = whole_batch(
            len(examples),
            view.mechanism.releases,
            view.mechanism.noise_multiplier,
            clip=view.mechanism.clip,
        )

        @fast_kernels()
        def plain_step() -> None:
            for indices in examples.micro_batches(torch.arange(len(examples)), self._micro_batch):
                batch = examples.batch(indices).to(device)
                with torch.enable_grad():
                    task.loss(model(batch.inputs), batch.targets).backward()
            model.zero_grad()

        def plain(measure: Measure) -> float:
            return measure(plain_step, device)

        def private(measure: Measure) -> float:
            with PrivateGradient(
                model,
                view.method,
                mechanism,
                Ranks(0, 1, device),
                self._micro_batch,
                task.public,
                task.loss,
                augmentation=view.gradient.augmentation,
                clipping=view.gradient.clipping,
            ) as gradient:
                return measure(lambda: gradient(view.state, examples, 0), device)

        return plain, private

    def numbers(self, traces: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Return the measurements."""
        return {name: float(v) for name, v in traces.items() if name not in ("step", "epoch")}


def _seconds(step: Step, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - start


def _weigh(step: Step, device: torch.device) -> float:
    """Return a step's peak memory above what is in use before it, in MB, after a warm-up step."""
    step()
    _wait(device)
    machine.reset_peak(device)
    before = machine.peak_mb(device)
    step()
    _wait(device)
    return machine.peak_mb(device) - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
