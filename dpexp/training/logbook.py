"""What a run writes while it goes: metrics, checkpoints, and its record at the end."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.distributed import memory
from dpexp.distributed.ranks import RankLost, Ranks
from dpexp.distributed.stopping import Stopping
from dpexp.privacy import Mechanism
from dpexp.records import Ledger, RecordError, Run, describe
from dpexp.training import checkpoint
from dpexp.training.gradient import StepOutcome
from dpexp.training.held import Held, Position
from dpexp.training.spent import OTHER_DATA, surroundings_of, take_up
from dpexp.training.states import mapped
from dpexp.training.tracking import Progress, Tracker
from dpexp.types import ConfigError

log = logging.getLogger("dpexp")

ENDED = (Exception, KeyboardInterrupt, SystemExit)
"""By what a run may end that is still to save what it has done."""


class Logbook:
    """Keeps one run's record; every rank has one, and only the first rank's writes.

    Whatever ends a run, it is saved first as it was when weights, optimizer and position last
    agreed: after a step, or after an evaluation. In the middle of an update there is no such
    moment. A step that was noted and is not in what is saved is for `take_up` to judge: it is
    repeated to the last bit, or counts as spent.
    """

    def __init__(
        self,
        config: dict,
        mechanism: Mechanism,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        at: Position,
        ranks: Ranks,
    ) -> None:
        """Open the run's directory.

        Raises:
            RecordError: if the directory cannot be written.
        """
        self._config, self._mechanism, self._ranks = config, mechanism, ranks
        self._model, self._optimizer, self._at = model, optimizer, at
        self._lines: list[dict[str, Any]] = []  # of metrics.jsonl
        self._run = Run.open(config["results"], config) if ranks.is_first else None
        self._taken_up = self._saved = time.monotonic()
        self._ledger: Ledger | None = None
        # Ctrl-C reaches all ranks, each at a step of its own: there it ends them at once.
        self._stopping = Stopping(hears_interrupt=ranks.size == 1)
        self._is_agreed = False
        self._held = Held(at, [*model.parameters(), *model.buffers()])
        self._on_disk: tuple[int, int] | None = None  # step and last evaluation of the checkpoint
        per_epoch = mechanism.dataset_size / mechanism.batch_size
        every = max(1, round(config["eval_every"] * per_epoch))
        self._evaluations = {*range(every, mechanism.num_steps, every), mechanism.num_steps}

    def __enter__(self) -> Logbook:
        """Start the dashboard and the bar, and let the step at hand be done before a stop."""
        if self._run is not None:
            self._tracker = Tracker(self._config, self._run.directory)
            self._progress = Progress(self._mechanism.num_steps, label=self._label())
        self._stopping.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Save what was done, where an error ends the run, and close them."""
        try:
            if kind is not None and issubclass(kind, ENDED):
                self._save_at_last(kind)
        finally:
            self.end_steps()
            if self._ledger is not None:
                self._ledger.close()
            if self._run is not None:
                self._progress.close()
                self._tracker.close(exit_code=0 if kind is None else 1)

    def announce(self, trainable: dict[str, int], frozen: dict[str, int]) -> None:
        """Print what trains, what does not, and the mechanism, before the first step."""
        if self._run is None:
            return
        for word, parameters in (("trainable", trainable), ("frozen", frozen)):
            log.info("%s: %s numbers", word, f"{sum(parameters.values()):,}")
            for name, size in parameters.items():
                log.info("  %-40s %12s", name, f"{size:,}")
        mechanism = self._mechanism
        log.info(
            "%d steps, %s sampling with q = %.4g, noise multiplier %.4g (%s)",
            mechanism.num_steps,
            mechanism.sampling,
            mechanism.sampling_prob,
            mechanism.noise_multiplier,
            "; ".join(mechanism.deviations) or f"calibrated by {mechanism.calibrated_by}",
        )

    def resume(self, settle: Callable[[int], int]) -> Position:
        """Go on from the run's checkpoint where there is one, alike on every rank.

        Steps after it that may have been released, and that cannot be repeated to the last bit, are
        lost: they are accounted for, their draws are not made again, and the run goes on behind
        them.

        Args:
            settle: maps the micro-batch that the run had, 0 if it begins, to the one it is to have.

        Raises:
            ConfigError: if the data are not those it began with.
            PrivacyError: if no budget is left, or what is left is not known.
        """
        surroundings = surroundings_of(self._config, self._at.data, self._model, self._ranks)
        found = None if self._run is None else self._find(settle, surroundings)
        saved, next_step, micro_batch = self._ranks.from_first(found)
        if saved is not None:
            if saved["position"]["data"] != self._at.data:
                raise ConfigError(OTHER_DATA)
            self._model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
            vars(self._at).update(saved["position"])
            self._at.state = _moved(self._at.state, self._ranks.device)
            self._at.memories = _moved(self._at.memories, self._ranks.device)
            if self._run is not None:
                self._lines = list(saved["metrics"])
                self._run.restore_metrics(self._lines)
                log.info("resumed at step %d", self._at.step)
        self._at.micro_batch = micro_batch
        lost = next_step - self._at.step
        self._at.step = next_step
        self._at.lost_steps += lost
        self._at.noise_draws += lost
        if self._run is not None:
            self._progress.start_from(next_step)
        self._taken_up = time.monotonic() - self._at.wall_s
        self._held.hold(has_observed=True)
        self._on_disk = self._place()
        return self._at

    def _identity(self) -> dict[str, Any]:
        assert self._run is not None, "the first rank alone writes"
        return {"run": self._run.id, **self._mechanism.identity()}

    @property
    def is_asked_to_stop(self) -> bool:
        """Say whether this rank was asked to stop."""
        return self._stopping.is_asked

    def end_steps(self) -> None:
        """Let whatever stops the process from now on do so at once: no step is to be waited for."""
        self._stopping.__exit__()

    def _find(
        self, settle: Callable[[int], int], surroundings: dict[str, Any] | None
    ) -> tuple[Any, int, int]:
        """Read checkpoint and ledger: the state to go on with, the next step, the micro-batch."""
        run, mechanism = self._run, self._mechanism
        assert run is not None, "the first rank alone reads"
        saved = None
        if run.status == "resume":
            saved = checkpoint.load(run.checkpoint_path)
            if saved is None:
                run.restart()
            else:
                checkpoint.require(run.checkpoint_path, saved, self._identity())
                if lacks := self._at.state.keys() - saved["position"]["state"].keys():
                    raise RecordError(
                        f"Expected {run.checkpoint_path} to be of this code; its method's state "
                        f"lacks {', '.join(sorted(lacks))}. Go on with the former code, or set "
                        "results."
                    )
        at = {} if saved is None else saved["position"]
        micro_batch = settle(at.get("micro_batch", 0))
        if surroundings is not None:
            surroundings = {**surroundings, "micro_batch": micro_batch}
        self._ledger, next_step = take_up(
            run, mechanism, at.get("step"), self._at.data, surroundings
        )
        return saved, next_step, micro_batch

    def before_step(self) -> None:
        """Note, before anything of it can leave, that the step to come may be released.

        Raises:
            RecordError: if that cannot be written.
        """
        if self._ledger is not None:
            self._ledger.note(self._at.step + 1)

    def rule_out_repeating(self) -> None:
        """Note that what may have been released, the step at hand included, can't be repeated.

        Raises:
            RecordError: if that cannot be written.
        """
        if self._ledger is not None:
            self._ledger.rule_out_repeating(self._at.step + 1)

    def after_step(self, outcome: StepOutcome) -> None:
        """Count a step, whose update is in the weights."""
        at = self._at
        at.state, at.step = outcome.state, at.step + 1
        at.noise_draws += outcome.noise_draws
        at.examples += outcome.examples
        at.drawn += outcome.examples
        at.clipped += outcome.clipped
        at.nonfinite += outcome.nonfinite
        at.loss += outcome.loss
        self._is_agreed = outcome.is_asked_to_stop
        self._held.hold()
        if self._run is not None:
            self._progress.advance(outcome.examples)

    def before_update(self) -> None:
        """Know that weights and optimizer are about to leave the position, until `after_step`."""
        self._held.let_go()

    def after_evaluation(self) -> None:
        """Count an evaluation: its line, and what analyses saw. One that fails is made anew."""
        self._held.hold(has_observed=True)

    def is_evaluation_due(self) -> bool:
        """Say whether an evaluation interval ends here, and its evaluation is yet to be made."""
        return self._at.step in self._evaluations and self._at.judged_at < self._at.step

    def log_evaluation(self, values: dict[str, float]) -> None:
        """Write one line of metrics."""
        at = self._at
        line = {
            "step": at.step,
            "epoch": at.step * self._mechanism.sampling_prob,
            "epsilon": self._mechanism.epsilon(at.step),
            "train_loss": _finite(at.loss / at.drawn) if at.drawn else None,
            **values,
            "clip_fraction": at.clipped / at.drawn if at.drawn and self._mechanism.clip else None,
            "nonfinite": at.nonfinite,
        }
        at.drawn = at.clipped = at.nonfinite = 0
        at.loss = 0.0
        at.judged_at, at.last = at.step, values
        if self._run is not None:
            self._lines.append(line)
            self._run.log(line)
            self._tracker.log(line)
            self._progress.report(line)

    def save_if_due(self) -> None:
        """Checkpoint every so many steps or seconds, when asked to stop, and at some ends.

        What may have been released and cannot be repeated is saved after its last step.

        A periodic checkpoint that finds the disk full is a warning: the one before it is kept.

        Raises:
            RecordError: if the last one before stopping cannot be written.
            SystemExit: if asked to stop, once the checkpoint is written.
        """
        if self._run is None and self._is_stopping():
            self._stopping.leave()
        if self._run is None or not (self._is_save_due() or self._is_stopping()):
            return
        try:
            self._save()
        except RecordError as error:
            if self._is_stopping():
                raise
            reason = getattr(error.__cause__, "strerror", error)
            before = (
                "the one before it is kept" if self._run.has_checkpoint else "there is none yet"
            )
            warnings.warn(
                f"No checkpoint at step {self._at.step}: {reason}. The run goes on; {before}.",
                stacklevel=2,
            )
        self._saved = time.monotonic()
        if self._is_stopping():
            log.info("stopped at step %d; run it again to go on", self._at.step)
            self._stopping.leave()

    def _save(self) -> None:
        assert self._run is not None, "the first rank alone writes"
        self._at.wall_s = time.monotonic() - self._taken_up
        state = {
            "of": self._identity(),
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "position": vars(self._at),
            # One more may be there, of an evaluation that an error cut short.
            "metrics": [line for line in self._lines if line["step"] <= self._at.judged_at],
        }
        checkpoint.save(self._run.checkpoint_path, state)
        self._on_disk = self._place()

    def _save_at_last(self, kind: type[BaseException]) -> None:
        """Save before an error ends the run, where there is anything whole that is not on disk."""
        if self._run is None or self._stopping.is_at_once or not self._held.restore():
            return
        is_finished = (self._run.directory / "result.json").exists()
        if is_finished or self._on_disk in (None, self._place()):
            return
        try:
            self._save()
        except Exception as error:  # what ends the run goes on to be told
            if not issubclass(kind, RecordError):
                warnings.warn(f"No checkpoint at step {self._at.step}: {error}", stacklevel=2)
        else:
            if issubclass(kind, Exception) and not issubclass(kind, RankLost):
                log.info("saved at step %d; run it again to go on", self._at.step)

    def _place(self) -> tuple[int, int]:
        return self._at.step, self._at.judged_at

    def stop_if_asked(self) -> None:
        """Save and stop where that was asked for since the last step's `save_if_due`.

        Raises:
            KeyboardInterrupt, SystemExit: as `Stopping.leave`.
        """
        if self._is_stopping():
            self.save_if_due()

    def _is_save_due(self) -> bool:
        is_last = self._at.step == self._mechanism.num_steps
        if is_last and self._ledger is not None and not self._ledger.can_repeat:
            return True  # killed before its record is whole, it could not be done again
        steps, seconds = (self._config["checkpoint"][key] for key in ("steps", "seconds"))
        if steps is not None and self._at.step % steps == 0:
            return True
        return seconds is not None and time.monotonic() - self._saved >= seconds

    def finish(
        self,
        task: Any,
        certificate: dict,
        numbers: Mapping[str, Any],
        arrays: Mapping[str, Mapping[str, np.ndarray]],
    ) -> None:
        """Write the run's result and certificate.

        Args:
            task: what it trained on.
            certificate: of its privacy.
            numbers: further ones for result.json.
            arrays: by file; none, no file.
        """
        peak_mb = self._ranks.largest(memory.peak_mb(self._ranks.device))
        if self._run is None:
            return
        config, mechanism, at = self._config, self._mechanism, self._at
        wall = time.monotonic() - self._taken_up
        said = {**at.last, **numbers, "epochs": config["epochs"], "steps": at.step}
        said["weights_sha256"] = checkpoint.digest(self._model.state_dict())
        result = describe(config, task, mechanism, self._ranks, said, wall, at.examples, peak_mb)
        right = {name: each.numpy() for name, each in at.right.items()}
        self._run.finish(result, certificate, arrays, right)
        self._tracker.conclude(result)

    def _label(self) -> str:
        config = self._config
        target = self._mechanism.target_epsilon
        eps = "" if target is None else f" eps={target:g}"
        return f"{config['method']['name']} {config['model']['name']} {config['task']['name']}{eps}"

    def _is_stopping(self) -> bool:
        # Ranks that stopped at different steps would wait for each other for ever: what one was
        # asked counts once a step's sums have told all.
        return self._stopping.is_asked if self._ranks.size == 1 else self._is_agreed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _moved(value: Any, device: torch.device) -> Any:
    return mapped(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, value)
