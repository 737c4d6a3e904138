"""What a run costs on this device, estimated before it is run.

Where finished runs of its kind left records, a run costs what they did, scaled by epochs times
examples. Any other is taken to be

    steps * (fixed + batch size * per example) + evaluations,

"fixed" being what a step costs without examples (bases, noise, the update) and an evaluation's
example a third of a training one. Both are timed with a few examples, and torch counts their FLOPs.
Augmentation's views, the clipping rule, a filter of gradients and the average of the weights are
part of the step that is timed, and records tell only of runs that have the same of these.

The examples are the run's own, or stand-ins for runs that are too long, or whose data may be
missing: random examples, and encoders of the published shapes with random weights. On a CPU the
time is then that of one core. Records count no FLOPs, so that none are read there.

Not counted, and named beside a cost (`Cost.without`): encoding features once, prompts and warm
starts, attacks, audits and analyses. Nor is what torch counts no FLOPs of.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpexp import records
from dpexp.privacy import num_steps
from dpexp.reporting.collect.build import sources
from dpexp.reporting.collect.outcomes import NO_DATA
from dpexp.types import ConfigError, MissingData, one_line

if TYPE_CHECKING:
    import torch

    from dpexp.cli.step_cost import Step

TEST_SHARE = 0.2
"""Size of test sets over that of training sets (CIFAR-10's)."""

TOKENS = {"mnli": 40, "qqp": 32, "qnli": 52, "sst2": 14}
"""About how many tokens a text of GLUE has on average (ours); of other tasks, `max_length`."""

ALIKE, TIMED, STAND_IN, CANT_RUN, UNKNOWN = (
    "records alike", "timed", "stand-in data", "can't run", "unknown",
)  # fmt: skip

SHRINKS = (20, 40)
"""How many times fewer anchor gradients and basis vectors GEP is measured with."""

IN_A_STEP = ("augmentation", "clipping", "denoise", "averaging")
"""Groups that change what a step costs."""

BESIDES = ("features", "prompts", "warm_start", "attack", "audit", "analysis", "correlation")
"""Groups of what a run does before, between and after its steps, and of past noise in them."""

SLOWEST = 1e9
"""FLOP/s of one core below which FLOPs do not explain the time: torch counts none of most work."""


class Cost(NamedTuple):
    """What a run, or a part of one, takes on this device.

    Attributes:
        seconds: wall time, or a core's time on stand-in data; None if unknown.
        flops: counted by torch; None if they were not counted.
        megabytes: peak memory; None if unknown.
        source: how this is known: "records alike", "timed", "stand-in data", "no data",
            "can't run" or "unknown".
        why: the sentence behind "no data" and "can't run".
        without: what the run does besides and is not counted, as in "analysis=stable_rank".
    """

    seconds: float | None
    flops: float | None = None
    megabytes: float | None = None
    source: str = ""
    why: str = ""
    without: tuple[str, ...] = ()

    def on_gpu(self, pace: float) -> float | None:
        """Return the seconds of a GPU that sustains `pace` FLOP/s; None if FLOPs do not tell."""
        if self.flops is None or self.flops < SLOWEST * (self.seconds or 0.0):
            return None
        return self.flops / pace


def total(costs: Sequence[Cost]) -> Cost:
    """Return the time and the FLOPs of all that are known."""
    return Cost(sum(c.seconds or 0.0 for c in costs), sum(c.flops or 0.0 for c in costs))


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
            taken = statistics.median(seconds) * examples(config)
            return Cost(taken, None, max(megabytes), ALIKE, without=_named(config, ("analysis",)))
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
        judged = evaluations * step.tested + config.get("holdout", {}).get("size", 0)
        rest = step.per_example.times(count + judged / 3)
        return Cost(
            fixed.seconds + rest.seconds,
            fixed.flops + rest.flops,
            step.megabytes,
            STAND_IN if self._has_stand_ins else TIMED,
            without=_named(config, BESIDES),
        )

    def _step(self, config: dict[str, Any], device: torch.device) -> Step:
        """Return a step of the run, measured once a kind.

        On stand-in data it is scaled to the run's tokens, and to GEP's m and k.
        """
        from dpexp.cli.stand_in import LENGTH
        from dpexp.cli.step_cost import bases, measure

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
    names = (str(config[group]["name"]) for group in ("method", "model", "task"))
    rest = {group: config.get(group) for group in (*IN_A_STEP, "micro_batch", *BESIDES)}
    return (*names, json.dumps(_without_folders({**rest, "analysis": None}), sort_keys=True))


def _without_folders(node: Any) -> Any:
    """Return a config without where its files lie."""
    if not isinstance(node, dict):
        return node
    return {k: _without_folders(v) for k, v in node.items() if not k.endswith("_root")}


def _named(config: dict[str, Any], groups: Sequence[str]) -> tuple[str, ...]:
    """Return what a run has of these groups, as on the command line."""
    chosen = ((group, config[group]) for group in groups if config.get(group))
    return tuple(f"{group}={node.get('name') or ','.join(node)}" for group, node in chosen)


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
    more = [config.get(group) for group in IN_A_STEP]
    clip = config["privacy"]["clip"]
    return json.dumps([words, model, inputs, "features" in config, clip, more], sort_keys=True)
