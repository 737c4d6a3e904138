"""What a run costs: steps of a few examples timed on this device, scaled by counted FLOPs.

A run is taken to be

    steps * (fixed + batch size * per example) + evaluations,

"fixed" being what a step costs without examples (bases, noise, the update) and an evaluation's
example a third of a training one. Both are timed with a few examples, together with the FLOPs that
torch counts, and scaled to the run's size; on a CPU the time is that of one core. Neither data nor
pretrained weights are needed: examples are random, and encoders have the published shapes and
random weights.

Not counted: encoding features once, attacks and analyses, and what torch counts no FLOPs of.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from dpexp import records
from dpexp.cli.parts import build_parts
from dpexp.cli.stand_in import LENGTH, stand_in
from dpexp.distributed import ranks
from dpexp.privacy import Mechanism, num_steps
from dpexp.training.gradient import PrivateGradient
from dpexp.training.micro_batch import AUTO
from dpexp.training.train import EMPTY, make_mechanism, update
from dpexp.types import ConfigError, one_line

FEW = 4
"""Examples timed on a CPU."""

TEST_SHARE = 0.2
"""Size of test sets over that of training sets (CIFAR-10's), where the data are not there."""

SHRINKS = (20, 40)
"""How many times fewer anchor gradients and basis vectors GEP is measured with."""

TOKENS = {"mnli": 40, "qqp": 32, "qnli": 52, "sst2": 14}
"""About how many tokens a text of GLUE has on average (ours); of other tasks, `max_length`."""

SUSTAINED = 5e12
"""FLOP/s of a GPU under private training in float32: about a quarter of an A100's 19.5e12."""

SLOWEST = 1e9
"""FLOP/s of one core below which FLOPs do not explain the time: torch counts none of most work."""


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


class Cost(NamedTuple):
    """What a part of a run takes on this device."""

    seconds: float
    flops: float

    def times(self, number: float) -> Cost:
        """Return the cost of so many."""
        return Cost(self.seconds * number, self.flops * number)

    def plus(self, other: Cost) -> Cost:
        """Return the cost of both."""
        return Cost(self.seconds + other.seconds, self.flops + other.flops)


@dataclass(frozen=True)
class Step:
    """A step's cost without examples, and that of each example; with which m and k, of GEP."""

    fixed: Cost
    per_example: Cost
    m: int = 0
    k: int = 0


class Hours:
    """Costs runs on a device; runs of a kind share one measurement.

    Two runs are of a kind when model and inputs agree, and the method but for its numbers (rank,
    sparsity): these change a step by less than the estimate is good for. Not so GEP's m and k, in
    which the cost of its bases is taken to be a m + b m k.
    """

    def __init__(self, device: torch.device) -> None:
        """Take the device at hand."""
        self._device = device
        self._steps: dict[str, tuple[Step, ...] | ConfigError] = {}

    def cost(self, config: dict[str, Any]) -> Cost:
        """Estimate a run.

        Raises:
            ConfigError: for one that can't be.
        """
        size, batch = config["task"]["dataset_size"], config["batch_size"]
        if "loop" in config:
            return self._teachers(config)
        step = self._step(config)
        steps = num_steps(config["epochs"], size, batch, config["privacy"]["sampling"])
        evaluated = config["epochs"] / config["eval_every"] * TEST_SHARE * size
        examples = steps * batch + evaluated / 3
        return step.fixed.times(steps).plus(step.per_example.times(examples))

    def _teachers(self, config: dict[str, Any]) -> Cost:
        """Cost PATE as so many non-private examples of its student's model."""
        pate = config["method"]
        plain = {"_target_": "dpexp.methods.dpsgd.DPSGD", "name": "nonprivate", "train": "all",
                 "head": config["model"].get("head")}  # fmt: skip
        step = self._step(
            {**config, "method": plain, "privacy": {**config["privacy"], "clip": False}}
        )
        steps = pate["teachers"] * pate["teacher_steps"] + pate["student_steps"]
        examples = pate["teachers"] * pate["teacher_steps"] * pate["teacher_batch"]
        examples += pate["student_steps"] * pate["student_batch"]
        examples += pate["teachers"] * pate["queries"] / 3
        return step.fixed.times(steps).plus(step.per_example.times(examples))

    def _step(self, config: dict[str, Any]) -> Step:
        """Scale the kind's measurement to this run's step."""
        key = _kind(config)
        if key not in self._steps:
            shrinks = SHRINKS if _has_anchors(config) else (1,)
            try:
                self._steps[key] = tuple(_measure(config, self._device, s) for s in shrinks)
            except ConfigError as error:
                self._steps[key] = error
        steps = self._steps[key]
        if isinstance(steps, ConfigError):
            raise steps
        step, task = steps[0], config["task"]
        if task.get("max_length"):
            length = min(TOKENS.get(task["name"], task["max_length"]), task["max_length"])
            step = replace(step, per_example=step.per_example.times(length / LENGTH))
        if _has_anchors(config):
            step = replace(step, fixed=_bases(steps, config["method"]))
        return step


def _bases(steps: Sequence[Step], method: dict[str, Any]) -> Cost:
    """Solve a m + b m k from two small pairs (m, k), and give it at the method's."""
    (m1, k1, one), (m2, k2, two) = [(step.m, step.k, step.fixed) for step in steps]
    per_pair = max(0.0, one.flops / m1 - two.flops / m2) / (k1 - k2)
    per_anchor = max(0.0, one.flops / m1 - per_pair * k1)
    flops = method["m"] * (per_anchor + per_pair * method["k"])
    return Cost(flops * one.seconds / max(one.flops, 1.0), flops)


def _has_anchors(config: dict[str, Any]) -> bool:
    return bool(config["method"].get("m") and config["method"].get("k"))


def _kind(config: dict[str, Any]) -> str:
    task, method = config["task"], config["method"]
    words = {k: v for k, v in method.items() if isinstance(v, str | bool | None) and k != "name"}
    model = {k: v for k, v in config["model"].items() if k != "model_root"}
    inputs = [task.get(key) for key in ("input_shape", "max_length")]
    if not any(inputs):
        inputs = [task["name"]]
    clip = config["privacy"]["clip"]
    return json.dumps([words, model, inputs, "features" in config, clip], sort_keys=True)


def _measure(config: dict[str, Any], device: torch.device, shrink: int) -> Step:
    small = stand_in(config, shrink)
    if "channels_last" in small["model"]:  # operations of kernels in C are not counted
        small["model"]["channels_last"] = False
    parts = build_parts(small, device)
    model, method, task = parts.model, parts.method, parts.task
    state = method.start(model)
    quiet = {**config["privacy"], "noise": False, "eps": None}
    alone = ranks.Ranks(0, 1, device)
    sized = {**config, "privacy": quiet, "batch_size": FEW, "epochs": 1}
    mechanism = replace(
        make_mechanism(sized, config["task"]["dataset_size"], method, state, alone),
        noise=True,
        noise_multiplier=0.0,  # drawn all the same; over an empty batch it would be all there is
    )
    weights = [p for n, p in model.named_parameters() if n in method.trainable(model)]
    optimizer = parts.make_optimizer(weights)
    examples = task.train
    micro_batch = FEW if config["micro_batch"] == AUTO else config["micro_batch"]

    def timed(part: Mechanism) -> Cost:
        with PrivateGradient(
            model, method, part, alone, micro_batch, task.public, task.loss
        ) as gradient:
            gradient(state, examples, 0)  # the first of a shape also waits for kernels and memory
            began = _clock(device)
            with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
                outcome = gradient(state, examples, 1)
                update(model, optimizer, outcome.gradients)
            return Cost(_clock(device) - began, counter.get_total_flops())

    num = min(FEW if device.type == "cpu" else 2 * micro_batch, config["batch_size"])
    with _one_thread(device):
        fixed = timed(replace(mechanism, batch_size=EMPTY, sampling="poisson"))
        both = timed(replace(mechanism, batch_size=num, sampling="shuffle"))
    per_example = Cost(max(0.0, both.seconds - fixed.seconds), both.flops - fixed.flops)
    m, k = (small["method"].get(key) or 0 for key in ("m", "k"))
    return Step(fixed, per_example.times(1 / num), m, k)


def _clock(device: torch.device) -> float:
    """Read wall time on a GPU; on a CPU that of this process, whatever else is running."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Compute on one core meanwhile, so that processor time is that of a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plan(
    what: str,
    wanted: Mapping[str, Sequence[dict[str, Any]]],
    device: torch.device,
    flops: float | None,
) -> Iterator[str]:
    """Return a table in Markdown, line by line: hours that the runs of each take, and the total.

    A run that several share counts for the first of them.

    Args:
        what: the names are of, "Artifact" or "Cell".
        wanted: name -> configs of the runs to do.
        device: at hand.
        flops: FLOP/s that a GPU sustains, to turn FLOPs into GPU-hours on a CPU; None: `SUSTAINED`.
    """
    hours, total = Hours(device), Cost(0.0, 0.0)
    seen: set[str] = set()
    unknown: dict[str, str] = {}
    is_gpu = device.type == "cuda"
    pace = flops or SUSTAINED
    yield f"| {what} | Runs | {'GPU' if is_gpu else 'Core'}-hours here | PFLOP |" + (
        "" if is_gpu else " GPU-hours |"
    )
    yield "| --- | ---: | ---: | ---: |" + ("" if is_gpu else " ---: |")

    def line(name: str, runs: int, cost: Cost) -> str:
        is_counted = cost.flops >= SLOWEST * cost.seconds
        more = "" if is_gpu else f" {_hours(cost.flops / pace) if is_counted else '–'} |"
        return f"| {name} | {runs} | {_hours(cost.seconds)} | {_petaflops(cost)} |{more}"

    for name, configs in wanted.items():
        fresh = {records.run_id(config): config for config in configs}
        fresh = {run_id: config for run_id, config in fresh.items() if run_id not in seen}
        seen |= set(fresh)
        cost = Cost(0.0, 0.0)
        for config in fresh.values():
            try:
                cost = cost.plus(hours.cost(config))
            except ConfigError as error:
                unknown[one_line(error)] = name
        total = total.plus(cost)
        yield line(name, len(fresh), cost)
    yield line("**total**", len(seen), total)
    yield ""
    yield f"Device: {records.describe_device(device)}{'' if is_gpu else ', one core of it'}."
    if not is_gpu:
        yield (
            f"No GPU is here: GPU-hours are FLOPs at {pace:.3g} FLOP/s; flops= sets another pace. "
            "–: torch counts no FLOPs of most of the work."
        )
    yield from (f"Not in it, {name}: {why}" for why, name in unknown.items())


def _petaflops(cost: Cost) -> str:
    number = cost.flops / 1e15
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
