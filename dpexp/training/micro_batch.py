"""Tune the micro-batch if the config leaves it to the machine."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.privacy import Mechanism
from dpexp.records import RecordError, describe_device, write_atomically
from dpexp.records.caches import cache_dir
from dpexp.training.gradient import PrivateGradient
from dpexp.training.numbers import AUTO
from dpexp.types import ConfigError, State
from dpexp.warned import told_if_long

log = logging.getLogger("dpexp")

USABLE = 0.8
"""Share of free memory to use (ours): allocators fragment, and batches may exceed their mean."""

GAIN = 0.95
"""On a CPU a larger size is chosen if it takes less than this share of the time per example
(ours)."""

EASED = 1.2
"""Larger sizes are tried again once this much more memory is free than when it ran out (ours):
another process may have freed it."""

LATER = 3 * 4
"""Bytes per trainable number that are allocated after the first sums: its gradient and Adam's
two."""


@dataclass(frozen=True)
class Trial:
    """Time and memory at one size.

    Attributes:
        size: examples at once.
        seconds: per example.
        peak_mb: peak of the process, in MB.
    """

    size: int
    seconds: float
    peak_mb: float


class MicroBatch:
    """A run's micro-batch: configured, or tuned and cached; smaller once memory has run out.

    It affects rounding only, so a resumed run keeps its size.
    """

    def __init__(
        self, config: dict, parts: Any, state: State, mechanism: Mechanism, ranks: Ranks
    ) -> None:
        """Take the run's parts, its method's state before the first step and its batch size."""
        self._config, self._parts, self._state = config, parts, state
        self._mechanism, self._ranks = mechanism, ranks
        self._entry = self._named(parts.task)

    def settle(self, before: int, examples: Any) -> int:
        """Return the size, which rank 0 determines for all.

        Args:
            before: the size when the run was stopped; 0 for a new run.
            examples: the training set, on a device that the model can read.

        Raises:
            ConfigError: if not even one example fits.
        """
        said = self._config["micro_batch"]
        if said == AUTO:
            return before or self._recall() or self._find(examples)
        if 0 < before < said:
            log.info("micro_batch=%d, with which the run began, or what fitted then", before)
        return min(said, before or said)

    def lower(self, size: int) -> None:
        """Cache a smaller size after memory ran out, if the size was tuned here."""
        if self._config["micro_batch"] == AUTO and self._ranks.is_first:
            self._remember(size, None)

    @property
    def _most(self) -> int:
        """The largest power of two within this rank's share of an expected batch."""
        share = self._mechanism.batch_size / self._ranks.size
        return 1 << max(0, int(share).bit_length() - 1)

    @property
    def _room_mb(self) -> float:
        device, size = self._ranks.device, self._ranks.size
        places = torch.cuda.device_count() if device.type == "cuda" else 1
        room = memory.room_mb(device, sharing=max(1, size // places))
        return float("inf") if room is None else USABLE * room

    def _named(self, task: Any) -> Path:
        deciding = {
            "model": self._config["model"],
            "method": self._config["method"],
            "task": [task.name, list(task.input_shape), getattr(task.train, "longest", None)],
            "device": describe_device(self._ranks.device),
            "ranks": self._ranks.size,
            "most": self._most,
            "torch": torch.__version__,
        }
        if "augmentation" in self._config:
            deciding["augmentation"] = self._config["augmentation"]
        text = json.dumps(deciding, sort_keys=True)
        return cache_dir() / AUTO / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"

    def _recall(self) -> int | None:
        try:
            kept = json.loads(self._entry.read_text())
            size, peak_mb = int(kept["micro_batch"]), float(kept["peak_mb"] or 0)
            most_mb = float("inf") if peak_mb else EASED * float(kept["room_mb"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        if not 1 <= size <= self._most or not peak_mb <= self._room_mb <= most_mb:
            return None
        log.info("micro_batch=%d, found before for this model, method and device", size)
        return size

    def _remember(self, size: int, peak_mb: float | None) -> None:
        try:
            self._entry.parent.mkdir(parents=True, exist_ok=True)
            kept = {"micro_batch": size, "peak_mb": peak_mb, "room_mb": self._room_mb}
            write_atomically(self._entry, json.dumps(kept))
        except (OSError, RecordError) as error:
            log.warning("cannot remember the micro-batch in %s (%s)", self._entry.parent, error)

    def _find(self, examples: Any) -> int:
        parts, room, device = self._parts, self._room_mb, self._ranks.device
        model, method, task = parts.model, parts.method, parts.task
        trained = method.trainable(model)
        numbers = sum(p.numel() for name, p in model.named_parameters() if name in trained)
        later = LATER + 8 * self._mechanism.bands  # past noise too, where it is correlated
        left = room - later * numbers / 1e6
        with PrivateGradient(
            model,
            method,
            self._mechanism,
            self._ranks,
            1,
            task.public,
            task.loss,
            self._parts.augmentation,
            self._parts.clipping,
        ) as gradient:
            with told_if_long("finding the micro-batch, once for this model, method and device"):
                trials = try_sizes(gradient, self._state, examples, self._most, left, device)
        chosen = choose(trials, device)
        log.info(
            "micro_batch=%d: the %s of 1 to %d; %.3g ms an example, %.0f MB of %.0f",
            chosen.size,
            "fastest" if device.type == "cpu" else "largest",
            trials[-1].size,
            1000 * chosen.seconds,
            chosen.peak_mb,
            room,
        )
        memory.reset_peak(device)  # the trials do not count
        self._remember(chosen.size, chosen.peak_mb)
        return chosen.size


def try_sizes(
    gradient: PrivateGradient,
    state: State,
    examples: Any,
    most: int,
    room_mb: float,
    device: torch.device,
) -> list[Trial]:
    """Return trials of 1, 2, 4, ... examples at once, each a step up to its sums.

    Args:
        gradient: of the run.
        state: the method's.
        examples: the training set.
        most: the largest size to try.
        room_mb: how far the peak may rise.
        device: the model's.

    Raises:
        ConfigError: if not even one example fits.
    """
    rehearse = gradient.rehearsal(state, examples)
    widest = _widest(examples)
    trials: list[Trial] = []
    while (size := next_size(trials, most, room_mb, device)) is not None:
        try:
            trials.append(_tried(rehearse, widest.repeat(size), device))
        except (MemoryError, RuntimeError) as error:
            if not memory.ran_out(error):
                raise
            if size == 1:
                raise ConfigError(memory.one_example(error)) from None
            break
    memory.collect()
    return trials


def next_size(trials: list[Trial], most: int, room_mb: float, device: torch.device) -> int | None:
    """Return twice the last size; None if that is too large, would not fit, or gains nothing.

    The next peak is extrapolated linearly from the last two. On a CPU the search ends after two
    doublings without a gain in speed.

    Args:
        trials: so far, from size 1 on.
        most: the largest size to try.
        room_mb: how far the peak may rise.
        device: the model's.
    """
    if not trials:
        return 1
    last = trials[-1]
    size, expected_mb = 2 * last.size, 0.0
    if len(trials) > 1:
        expected_mb = last.peak_mb + 2 * max(0.0, last.peak_mb - trials[-2].peak_mb)
    is_idle = device.type == "cpu" and last.size >= 4 * choose(trials, device).size
    return None if size > most or expected_mb > room_mb or is_idle else size


def choose(trials: list[Trial], device: torch.device) -> Trial:
    """Return the largest size that fits; on a CPU the smallest of the fastest ones."""
    if device.type != "cpu":
        return trials[-1]
    best = min(trial.seconds for trial in trials)
    return next(trial for trial in trials if GAIN * trial.seconds <= best)


def _tried(rehearse: Any, indices: Tensor, device: torch.device) -> Trial:
    memory.reset_peak(device)
    rehearse(indices)  # warm up: the first call of a shape also loads kernels
    began = time.perf_counter()
    rehearse(indices)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - began) / len(indices)
    return Trial(len(indices), seconds, memory.peak_mb(device))


def _widest(examples: Any) -> Tensor:
    """Return the index of a longest text, [1]; the last index if all examples have one size."""
    for some in examples.micro_batches(torch.arange(len(examples)), 1):
        last = some
    return last[-1:]
