"""What a run costs on this device, estimated before it is run.

Where finished runs of its kind left records, a run costs what they did, scaled by epochs times
examples. Any other is taken to be

    steps * (fixed + batch size * per example) + evaluations,

"fixed" being what a step costs without examples (bases, noise, the update) and an evaluation's
example a third of a training one. Both are timed with a few examples, and torch counts their FLOPs.

The examples are the run's own, or stand-ins for runs that are too long, or whose data may be
missing: random examples, and encoders of the published shapes with random weights. On a CPU the
time is then that of one core. Records count no FLOPs, so that none are read there.

Not counted: encoding features once, attacks and analyses, and what torch counts no FLOPs of.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from dpexp import records
from dpexp.cli.parts import build_parts
from dpexp.cli.stand_in import FEW, LENGTH, TEST_SHARE, TOKENS, stand_in
from dpexp.distributed import memory, ranks
from dpexp.privacy import Mechanism, num_steps, require_room
from dpexp.reporting.collect.build import sources
from dpexp.reporting.collect.outcomes import NO_DATA
from dpexp.training.gradient import PrivateGradient
from dpexp.training.micro_batch import MicroBatch
from dpexp.training.train import make_mechanism, on_device, update
from dpexp.types import ConfigError, MissingData, one_line

ALIKE, TIMED, STAND_IN, CANT_RUN, UNKNOWN = (
    "records alike", "timed", "stand-in data", "can't run", "unknown",
)  # fmt: skip

EMPTY = 1e-12
"""A batch size at which draws are empty."""

REPEATS = 3
"""Steps timed by the wall, of which the shortest counts: others may work meanwhile."""

SHRINKS = (20, 40)
"""How many times fewer anchor gradients and basis vectors GEP is measured with."""

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
    """What a run, or a part of one, takes on this device.

    Attributes:
        seconds: wall time, or a core's time on stand-in data; None if unknown.
        flops: counted by torch; None if they were not counted.
        megabytes: peak memory; None if unknown.
        source: how this is known: "records alike", "timed", "stand-in data", "no data",
            "can't run" or "unknown".
        why: the sentence behind "no data" and "can't run".
    """

    seconds: float | None
    flops: float | None = None
    megabytes: float | None = None
    source: str = ""
    why: str = ""

    def on_gpu(self, pace: float) -> float | None:
        """Return the seconds of a GPU that sustains `pace` FLOP/s; None if FLOPs do not tell."""
        if self.flops is None or self.flops < SLOWEST * (self.seconds or 0.0):
            return None
        return self.flops / pace


def total(costs: Sequence[Cost]) -> Cost:
    """Return the time and the FLOPs of all that are known."""
    return Cost(sum(c.seconds or 0.0 for c in costs), sum(c.flops or 0.0 for c in costs))


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


class CostModel:
    """Estimates what runs cost: from records, else from steps that are timed once a kind."""

    def __init__(
        self,
        results: Path,
        profile: str,
        device: torch.device | None,
        has_stand_ins: bool = False,
    ) -> None:
        """Read a profile's finished records.

        Args:
            results: the results folder.
            profile: the profile's name.
            device: where runs are timed, and of which records are read. None reads all records
                and times nothing: enough where only the order matters.
            has_stand_ins: whether each kind of run is measured on stand-in data, for its FLOPs.
        """
        self._device, self._has_stand_ins = device, has_stand_ins
        self._absent: dict[str, Cost] = {}
        self._steps: dict[str, tuple[Step, ...] | ConfigError] = {}
        self._alike: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        here = device and records.describe_device(device)
        runs = [] if has_stand_ins else sorted((results / profile / "runs").glob("*"))
        for directory in runs:
            record = records.read(directory)
            if record is not None and here in (None, record.result.get("device")):
                self._add(record)

    def _add(self, record: records.Record) -> None:
        """Keep a record's seconds an example and megabytes, where it says both."""
        if record.config.get("analysis"):  # its time would be counted as the steps'
            return
        try:
            seconds = float(record.result["wall_s"]) / examples(record.config)
            megabytes = float(record.result["peak_memory_mb"])
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return
        self._alike.setdefault(_names(record.config), []).append((seconds, megabytes))

    def cost(self, config: dict[str, Any]) -> Cost:
        """Estimate one run; if it can't be done, the cost says why and nothing is raised."""
        if alike := self._alike.get(_names(config)):
            seconds, megabytes = zip(*alike, strict=True)
            return Cost(statistics.median(seconds) * examples(config), None, max(megabytes), ALIKE)
        if self._device is None:
            return Cost(None, source=UNKNOWN)
        if sources(config) in self._absent:
            return self._absent[sources(config)]
        try:
            return self._measured(config, self._device)
        except MissingData as error:
            absent = Cost(None, source=NO_DATA, why=one_line(error))
            return self._absent.setdefault(sources(config), absent)
        except ConfigError as error:
            return Cost(None, source=CANT_RUN, why=one_line(error))

    def _measured(self, config: dict[str, Any], device: torch.device) -> Cost:
        """Scale a kind's step to the run.

        Raises:
            MissingData: the run's own data are not there.
            ConfigError: it can't be run, or has a loop that is not known here.
        """
        if "loop" in config:
            one, steps, count = _teachers(config)
        else:
            size, batch, sampling = (
                config["task"]["dataset_size"], config["batch_size"], config["privacy"]["sampling"]
            )  # fmt: skip
            one, steps = config, num_steps(config["epochs"], size, batch, sampling)
            count = steps * batch
        step = self._step(one, device)
        evaluations = 0.0 if "loop" in config else config["epochs"] / config["eval_every"]
        if not self._has_stand_ins:  # short runs, of which the last evaluation is a large part
            evaluations = math.ceil(evaluations)
        fixed = step.fixed.times(steps)
        rest = step.per_example.times(count + evaluations * step.tested / 3)
        return Cost(
            fixed.seconds + rest.seconds,
            fixed.flops + rest.flops,
            step.megabytes,
            STAND_IN if self._has_stand_ins else TIMED,
        )

    def _step(self, config: dict[str, Any], device: torch.device) -> Step:
        """Return a step of the run, measured once a kind.

        On stand-in data it is scaled to the run's tokens, and to GEP's m and k.
        """
        key = _kind(config, self._has_stand_ins)
        has_anchors = bool(config["method"].get("m") and config["method"].get("k"))
        shrinks = (SHRINKS if has_anchors else (1,)) if self._has_stand_ins else (None,)
        if key not in self._steps:
            try:
                self._steps[key] = tuple(measure(config, device, shrink) for shrink in shrinks)
            except ConfigError as error:
                self._steps[key] = error
        steps = self._steps[key]
        if isinstance(steps, ConfigError):
            raise steps
        step, task = steps[0], config["task"]
        if not self._has_stand_ins:
            return step
        if task.get("max_length"):
            length = min(TOKENS.get(task["name"], task["max_length"]), task["max_length"])
            step = replace(step, per_example=step.per_example.times(length / LENGTH))
        tested = TEST_SHARE * task["dataset_size"]
        return replace(
            step, tested=tested, fixed=bases(steps, config["method"]) if has_anchors else step.fixed
        )


