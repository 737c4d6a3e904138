"""Show a run's progress: a dashboard's curves and a progress bar on the terminal."""

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
"""Largest number of characters of a failure's message."""

QUIET = ("nonfinite", "nonfinite_outputs")
"""Counts that are shown only if they are not zero."""

NAMED = ("profile", "method", "model", "task")
"""Config groups whose names become tags."""


class Tracker:
    """Sends a run's metrics to wandb, which is imported only if enabled.

    A dashboard's run has the id of the record; as group the artifact, `PAPER/NAME`; as tags paper,
    profile, method, model and task; as job type what it is for (`job_type`). Lines have the step
    of training as theirs, so that a resumed run draws over what it sends again.

    A failing dashboard does not affect the run. After the first call into wandb that fails or
    hangs, a warning is issued and there are no more calls.

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
        """Send the result: the run's summary, and one point of score over target epsilon.

        The score is the task's metric under one name whatever the metric, so that one chart can
        show every run of a task. A run without a target epsilon has no point.

        Args:
            result: contents of result.json.
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
        """Return the result of a call into wandb; after a failure the dashboard is disabled."""
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
        """Close, and report to the dashboard whether the run failed."""
        self.close(exit_code=0 if kind is None else 1)


def job_type(config: Mapping[str, Any]) -> str:
    """Return a run's purpose: "audit", "attack", "analysis" or "train"."""
    return next((kind for kind in ("audit", "attack", "analysis") if config.get(kind)), "train")


def score_of(task: str) -> str:
    """Return the dashboard's key for a task's final metric."""
    return f"score/{task}"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@contextmanager
def _ignoring_output_errors() -> Iterator[None]:
    """Ignore failed output, e.g. if the terminal is gone or the log's disk is full.

    A closed file raises ValueError.
    """
    with suppress(OSError, ValueError):
        yield


class Progress:
    """A progress bar with examples per second, epsilon and time left; plain lines off a terminal.

    Output that cannot be written is dropped, and the run continues.

    Args:
        total_steps: of the whole run.
        label: of the run.
        stream: where to write; standard error by default, so that standard output stays clean.
    """

    def __init__(self, total_steps: int, label: str = "", stream: TextIO | None = None) -> None:
        # Python has no standard error if it was started with that closed.
        self._stream = stream or sys.stderr or io.StringIO()
        self._label, self._total = label, total_steps
        self._step = self._examples = 0
        self._words: dict[str, str] = {}
        tqdm.set_lock(threading.RLock())  # tqdm's own uses a semaphore, which a killed run leaks
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
        """Set the step after resuming; earlier steps do not count in the speed."""
        self._first = self._step = step
        self._examples = 0
        self._began = time.perf_counter()
        self._bar.initial = step
        with _ignoring_output_errors():
            self._bar.reset(self._total)

    @property
    def examples_per_s(self) -> float:
        """Examples per second since this process began."""
        return self._examples / max(time.perf_counter() - self._began, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Seconds that the remaining steps will take at the current speed."""
        done = max(self._step - self._first, 1)
        return (time.perf_counter() - self._began) / done * (self._total - self._step)

    def advance(self, examples: int) -> None:
        """Count a step and its examples."""
        self._step += 1
        self._examples += examples
        if not self._bar.disable:
            with _ignoring_output_errors():
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
            with _ignoring_output_errors():
                print(text, file=self._stream, flush=True)

    def _said(self) -> dict[str, str]:
        return {"examples/s": f"{self.examples_per_s:.0f}", **self._words}

    def close(self) -> None:
        """Remove the progress bar."""
        with _ignoring_output_errors():
            self._bar.close()

    def __enter__(self) -> Progress:
        """Nothing more to start."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
