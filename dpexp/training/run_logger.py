"""Log a run: metrics, dashboards' curves and a progress bar on the terminal."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dpexp.privacy import Mechanism
from dpexp.records import Run
from dpexp.records.rounded import at_most
from dpexp.training.outcome import StepOutcome
from dpexp.training.progress import Progress
from dpexp.training.tracking import Tracker
from dpexp.training.train_state import TrainState
from dpexp.types import counted

log = logging.getLogger("dpexp")


NOT_FINITE = {
    "nonfinite": "Gradients of training examples are not finite and count as zero: inputs that are "
    "NaN or infinite, or a model that diverges, have such. metrics.jsonl counts them (nonfinite).",
    "nonfinite_outputs": "Outputs for test examples are not finite and are never right: test "
    "inputs that are NaN or infinite, or a model that has diverged, give such. Check the test "
    "inputs, or set a smaller optimizer.lr.",
}
"""What is said once of a run, where an evaluation's count is not zero: no more than it says."""

POINTS = 500
"""Points of a curve that a dashboard gets between evaluations (ours)."""


class RunLogger:
    """Writes metrics.jsonl, and shows the run's progress."""

    def __init__(
        self,
        run: Run,
        num_steps: int,
        target_epsilon: float | None,
        spent: Callable[[int], float | None] | None = None,
    ) -> None:
        """Start the dashboards and the progress bar.

        Args:
            run: its directory and config.
            num_steps: of the whole run.
            target_epsilon: None where there is none.
            spent: returns the epsilon after a number of steps; None if it does not grow with steps.

        Raises:
            ConfigError: for an unknown mode of a dashboard.
        """
        self._run, self._spent = run, spent
        words = [run.config[group]["name"] for group in ("method", "model", "task")]
        words += [] if target_epsilon is None else [f"eps={target_epsilon:g}"]
        self._tracker = Tracker(run.config, run.directory)
        self._progress = Progress(num_steps, " ".join(words), spent=spent, target=target_epsilon)
        self._every = math.ceil(num_steps / POINTS)
        self._since = _Sums()
        self._warned: set[str] = set()

    def start_from(self, step: int) -> None:
        """Start the progress bar at a step."""
        self._progress.start_from(step)
        self._since = _Sums()

    def show_part(self, part: float) -> None:
        """Show that a part of the current step, in [0, 1], is done."""
        self._progress.move(part)

    def advance(self, examples: int) -> None:
        """Count a step and its examples."""
        self._progress.advance(examples)

    def log_step(self, step: int, outcome: StepOutcome, learning_rate: float) -> None:
        """Send dashboards a point of their curves every few steps.

        Args:
            step: that was taken, from 1.
            outcome: of the step.
            learning_rate: of the optimizer's first group.
        """
        if not self._tracker.is_on:
            return
        self._since = self._since.plus(outcome)
        if step % self._every:
            return
        spent = None if self._spent is None else self._spent(step)
        point = {**self._since.means(), "learning_rate": learning_rate, "epsilon": spent}
        self._tracker.log_point(step, point)
        self._since = _Sums()

    def log(self, line: Mapping[str, Any]) -> None:
        """Write and show an evaluation.

        Raises:
            RecordError: if it cannot be written.
        """
        self._run.log(line)
        self._tracker.log(line)
        self._progress.report(line)
        for key, warning in NOT_FINITE.items():
            if line.get(key) and key not in self._warned:
                self._warned.add(key)
                log.warning(warning)

    def conclude(self, result: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
        """Send the result and the certificate to the dashboards."""
        self._tracker.conclude(result, certificate)

    def close(self, exit_code: int) -> None:
        """Close the progress bar and the dashboards' runs."""
        self._progress.close()
        self._tracker.close(exit_code)


class _Sums(NamedTuple):
    """Sums over the steps since the last point; not covered by the guarantee."""

    examples: int = 0
    clipped: int = 0
    loss: float = 0.0

    def plus(self, outcome: StepOutcome) -> _Sums:
        return _Sums(
            self.examples + outcome.examples,
            self.clipped + outcome.clipped,
            self.loss + outcome.loss,
        )

    def means(self) -> dict[str, float]:
        """Return the mean loss and the fraction clipped, where there were examples."""
        if not self.examples or not math.isfinite(self.loss):
            return {}
        return {
            "train_loss": self.loss / self.examples,
            "clip_fraction": self.clipped / self.examples,
        }


def metrics_line(
    state: TrainState, mechanism: Mechanism, values: Mapping[str, float | None]
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


def announce(
    mechanism: Mechanism,
    trainable: dict[str, int],
    frozen: dict[str, int],
    why: Mapping[str, Sequence[str]],
) -> None:
    """Log the numbers of parameters and the mechanism, before the first step.

    Args:
        mechanism: of the run.
        trainable: parameters' names to their sizes.
        frozen: likewise.
        why: names of frozen parameters by why they are frozen.
    """
    list_parameters({"trainable": trainable, "frozen": frozen})
    for reason, names in why.items():
        log.info("  %s frozen: %s", f"{sum(frozen[name] for name in names):,}", reason)
    log.info(
        "%s, %s sampling with q = %.4g, noise multiplier %s (%s)",
        counted(mechanism.num_steps, "step"),
        mechanism.sampling,
        mechanism.sampling_prob,
        at_most(mechanism.noise_multiplier),
        "; ".join(mechanism.deviations) or f"calibrated by {mechanism.calibrated_by}",
    )


def list_parameters(parameters: Mapping[str, Mapping[str, int]]) -> None:
    """Log how many numbers there are of each kind; the names if asked for (verbose).

    Args:
        parameters: name to size, by kind.
    """
    is_asked = log.isEnabledFor(logging.DEBUG)
    totals = [f"{sum(sizes.values()):,} {kind}" for kind, sizes in parameters.items()]
    log.info("parameters: %s%s", ", ".join(totals), "" if is_asked else " (-v lists their names)")
    for kind, sizes in parameters.items():
        for name, size in sizes.items():
            log.debug("  %-40s %12s %s", name, f"{size:,}", kind)
