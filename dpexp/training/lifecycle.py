"""The lifecycle of every run: directory, ledger, resuming, checkpoints, signals and record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from dpexp.distributed import memory
from dpexp.distributed.ranks import RankLost, Ranks
from dpexp.distributed.stopping import Stopping
from dpexp.models.precision import PRECISIONS, resolve
from dpexp.records import Ledger, RecordError, Run, describe
from dpexp.records.keeping import KEEP, KEPT_FILES, hashes
from dpexp.records.own_code import own_loaded_code, require_same
from dpexp.records.weights import digest
from dpexp.training import checkpoint
from dpexp.training.kept import keep, keep_adapters
from dpexp.training.ledger import surroundings_of, told_by
from dpexp.training.outcome import StepOutcome
from dpexp.training.run_logger import RunLogger
from dpexp.training.train_state import TrainState
from dpexp.warned import warn_caller

log = logging.getLogger("dpexp")

ENDED = (Exception, KeyboardInterrupt, SystemExit)
"""Exceptions after which a run still saves its state."""


class Released(Protocol):
    """What a run's lifecycle needs of a frozen mechanism."""

    @property
    def target_epsilon(self) -> float | None:
        """Return the target epsilon."""

    def identity(self) -> dict[str, Any]:
        """Return the values that a checkpoint must match to be resumed."""


class Resumed(NamedTuple):
    """Where a run continues.

    Attributes:
        ledger: its budget ledger; None without noise.
        next_step: from 0; later than the checkpoint's if steps are lost.
        micro_batch: examples at once.
    """

    ledger: Ledger | None
    next_step: int
    micro_batch: int = 0


OwnCode = dict[str, dict[str, str]]
OpenLedger = Callable[[Run, Mapping[str, Any], dict[str, Any] | None, OwnCode], Resumed]
"""Opens a run's budget ledger, given the run, its checkpoint's position ({} without one), its
surroundings (`surroundings_of`) and the hashes of the user's code that it runs."""