def _teachers(config: dict[str, Any]) -> tuple[dict[str, Any], int, float]:
    """Return PATE as non-private steps of its student's model: one's config, steps and examples."""
    pate = config["method"]
    if "teachers" not in pate:
        raise ConfigError(f"No cost is known of loop={config['loop']}: a plan leaves it out.")
    plain = {"_target_": "dpexp.methods.dpsgd.DPSGD", "name": "nonprivate", "train": "all",
             "head": config["model"].get("head")}  # fmt: skip
    quiet = {**config["privacy"], "clip": False, "noise": False, "eps": None}
    student = {key: value for key, value in config.items() if key != "loop"}
    student |= {"method": plain, "privacy": quiet, "batch_size": pate["student_batch"]}
    steps = pate["teachers"] * pate["teacher_steps"] + pate["student_steps"]
    count = pate["teachers"] * pate["teacher_steps"] * pate["teacher_batch"]
    count += pate["student_steps"] * pate["student_batch"]
    count += pate["teachers"] * pate["queries"] / 3
    return student, steps, count


def _names(config: dict[str, Any]) -> tuple[str, ...]:
    """Return what has to agree for a record to tell what another run costs per example."""
    return tuple(str(config[group]["name"]) for group in ("method", "model", "task"))


def examples(config: dict[str, Any]) -> float:
    """Return how many examples a run goes through: epochs times the declared training set size."""
    return float(config["epochs"]) * float(config["task"]["dataset_size"])


