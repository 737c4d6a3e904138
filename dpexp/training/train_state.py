"""The changing state of a run, as saved in checkpoints and restored from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.privacy.correlation import Past
from dpexp.records import RecordError
from dpexp.training.averaging import Averaged
from dpexp.training.ledger import OTHER_DATA
from dpexp.training.outcome import StepOutcome
from dpexp.training.states import copied, mapped, marks
from dpexp.types import ConfigError, State

APART = ("model", "optimizer", "averaged")
"""Fields that a checkpoint holds by their own state."""


@dataclass
class TrainState:
    """A run between two steps.

    Only `to_checkpoint` writes and `restore` reads a checkpoint. The state also keeps the last
    consistent moment (`snapshot`). So a run that fails in the middle of a step can still save the
    previous step (`roll_back`).

    Attributes:
        model: on the run's device.
        optimizer: of its trainable parameters.
        method_state: what the method keeps from step to step.
        data: fingerprint of the task's examples.
        averaged: the average of the weights, where one is kept.
        step: steps taken, or lost.
        lost_steps: steps that a killed process may have released but that are not in the weights.
        noise_draws: number of steps at which noise was drawn.
        examples: number of examples processed.
        wall_s: seconds, over all processes of the run.
        drawn, clipped, nonfinite, loss: sums since the last evaluation.
        micro_batch: examples at once, on the first rank (`dpexp.training.micro_batch`).
        judged_at: step of the last evaluation.
        last: its result, metric to value.
        right: which test examples it predicted correctly, [n] bool, by metric.
        traces: results of analyses, one per observation (`dpexp.training.observation`).
        memories: each analysis's own state.
        metrics: one line per evaluation, as in metrics.jsonl.
        past_noise: that later steps need, if noise is correlated, on the first rank.
        starts: that led to these weights, as the ledger has them, on the first rank.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    method_state: State
    data: str
    averaged: Averaged | None = None
    step: int = 0
    lost_steps: int = 0
    noise_draws: int = 0
    examples: int = 0
    wall_s: float = 0.0
    drawn: int = 0
    clipped: int = 0
    nonfinite: int = 0
    loss: float = 0.0
    micro_batch: int = 0
    judged_at: int = 0
    last: dict[str, float | None] = field(default_factory=dict)
    right: dict[str, Tensor] = field(default_factory=dict)
    traces: dict[str, list[Tensor]] = field(default_factory=dict)
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    past_noise: Past = field(default_factory=list)
    starts: str = ""

    def __post_init__(self) -> None:
        """Start without a held state."""
        self._tensors = [*self.model.parameters(), *self.model.buffers()]
        if self.averaged is not None:
            self._tensors += self.averaged.tensors()
        self._snapshot: dict[str, Any] | None = None
        self._observed: dict[str, Any] = {}
        self._marks: list[tuple[int, int]] = []

    def _progress(self) -> dict[str, Any]:
        """Return all fields but weights and optimizer, by name."""
        names = [one.name for one in fields(self)]
        return {name: getattr(self, name) for name in names if name not in APART}

    @property
    def final_model(self) -> nn.Module:
        """Return the model that is evaluated and kept: the averaged one where there is one."""
        return self.model if self.averaged is None else self.averaged.model

    def to_checkpoint(self) -> dict[str, Any]:
        """Return the checkpoint of the run."""
        position = self._progress()
        metrics = position.pop("metrics")
        saved = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": {"state": position.pop("method_state"), **position},
            "metrics": metrics,
        }
        if self.averaged is not None:
            saved["averaged"] = self.averaged.model.state_dict()
            saved["averaged_mass"] = self.averaged.mass
        return saved

    def require_complete(self, saved: Mapping[str, Any], path: Path) -> None:
        """Check that a checkpoint has every entry of this state.

        Raises:
            RecordError: if it is of former code.
        """
        if "position" not in saved:
            raise RecordError(
                f"Expected {path} to be of this code; it does not say how far the run had come. Go "
                "on with the former code, or set results."
            )
        if lacks := self.method_state.keys() - saved["position"]["state"].keys():
            raise RecordError(
                f"Expected {path} to be of this code; its method's state lacks "
                f"{', '.join(sorted(lacks))}. Go on with the former code, or set results."
            )

    def restore(self, saved: Mapping[str, Any], device: torch.device) -> None:
        """Restore the state from a checkpoint.

        Args:
            saved: from `to_checkpoint`, with tensors on the CPU.
            device: the model's.

        Raises:
            ConfigError: if the data changed since the run began.
        """
        position = dict(saved["position"])
        if position["data"] != self.data:
            raise ConfigError(OTHER_DATA)
        self.model.load_state_dict(saved["model"])
        if self.averaged is not None:
            self.averaged.model.load_state_dict(saved["averaged"])
            self.averaged.mass = saved.get("averaged_mass", 1.0)  # former code took none for lost
        self.optimizer.load_state_dict(saved["optimizer"])
        self.method_state = _moved(position.pop("state"), device)
        self.memories = _moved(position.pop("memories"), device)
        self.past_noise = _moved(position.pop("past_noise", []), device)
        self.metrics = list(saved["metrics"])
        for name, value in position.items():
            setattr(self, name, value)

    def skip_to(self, next_step: int) -> None:
        """Count the steps before `next_step` as spent and lost: they may have been released."""
        lost = next_step - self.step
        if self.averaged is not None:
            self.averaged.lose(range(self.step, next_step))
        self.step = next_step
        self.lost_steps += lost
        self.noise_draws += lost

    def after_step(self, outcome: StepOutcome) -> None:
        """Count a step whose update has been applied."""
        self.method_state, self.step = outcome.state, self.step + 1
        self.micro_batch = outcome.micro_batch
        self.past_noise = outcome.past_noise
        self.noise_draws += outcome.noise_draws
        self.examples += outcome.examples
        self.drawn += outcome.examples
        self.clipped += outcome.clipped
        self.nonfinite += outcome.nonfinite
        self.loss += outcome.loss
        self.snapshot()

    def after_evaluation(
        self, line: dict[str, Any], values: dict[str, float | None], right: dict[str, Tensor]
    ) -> None:
        """Record an evaluation and reset the sums; analyses may observe before `snapshot`.

        Args:
            line: of metrics.jsonl.
            values: metric to value.
            right: which test examples are predicted correctly, by metric.
        """
        self.drawn = self.clipped = self.nonfinite = 0
        self.loss = 0.0
        self.judged_at, self.last, self.right = line["step"], values, right
        self.metrics.append(line)

    def snapshot(self, has_observed: bool = False) -> None:
        """Keep the state as it is now, to roll back to.

        Args:
            has_observed: whether analyses have observed since, which changes their memories.
        """
        if has_observed:  # they add to it in place
            self._observed = {"traces": mapped(lambda leaf: leaf, self.traces)}
            self._observed["memories"] = copied(self.memories)
        self._snapshot = {
            **self._progress(),
            **self._observed,
            "method_state": mapped(lambda leaf: leaf, self.method_state),
            "metrics": list(self.metrics),
        }
        self._marks = marks([self._tensors, self.method_state])

    def invalidate(self) -> None:
        """Mark weights and optimizer as changing until the next `snapshot`."""
        self._snapshot = None

    def distrust(self) -> None:
        """Leave nothing to return to, once something else than the run wrote to the weights."""
        self._snapshot = None

    def roll_back(self) -> bool:
        """Return to the last snapshot; return whether weights and method's state agree with it.

        Their marks show whether something wrote into them since, e.g. a failing analysis or attack.
        """
        if self._snapshot is None or self._marks != marks(
            [self._tensors, self._snapshot["method_state"]]
        ):
            return False
        for name, value in self._snapshot.items():
            setattr(self, name, value)
        return True


def _moved(value: Any, device: torch.device) -> Any:
    return mapped(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, value)
