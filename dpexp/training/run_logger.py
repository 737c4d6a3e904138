"""Log a run: metrics, a dashboard's curves and a progress bar on the terminal."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from dpexp.privacy import Mechanism
from dpexp.records import Run
from dpexp.training.tracking import Progress, Tracker
from dpexp.training.train_state import TrainState

log = logging.getLogger("dpexp")


class RunLogger:
    """Writes metrics.jsonl, and shows the run's progress."""

    def __init__(self, run: Run, num_steps: int, target_epsilon: float | None) -> None:
        """Start the dashboard and the progress bar.

        Args:
            run: its directory and config.
            num_steps: of the whole run.
            target_epsilon: None where there is none.

        Raises:
            ConfigError: for an unknown mode of the dashboard.
        """
        self._run = run
        words = [run.config[group]["name"] for group in ("method", "model", "task")]
        words += [] if target_epsilon is None else [f"eps={target_epsilon:g}"]
        self._tracker = Tracker(run.config, run.directory)
        self._progress = Progress(num_steps, " ".join(words))

    def start_from(self, step: int) -> None:
        """Start the progress bar at a step."""
        self._progress.start_from(step)

    def advance(self, examples: int) -> None:
        """Count a step and its examples."""
        self._progress.advance(examples)

    def log(self, line: Mapping[str, Any]) -> None:
        """Write and show an evaluation.

        Raises:
            RecordError: if it cannot be written.
        """
        self._run.log(line)
        self._tracker.log(line)
        self._progress.report(line)

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Send the result to the dashboard."""
        self._tracker.conclude(result)

    def close(self, exit_code: int) -> None:
        """Close the progress bar and the dashboard's run."""
        self._progress.close()
        self._tracker.close(exit_code)


def metrics_line(
    state: TrainState, mechanism: Mechanism, values: Mapping[str, float]
) -> dict[str, Any]:
    """Return a line of metrics.jsonl: an evaluation, and the steps since the previous one."""
    loss = state.loss / state.drawn if state.drawn else math.nan
    is_clipped = state.drawn and mechanism.clip
    return {
        "step": state.step,
        "epoch": state.step * mechanism.sampling_prob,
        "epsilon": mechanism.epsilon(state.step),
        "train_loss": loss if math.isfinite(loss) else None,
        **values,
        "clip_fraction": state.clipped / state.drawn if is_clipped else None,
        "nonfinite": state.nonfinite,
    }


def announce(mechanism: Mechanism, trainable: dict[str, int], frozen: dict[str, int]) -> None:
    """Log trainable and frozen parameters and the mechanism, before the first step."""
    for word, parameters in (("trainable", trainable), ("frozen", frozen)):
        log.info("%s: %s numbers", word, f"{sum(parameters.values()):,}")
        for name, size in parameters.items():
            log.info("  %-40s %12s", name, f"{size:,}")
    log.info(
        "%d steps, %s sampling with q = %.4g, noise multiplier %.4g (%s)",
        mechanism.num_steps,
        mechanism.sampling,
        mechanism.sampling_prob,
        mechanism.noise_multiplier,
        "; ".join(mechanism.deviations) or f"calibrated by {mechanism.calibrated_by}",
    )