def _kind(config: dict[str, Any], is_stand_in: bool) -> str:
    """Return what has to agree for two runs to share a measured step.

    A method's numbers (rank, sparsity) need not: they change a step by less than the estimate is
    good for. Not so GEP's m and k, which only stand-in data are scaled by.
    """
    task, method = config["task"], config["method"]
    words = {k: v for k, v in method.items() if isinstance(v, str | bool | None) and k != "name"}
    model = {k: v for k, v in config["model"].items() if k != "model_root"}
    inputs = [task.get(key) for key in ("input_shape", "max_length")]
    if not is_stand_in:
        inputs += [task, method.get("m"), method.get("k"), config["micro_batch"]]
    elif not any(inputs):
        inputs = [task["name"]]
    more = [config.get(group) for group in ("augmentation", "clipping")]
    clip = config["privacy"]["clip"]
    return json.dumps([words, model, inputs, "features" in config, clip, more], sort_keys=True)


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
            None: the run's own data.

    Raises:
        MissingData: the run's own data are not there.
        ConfigError: the run can't be done, or has no stand-in.
    """
    small = config if shrink is None else stand_in(config, shrink)
    memory.reset_peak(device)
    parts, alone = build_parts(small, device), ranks.Ranks(0, 1, device)
    model, method, task = parts.model, parts.method, parts.task
    state = method.start(model)
    mechanism = make_mechanism(small, config["task"]["dataset_size"], method, state, alone)
    require_room(mechanism, next(model.parameters()).dtype, config)
    held = on_device(task.train, device)
    micro_batch = MicroBatch(small, parts, state, mechanism, alone).settle(0, held)
    is_few = shrink is not None and device.type == "cpu"
    num = FEW if is_few else _two_micro_batches(held, micro_batch, config["batch_size"])
    num = min(num, config["batch_size"])
    # Noise is drawn but times zero: over an empty batch it would be all there is.
    mechanism = replace(mechanism, noise=config["privacy"]["noise"], noise_multiplier=0.0)
    trained = method.trainable(model)
    optimizer = parts.make_optimizer([p for n, p in model.named_parameters() if n in trained])
    clock, repeats = _clock(device, is_of_core=is_few), 1 if is_few else REPEATS

    def timed(part: Mechanism) -> Work:
        with PrivateGradient(
            model, method, part, alone, micro_batch, task.public, task.loss,
            parts.augmentation, parts.clipping,
        ) as gradient:  # fmt: skip
            with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
                first = gradient(state, held, 0)  # which also waits for kernels and memory
                update(model, optimizer, first.gradients)
            seconds = []
            for step in range(1, 1 + repeats):
                began = clock()
                update(model, optimizer, gradient(first.state, held, step).gradients)
                seconds.append(clock() - began)
            return Work(min(seconds), counter.get_total_flops())

    with _one_thread() if is_few else nullcontext():
        fixed = timed(replace(mechanism, batch_size=EMPTY, sampling="poisson"))
        both = timed(replace(mechanism, batch_size=num, sampling="shuffle"))
    per_example = Work(max(0.0, both.seconds - fixed.seconds), both.flops - fixed.flops)
    m, k = (small["method"].get(key) or 0 for key in ("m", "k"))
    tested = len(task.test) + sum(map(len, task.also.values()))
    peak = memory.peak_mb(device) if shrink is None else None
    return Step(fixed, per_example.times(1 / num), tested, peak, m, k)


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