class Lifecycle:
    """One run from its directory to its record. Every rank has one; only rank 0's writes.

    Handle SIGTERM, SIGINT and SIGUSR2: finish the step, save, exit.

    Whatever ends a run, its last consistent state is saved first: after a step or after an
    evaluation, but not in the middle of an update. A step that was noted but not saved is decided
    by the budget ledger: it is repeated exactly, or counts as spent.

    Attributes:
        surroundings: fingerprint of whatever affects floating-point sums, set by `resume`; None if
            they cannot be repeated.
    """

    def __init__(
        self,
        config: dict,
        mechanism: Released,
        state: TrainState,
        ranks: Ranks,
        num_steps: int,
        spent: Callable[[int], float | None] | None = None,
        pretrained: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Open the run's directory.

        Args:
            config: the run's.
            mechanism: what it claims.
            state: before the first step.
            ranks: that share the run.
            num_steps: of the whole run, for the progress bar.
            spent: returns the epsilon after a number of steps, for the bar and for curves; None if
                it does not grow with steps.
            pretrained: hashes of the files that the model begins with, by model and file.

        Raises:
            ConfigError: if the user's code has changed since it was imported.
            RecordError: if the directory cannot be written.
        """
        self._config, self._mechanism, self._ranks = config, mechanism, ranks
        self._state, self._num_steps, self._spent = state, num_steps, spent
        self._pretrained = dict(pretrained or {})
        # Read once, at the start: its files may be edited while it trains.
        self._own_code: OwnCode = own_loaded_code(config)
        self._run = Run.open(config["results"], config) if ranks.is_first else None
        self._logger: RunLogger | None = None
        self._taken_up = self._saved = time.monotonic()
        self._ledger: Ledger | None = None
        # With several ranks Ctrl-C reaches each at a different step, so it ends them at once.
        self._stopping = Stopping(handles_interrupt=ranks.size == 1)
        self._is_agreed = False
        self.surroundings: dict[str, Any] | None = None
        self._is_unsaved = False  # whether anything was done since the checkpoint

    def __enter__(self) -> Lifecycle:
        """Start logging, and handle signals so that the current step finishes before a stop."""
        if self._run is not None:
            target = self._mechanism.target_epsilon
            self._logger = RunLogger(self._run, self._num_steps, target, self._spent)
        self._stopping.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Save the state if an error ends the run, and close everything."""
        try:
            if kind is not None and issubclass(kind, ENDED):
                self._save_at_last(kind)
        finally:
            self.end_steps()
            if self._ledger is not None:
                self._ledger.close()
            if self._logger is not None:
                self._logger.close(exit_code=0 if kind is None else 1)

    def resume(self, open_ledger: OpenLedger) -> None:
        """Resume from the run's checkpoint if there is one, alike on every rank.

        Steps after it that may have been released and cannot be repeated exactly are lost. They
        are accounted for, their batches are not drawn again, and the run continues after them.

        Args:
            open_ledger: opens the budget ledger, on rank 0.

        Raises:
            ConfigError: if data, the user's code or pretrained files changed since the run began.
            PrivacyError: if no budget is left, or the rest is unknown.
            RecordError: if the checkpoint is of another run, or of former code.
        """
        state, ranks = self._state, self._ranks
        self.surroundings = surroundings_of(
            self._config, state.data, state.model, ranks, self._own_code
        )
        if self.surroundings is not None and self._pretrained:
            self.surroundings["pretrained"] = self._pretrained
        found = None if self._run is None else self._find(self._run, open_ledger)
        saved, next_step, micro_batch = ranks.from_first(found)
        if saved is not None:
            state.restore(saved, ranks.device)
            if self._run is not None:
                self._run.restore_metrics(state.metrics)
                log.info("resumed at step %d", state.step)
        state.micro_batch = micro_batch
        state.skip_to(next_step)
        if self._ledger is not None:
            state.starts = self._ledger.starts
        self.start_from(next_step)
        self._taken_up = time.monotonic() - state.wall_s
        state.snapshot(has_observed=True)

    def _find(self, run: Run, open_ledger: OpenLedger) -> tuple[dict[str, Any] | None, int, int]:
        """Return the saved state, the next step and the micro-batch from checkpoint and ledger."""
        saved = None
        if run.status == "resume":
            saved = checkpoint.load(run.checkpoint_path)
            if saved is None:
                run.restart()
            else:
                require_same(checkpoint.files_of(saved, checkpoint.OWN_CODE), self._own_code)
                before = checkpoint.files_of(saved, checkpoint.PRETRAINED)
                require_same(before, self._pretrained, "pretrained model")
                checkpoint.require(run.checkpoint_path, saved, self._identity(run))
                self._state.require_complete(saved, run.checkpoint_path)
        position = {} if saved is None else saved["position"]
        self._ledger, next_step, micro_batch = open_ledger(
            run, position, self.surroundings, self._own_code
        )
        return saved, next_step, micro_batch

    def _identity(self, run: Run) -> dict[str, Any]:
        files = {checkpoint.OWN_CODE: self._own_code, checkpoint.PRETRAINED: self._pretrained}
        of_files = {kind: hashes for kind, hashes in files.items() if hashes}
        return {"run": run.id, **of_files, **self._mechanism.identity()}

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._stopping.is_asked

    def end_steps(self) -> None:
        """Restore the signal handlers: from now on a signal stops the process at once."""
        self._stopping.__exit__()

    def start_from(self, step: int) -> None:
        """Set the progress bar to a step; earlier steps do not count in the speed."""
        if self._logger is not None:
            self._logger.start_from(step)

    def note(self, steps: int) -> None:
        """Write to the budget ledger, before a release, how many steps may be released.

        Raises:
            RecordError: if the ledger cannot be written.
        """
        if self._ledger is not None:
            self._ledger.note(steps)

    def rule_out_repeating(self) -> None:
        """Write to the ledger that no released step, the current one included, can be repeated.

        Raises:
            RecordError: if the ledger cannot be written, or the current step is being repeated.
        """
        if self._ledger is not None:
            self._ledger.rule_out_repeating(self._state.step + 1)

    def note_release(self, released: Iterable[Tensor]) -> None:
        """Write to the ledger what the current step is about to release, if it can be repeated.

        Args:
            released: with noise.

        Raises:
            DiffersError: if the step was released before, and differed.
            RecordError: if the ledger cannot be written.
        """
        if self._ledger is not None and self._ledger.can_repeat:
            self._ledger.note_release(self._state.step + 1, told_by(released))

    def before_update(self) -> None:
        """Mark the state as inconsistent: an update begins, and ends at `after_step`."""
        self._state.invalidate()

    def after_step(self, outcome: StepOutcome) -> None:
        """Count a step whose update has been applied."""
        self._state.after_step(outcome)
        self._is_agreed = outcome.is_asked_to_stop
        if self._logger is not None:
            rate = self._state.optimizer.param_groups[0]["lr"]
            self._logger.log_step(self._state.step, outcome, rate)
        self.count(outcome.examples)

    def count(self, examples: int) -> None:
        """Show a step that the state already includes."""
        self._is_unsaved = True
        if self._logger is not None:
            self._logger.advance(examples)

    def show_part(self, part: float) -> None:
        """Show that a part of the current step, in [0, 1], is done."""
        if self._logger is not None:
            self._logger.show_part(part)

    def log_evaluation(
        self, line: dict[str, Any], values: dict[str, float | None], right: dict[str, Tensor]
    ) -> None:
        """Write an evaluation; it counts once `after_evaluation` is called.

        Args:
            line: of metrics.jsonl.
            values: metric to value; None where it is not judged yet.
            right: which test examples are predicted correctly, by metric.
        """
        self._state.after_evaluation(line, values, right)
        if self._logger is not None:
            self._logger.log(line)

    def after_evaluation(self) -> None:
        """Count an evaluation, with its line and analyses; a failed one is repeated on resuming."""
        self._state.snapshot(has_observed=True)
        self._is_unsaved = self._state.step > 0

    def save_if_due(self, is_needed: bool = False) -> None:
        """Save a checkpoint if one is due, if the run was asked to stop, or if `is_needed`.

        If the disk is full, a periodic checkpoint warns and the previous one is kept.

        Args:
            is_needed: whether this step must be saved whatever the config says.

        Raises:
            RecordError: if the last checkpoint before stopping cannot be written.
            SystemExit: if asked to stop, once the checkpoint is written.
        """
        if self._run is None and self._is_stopping():
            self._stopping.leave()
        if self._run is None or not (is_needed or self._is_save_due() or self._is_stopping()):
            return
        try:
            self.save()
        except RecordError as error:
            if self._is_stopping():
                raise
            reason = getattr(error.__cause__, "strerror", error)
            before = (
                "the one before it is kept" if self._run.has_checkpoint else "there is none yet"
            )
            warn_caller(
                f"No checkpoint at step {self._state.step}: {reason}. The run goes on; {before}."
            )
        self._saved = time.monotonic()
        if self._is_stopping():
            log.info("stopped at step %d; run it again to go on", self._state.step)
            self._stopping.leave()

    def save(self) -> None:
        """Save a checkpoint, on rank 0.

        Raises:
            RecordError: if it cannot be written.
        """
        if self._run is None:
            return
        self._state.wall_s = time.monotonic() - self._taken_up
        saved = {"of": self._identity(self._run), **self._state.to_checkpoint()}
        checkpoint.save(self._run.checkpoint_path, saved)
        self._is_unsaved = False

    def _save_at_last(self, kind: type[BaseException]) -> None:
        """Save before an error ends the run, if there is a consistent state that is not on disk."""
        if self._run is None or self._stopping.is_at_once or not self._state.roll_back():
            return
        if not self._is_unsaved or (self._run.directory / "result.json").exists():
            return
        try:
            self.save()
        except Exception as error:  # the error that ends the run is still raised
            if not issubclass(kind, RecordError):
                warn_caller(f"No checkpoint at step {self._state.step}: {error}")
        else:
            if issubclass(kind, Exception) and not issubclass(kind, RankLost):
                log.info("saved at step %d; run it again to go on", self._state.step)

    def stop_if_asked(self) -> None:
        """Save and stop if that was requested since the last `save_if_due`.

        Raises:
            KeyboardInterrupt, SystemExit: as `Stopping.leave`.
        """
        if self._is_stopping():
            self.save_if_due()

    @property
    def can_repeat(self) -> bool:
        """Whether everything released since the checkpoint can be repeated bit for bit."""
        return self._ledger is None or self._ledger.can_repeat

    def _is_save_due(self) -> bool:
        steps, seconds = (self._config["checkpoint"][key] for key in ("steps", "seconds"))
        if steps is not None and self._state.step % steps == 0:
            return True
        return seconds is not None and time.monotonic() - self._saved >= seconds

    def finish(
        self,
        task: Any,
        certificate: dict,
        numbers: Mapping[str, Any],
        arrays: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        model: nn.Module | None = None,
    ) -> None:
        """Write the run's result and certificate.

        Args:
            task: that it trained on.
            certificate: of its privacy.
            numbers: entries for result.json, "epochs" and "steps" included.
            arrays: by file; a file without arrays is not written.
            model: to keep; None: the state's.
        """
        peak_mb = self._ranks.largest(memory.peak_mb(self._ranks.device))
        if self._run is None:
            return
        state = self._state
        wall = time.monotonic() - self._taken_up
        model = state.final_model if model is None else model
        said = {**state.last, **numbers}
        if (precision := self._config["model"].get("precision")) in PRECISIONS:
            said["precision"] = resolve(precision, self._ranks.device)
        if self._own_code:
            said["own_code_sha256"] = self._own_code
        said["weights_sha256"] = digest(model.state_dict())
        certificate = {**certificate, "weights_sha256": said["weights_sha256"]}
        result = describe(
            self._config, task, self._mechanism, self._ranks, said, wall, state.examples, peak_mb
        )
        right = {name: each.numpy() for name, each in state.right.items()}
        if self._config["weights"] == KEEP:
            kept = [self._config, result, certificate]
            names = keep(self._run.directory, model, task, *kept)
            names += keep_adapters(self._run.directory, state.final_model, *kept)
            result[KEPT_FILES] = hashes(self._run.directory, names)
        self._run.finish(result, certificate, arrays, right)
        if self._logger is not None:
            self._logger.conclude(result, certificate)

    def _is_stopping(self) -> bool:
        # Ranks that stop at different steps would wait for each other forever. A request to one
        # rank counts only after a step's sums have shared it with all.
        return self._stopping.is_asked if self._ranks.size == 1 else self._is_agreed
