"""What a step costs on this device: timed with a few examples, its FLOPs counted by torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from dpexp.cli.parts import build_parts
from dpexp.cli.stand_in import FEW, alone, few_features, stand_in
from dpexp.distributed import memory, ranks
from dpexp.privacy import Mechanism, require_room
from dpexp.training.averaging import Averaged
from dpexp.training.gradient import PrivateGradient
from dpexp.training.micro_batch import MicroBatch
from dpexp.training.train import make_mechanism, on_device, update
from dpexp.types import first_weight

EMPTY = 1e-12
"""A batch size at which draws are empty."""

REPEATS = 3
"""Steps timed by the wall, of which the shortest counts: others may work meanwhile."""


def _flops_in_place(total: Any, left: Any, right: Any, **_: Any) -> int:
    """Count a product [a, b] x [b, c] added where a sum lies, which torch's counter passes over."""
    return 2 * left[0] * left[1] * right[1]


def _flops_of_backward(output: Any, inputs: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Count a convolution's backward pass, twice its forward pass if both gradients are wanted.

    Torch's counter forgets the groups, of which per-example gradients have one an example.
    """
    wanted = rest[-1]
    return 2 * math.prod(output) * math.prod(weight[1:]) * (wanted[0] + wanted[1])


COUNTED = {
    torch.ops.aten.addmm_: _flops_in_place,
    torch.ops.aten.convolution_backward: _flops_of_backward,
}


class Work(NamedTuple):
    """Seconds and FLOPs of a part of a step."""

    seconds: float
    flops: float

    def times(self, number: float) -> Work:
        """Return the work of so many."""
        return Work(self.seconds * number, self.flops * number)


@dataclass(frozen=True)
class Step:
    """A step's work without examples, and that of each example.

    Attributes:
        fixed: without examples.
        per_example: of each.
        tested: examples of an evaluation.
        megabytes: peak memory; None on stand-in data, of which few are held.
        m, k: anchor gradients and basis vectors, of GEP.
    """

    fixed: Work
    per_example: Work
    tested: float = 0.0
    megabytes: float | None = None
    m: int = 0
    k: int = 0


def bases(steps: Sequence[Step], method: dict[str, Any]) -> Work:
    """Solve GEP's a m + b m k from two small pairs (m, k); return it at the method's."""
    (m1, k1, one), (m2, k2, two) = [(step.m, step.k, step.fixed) for step in steps]
    per_pair = max(0.0, one.flops / m1 - two.flops / m2) / (k1 - k2)
    per_anchor = max(0.0, one.flops / m1 - per_pair * k1)
    flops = method["m"] * (per_anchor + per_pair * method["k"])
    return Work(flops * one.seconds / max(one.flops, 1.0), flops)


def measure(config: dict[str, Any], device: torch.device, shrink: int | None) -> Step:
    """Time a step on an empty draw and one of a few examples, and count their FLOPs.

    Args:
        config: of the run.
        device: at hand.
        shrink: how many times fewer anchor gradients and basis vectors GEP has on stand-in data;
            None: the run's own data, of which a few are encoded where the run is on features.

    Raises:
        MissingData: the run's own data are not there.
        ConfigError: the run can't be done, or has no stand-in.
    """
    small = alone(config) if shrink is None else stand_in(config, shrink)
    small, served = _with_bases_at_every_step(small)
    memory.reset_peak(device)
    task = few_features(small, device) if "features" in small else None
    parts, rank = build_parts(small, device, task), ranks.Ranks(0, 1, device)
    model, method, task = parts.model, parts.method, parts.task
    state = method.start(model)
    mechanism = make_mechanism(small, config["task"]["dataset_size"], method, state, rank)
    require_room(mechanism, first_weight(model).dtype, config)
    held = on_device(task.train, device)
    micro_batch = MicroBatch(small, parts, state, mechanism, rank).settle(0, held)
    is_few = shrink is not None and device.type == "cpu"
    num = FEW if is_few else _two_micro_batches(held, micro_batch, config["batch_size"])
    num = min(num, config["batch_size"])
    # Noise is drawn but times zero: over an empty batch it would be all there is.
    mechanism = replace(mechanism, noise=config["privacy"]["noise"], noise_multiplier=0.0)
    trained = method.trainable(model)
    optimizer = parts.make_optimizer([p for n, p in model.named_parameters() if n in trained])
    averaged = parts.averaging and Averaged(model, parts.averaging, mechanism.num_steps)
    clock, repeats = _clock(device, is_of_core=is_few), 1 if is_few else REPEATS

    def timed(part: Mechanism) -> Work:
        with PrivateGradient(
            model, method, part, rank, micro_batch, task.public, task.loss,
            parts.augmentation, parts.clipping,
        ) as gradient:  # fmt: skip
            with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
                first = gradient(state, held, 0)  # which also waits for kernels and memory
                update(model, optimizer, first.gradients)
            seconds = []
            for step in range(1, 1 + repeats):
                began = clock()
                update(model, optimizer, gradient(first.state, held, step).gradients)
                if averaged:
                    averaged.add(model, step)
                seconds.append(clock() - began)
            return Work(min(seconds), counter.get_total_flops())

    with _one_thread() if is_few else nullcontext():
        empty = replace(mechanism, batch_size=EMPTY, sampling="poisson")  # type: ignore[arg-type]
        fixed = timed(empty)
        both = timed(replace(mechanism, batch_size=num, sampling="shuffle"))
    per_example = Work(max(0.0, both.seconds - fixed.seconds), both.flops - fixed.flops)
    m, k = (small["method"].get(key) or 0 for key in ("m", "k"))
    tested = len(task.test) + sum(map(len, task.also.values()))
    peak = memory.peak_mb(device) if shrink is None else None
    return Step(fixed.times(1 / served), per_example.times(1 / num), tested, peak, m, k)


def _with_bases_at_every_step(config: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a config whose GEP finds its bases at every step, and how many steps they serve.

    All but a few of a step's operations without examples are those of the bases.
    """
    method = config["method"]
    if not (method.get("m") and method.get("k") and "every" in method):
        return config, 1
    return {**config, "method": {**method, "every": 1}}, method["every"]


def _two_micro_batches(held: Any, micro_batch: int, most: int) -> int:
    """Return how many examples fill two micro-batches; for texts, more than twice the size."""
    size = 2 * micro_batch
    while size < most:
        some = torch.arange(min(size, len(held)))
        if len(list(held.micro_batches(some, micro_batch))) > 1:
            break
        size *= 2
    return min(size, most)


def _clock(device: torch.device, is_of_core: bool) -> Callable[[], float]:
    """Return a clock: of this process on one core, whatever else is running, or of the wall."""

    def wall() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return time.process_time if is_of_core else wall


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one core meanwhile, so that processor time is that of a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
