"""Send a run's metrics to dashboards and spreadsheets: wandb, TensorBoard, CSV."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dpexp.records import without_diagnostics, write_atomically
from dpexp.records.record import METRICS, lines_of
from dpexp.training import dashboard
from dpexp.types import ConfigError, one_line, require_word
from dpexp.warned import warn_caller

MODES = ("disabled", "offline", "online")
FILES = ("tensorboard", "csv")
"""Names in `tracking`; wandb has a section of its own."""

START, SEND, FINISH = 150.0, 60.0, dashboard.UPLOAD + 30.0
"""Seconds that a call into a dashboard's library may take (ours); wandb's own limits are below
them."""

REASON = 300
"""Largest number of characters of a failure's message."""

CURVES = "steps"
"""Prefix of what is sent between evaluations."""


class Sink(Protocol):
    """What takes a run's numbers."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers by name; a resumed run may send a step again."""

    def conclude(self, result: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
        """Take the contents of result.json and privacy.json."""

    def finish(self, exit_code: int) -> None:
        """Close."""


class Tracker:
    """Sends a run's metrics to every place that the config names; a library is imported only then.

    An evaluation is sent as in metrics.jsonl; the curves between, under names that begin with
    `steps/`. Lines have the step of training as theirs, so that a resumed run draws over what it
    sends again.

    A failing place does not affect the run. After the first call into it that fails or hangs, a
    warning is issued and there are no more calls.

    Args:
        config: the run's; `wandb.mode` (disabled, offline or online) and the names in `tracking`
            choose the places.
        directory: the run's; what they write goes below it.

    Raises:
        ConfigError: for an unknown mode, or a library that is not installed.
    """

    def __init__(self, config: Mapping[str, Any], directory: str | Path) -> None:
        require(config)
        directory = Path(directory).resolve()
        self._sinks: dict[str, Sink] = {}
        chosen, labels = config.get("tracking", {}), (job_type(config), run_name(config))
        if config["wandb"]["mode"] != "disabled":
            self._start("wandb", lambda: dashboard.Wandb(config, directory, *labels))
        if "tensorboard" in chosen:
            self._start("tensorboard", lambda: _tensorboard(directory, labels[1]))
        if "csv" in chosen:
            self._start("csv", lambda: Csv(directory))

    @property
    def is_on(self) -> bool:
        """Whether anything is sent anywhere."""
        return bool(self._sinks)

    def log(self, line: Mapping[str, Any]) -> None:
        """Send one evaluation, the same as in metrics.jsonl."""
        self._each("log", SEND, line["step"], _numbers(line))

    def log_point(self, step: int, point: Mapping[str, float | None]) -> None:
        """Send numbers between evaluations.

        Args:
            step: of training.
            point: numbers by name.
        """
        named = {f"{CURVES}/{name}": value for name, value in _numbers(point).items()}
        self._each("log", SEND, step, named)

    def conclude(self, result: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
        """Send the result and the certificate.

        Args:
            result: contents of result.json.
            certificate: contents of privacy.json; what was computed on private examples without
                noise is left out.
        """
        public = without_diagnostics("privacy.json", certificate)
        self._each("conclude", SEND, result, public)

    def close(self, exit_code: int = 0) -> None:
        """Finish every place's run."""
        self._each("finish", FINISH, exit_code)
        self._sinks.clear()

    def _start(self, name: str, make: Callable[[], Sink]) -> None:
        sink = self._try(name, make, START)
        if sink is not None:
            self._sinks[name] = sink

    def _each(self, method: str, seconds: float, *values: Any) -> None:
        for name, sink in list(self._sinks.items()):
            self._try(name, partial(getattr(sink, method), *values), seconds)

    def _try(self, name: str, call: Callable[[], Any], seconds: float) -> Any:
        """Return the result of a call; after a failure the place is not called again."""
        try:
            return dashboard.within(seconds, call)
        except Exception as error:
            self._sinks.pop(name, None)
            _warn(
                name,
                error,
                "The run goes on without it; its metrics.jsonl has every evaluation.",
            )
            return None

    def __enter__(self) -> Tracker:
        """Nothing more to start."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close, and report to the dashboards whether the run failed."""
        self.close(exit_code=0 if kind is None else 1)


class Csv:
    """metrics.csv: what metrics.jsonl has, for a spreadsheet.

    One row an evaluation, one column a number, in the order of their first appearance; commas
    between columns, points in numbers, and an empty cell for what there is not.

    Args:
        directory: the run's.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the file anew; what comes between evaluations is not in it."""
        if any(name.startswith(f"{CURVES}/") for name in values):
            return
        lines = [line for line in lines_of(self._directory / METRICS) if line is not None]
        text = io.StringIO()
        writer = csv.DictWriter(text, dict.fromkeys(name for line in lines for name in line))
        writer.writeheader()
        writer.writerows(lines)
        write_atomically(self._directory / "metrics.csv", text.getvalue())

    def conclude(self, result: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
        """Nothing: result.json has it."""

    def finish(self, exit_code: int) -> None:
        """Nothing is open."""


def send_files(
    settings: Mapping[str, Any], name: str, kind: str, paths: Sequence[Path], folder: Path
) -> str:
    """Send files to wandb as an artifact; warn if that fails. See `dashboard.send_files`."""
    try:
        return dashboard.within(
            START + FINISH, lambda: dashboard.send_files(settings, name, kind, paths, folder)
        )
    except Exception as error:
        _warn("wandb", error, f"Not sent: {', '.join(map(str, paths))}.")
        return ""


def _warn(name: str, error: Exception, consequence: str) -> None:
    if name == "wandb":
        dashboard.abandon(error)
    reason = one_line(error).rstrip(".") or type(error).__name__
    warn_caller(f"{name} failed: {reason[:REASON]}. {consequence}")


def require(config: Mapping[str, Any]) -> None:
    """Refuse an unknown mode or place, and a library that is not installed.

    Raises:
        ConfigError: naming the setting.
    """
    require_word("wandb.mode", config["wandb"]["mode"], MODES)
    for name in config.get("tracking", {}):
        require_word("tracking", name, FILES)
    if "tensorboard" in config.get("tracking", {}) and not importlib.util.find_spec("tensorboard"):
        raise ConfigError(
            "Expected the package tensorboard for tracking=tensorboard; it is not installed. "
            "pip install -e '.[tensorboard]', or set tracking=csv or tracking=wandb."
        )


def job_type(config: Mapping[str, Any]) -> str:
    """Return a run's purpose: "audit", "attack", "analysis" or "train"."""
    return next((kind for kind in ("audit", "attack", "analysis") if config.get(kind)), "train")


def run_name(config: Mapping[str, Any]) -> str:
    """Return what a person tells runs apart by: method, model, task, epsilon and seed.

    A run without noise or clipping has no epsilon.
    """
    privacy = config["privacy"]
    is_private = privacy.get("noise", True) and privacy.get("clip", True)
    eps = privacy["eps"] if is_private else None
    words = [config[group]["name"] for group in ("method", "model", "task")]
    words += [] if eps is None else [f"eps={eps:g}"]
    return " ".join([*words, f"seed={config['seed']}"])


def _tensorboard(directory: Path, name: str) -> Sink:
    from dpexp.training.tensorboard import TensorBoard

    return TensorBoard(directory / "tensorboard", name)


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
