"""What a person sees while a run goes on: a dashboard's curves and a bar on the terminal."""

from __future__ import annotations

import io
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from dpexp.training import dashboard
from dpexp.types import one_line, require_word

MODES = ("disabled", "offline", "online")
START, SEND, FINISH = 150.0, 60.0, dashboard.UPLOAD + 30.0
"""Seconds that a call into wandb may take (ours); its own limits are below them."""

REASON = 300
"""Characters of a failure that are told."""

QUIET = ("nonfinite", "nonfinite_outputs")
"""Counts that are shown only where they are not zero."""

NAMED = ("profile", "method", "model", "task")
"""Parts of a config whose names are tags."""


class Tracker:
    """Sends a run's metrics to wandb, which is imported only if it is wanted.

    A dashboard's run has the id of the record; as group the artifact, `PAPER/NAME`; as tags paper,
    profile, method, model and task; as job type what it is for (`job_type`). Lines have the step
    of training as theirs, so that a resumed run draws over what it sends again.

    A dashboard may fail, a run may not: the first call into wandb that fails, or does not come
    back, is warned of, and is the last.

    Args:
        config: the run's; its `wandb` section has mode (disabled, offline or online), project,
            and, where known, entity, group (the artifact) and paper.
        directory: the run's; wandb's own files go below it.

    Raises:
        ConfigError: for an unknown mode.
    """

    def __init__(self, config: Mapping[str, Any], directory: str | Path) -> None:
        self._run: Any = None
        mode = config["wandb"]["mode"]
        require_word("wandb.mode", mode, MODES)
        if mode != "disabled":
            self._run = self._try(
                lambda: dashboard.start(config, Path(directory).resolve(), job_type(config)), START
            )

    def log(self, line: Mapping[str, Any]) -> None:
        """Send one evaluation, the same as in metrics.jsonl."""
        if self._run is not None:
            self._try(lambda: self._run.log(_given(line), step=line["step"]), SEND)

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Send what came out: the run's summary, and its one point of score over target epsilon.

        The score is the task's metric under one name whatever the metric, so that one chart takes
        every run of a task; a run without a target has no point.

        Args:
            result: of result.json.
        """
        if self._run is not None:
            self._try(lambda: self._send(result), SEND)

    def _send(self, result: Mapping[str, Any]) -> None:
        score = {score_of(result["task"]): result[result["metric"]]}
        if result["eps"] is not None:
            self._run.log({"eps": result["eps"], **score}, step=result["steps"])
        flat = {key: v for key, v in _given(result).items() if not isinstance(v, Mapping)}
        self._run.summary.update({**flat, **score, "score": result[result["metric"]]})

    def close(self, exit_code: int = 0) -> None:
        """Finish the dashboard's run."""
        if self._run is not None:
            self._try(lambda: self._run.finish(exit_code=exit_code), FINISH)
            self._run = None

    def _try(self, call: Callable[[], Any], seconds: float) -> Any:
        """Return what a call into wandb gives; once one fails there is no dashboard any more."""
        try:
            return dashboard.within(seconds, call)
        except Exception as error:
            self._run = None
            dashboard.abandon(error)
            reason = one_line(error).rstrip(".") or type(error).__name__
            warnings.warn(
                f"wandb failed: {reason[:REASON]}. The run goes on without a dashboard; its "
                "metrics.jsonl has every line.",
                stacklevel=3,
            )
            return None

    def __enter__(self) -> Tracker:
        """Nothing more to start."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close, telling the dashboard whether the run ended by an error."""
        self.close(exit_code=0 if kind is None else 1)


def job_type(config: Mapping[str, Any]) -> str:
    """Say what a run is for: "audit", "attack" or "analysis", else "train"."""
    return next((kind for kind in ("audit", "attack", "analysis") if config.get(kind)), "train")


def score_of(task: str) -> str:
    """Name the key under which a dashboard has a task's metric at the end of each run."""
    return f"score/{task}"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@contextmanager
def _unheard() -> Iterator[None]:
    """Go on where what was said could not be written: the terminal is gone, or its log's disk full.

    A closed file raises ValueError.
    """
    with suppress(OSError, ValueError):
        yield


class Progress:
    """A bar with examples per second, epsilon spent and time left; plain lines off a terminal.

    What cannot be written is dropped: a run goes on without its dashboard.

    Args:
        total_steps: of the whole run.
        label: what runs.
        stream: where to write; standard error by default, so that standard output stays clean.
    """

    def __init__(self, total_steps: int, label: str = "", stream: TextIO | None = None) -> None:
        # Python has no standard error where it was started with that closed.
        self._stream = stream or sys.stderr or io.StringIO()
        self._label, self._total = label, total_steps
        self._step = self._examples = 0
        self._words: dict[str, str] = {}
        tqdm.set_lock(threading.RLock())  # its own takes a semaphore, which a killed run leaves
        self._bar = tqdm(
            total=total_steps,
            desc=label,
            unit="step",
            file=self._stream,
            disable=not self._stream.isatty(),
            mininterval=0.5,
            leave=False,
        )
        self.start_from(0)

    def start_from(self, step: int) -> None:
        """Go on from a checkpoint; what was done before does not count in the speed."""
        self._first = self._step = step
        self._examples = 0
        self._began = time.perf_counter()
        self._bar.initial = step
        with _unheard():
            self._bar.reset(self._total)

    @property
    def examples_per_s(self) -> float:
        """Examples that went through the model per second, since this process began."""
        return self._examples / max(time.perf_counter() - self._began, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Time the remaining steps will take at the speed so far."""
        done = max(self._step - self._first, 1)
        return (time.perf_counter() - self._began) / done * (self._total - self._step)

    def advance(self, examples: int) -> None:
        """Count a step and its examples."""
        self._step += 1
        self._examples += examples
        if not self._bar.disable:
            with _unheard():
                self._bar.set_postfix(self._said(), refresh=False)
                self._bar.update()

    def report(self, line: Mapping[str, Any]) -> None:
        """Show an evaluation's metrics."""
        shown = {key: line[key] for key in line if key not in ("step", "epoch")}
        self._words = {
            key: f"{value:.4g}"
            for key, value in shown.items()
            if isinstance(value, int | float) and not (key in QUIET and value == 0)
        }
        if self._bar.disable:
            words = " ".join(f"{key}={value}" for key, value in self._said().items())
            left = tqdm.format_interval(self.seconds_left)
            text = f"{self._label} step {self._step}/{self._total} {words} left={left}".strip()
            with _unheard():
                print(text, file=self._stream, flush=True)

    def _said(self) -> dict[str, str]:
        return {"examples/s": f"{self.examples_per_s:.0f}", **self._words}

    def close(self) -> None:
        """Take the bar away."""
        with _unheard():
            self._bar.close()

    def __enter__(self) -> Progress:
        """Nothing more to start."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
