"""How far a run has come, and the last moment at which all that a checkpoint holds agreed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dpexp.training.states import copied, mapped, marks
from dpexp.types import State


@dataclass
class Position:
    """How far a run has come: what a checkpoint holds besides weights and optimizer.

    Attributes:
        state: the method's.
        data: fingerprint of the task's examples.
        step: steps taken, or lost.
        lost_steps: how many of them a killed process may have released, and are not in the weights.
        noise_draws: at how many of them noise was drawn.
        examples: how many examples have gone through the model.
        wall_s: seconds, over all the times the run was taken up.
        drawn, clipped, nonfinite, loss: sums since the last evaluation.
        micro_batch: examples at once, on the first rank (`dpexp.training.micro_batch`).
        judged_at: step of the last evaluation.
        last: what it gave, metric to value.
        right: and which test examples were got right, [n] bool, by metric.
        traces: what analyses have seen, one entry an observation (`dpexp.training.observation`).
        memories: what each analysis keeps for itself.
    """

    state: State
    data: str
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
    last: dict[str, float] = field(default_factory=dict)
    right: dict[str, Tensor] = field(default_factory=dict)
    traces: dict[str, list[Tensor]] = field(default_factory=dict)
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)


class Held:
    """Holds a run's position, and knows whether the weights still agree with it.

    They do after a step and after an evaluation, and in the middle of either until an update
    begins. What else may have written into weights or the method's state, such as an analysis or an
    attack that fails, is told by their marks.
    """

    def __init__(self, position: Position, tensors: Sequence[Tensor]) -> None:
        """Take the position, whose fields change as the run goes on, and the model's tensors."""
        self._at, self._tensors = position, list(tensors)
        self._fields: dict[str, Any] | None = None
        self._seen: dict[str, Any] = {}
        self._marks: list[tuple[int, int]] = []

    def hold(self, has_observed: bool = False) -> None:
        """Hold the position as it is now.

        Args:
            has_observed: whether analyses have looked since, so that what they keep is another.
        """
        at = self._at
        if has_observed:  # they add to it in place
            self._seen = {"traces": mapped(lambda leaf: leaf, at.traces)}
            self._seen["memories"] = copied(at.memories)
        self._fields = {**vars(at), **self._seen, "state": mapped(lambda leaf: leaf, at.state)}
        self._marks = marks([self._tensors, at.state])

    def let_go(self) -> None:
        """Know that weights and optimizer are about to leave the position."""
        self._fields = None

    def restore(self) -> bool:
        """Set the position back to what was held; say whether the weights agree with it."""
        if self._fields is None or marks([self._tensors, self._fields["state"]]) != self._marks:
            return False
        vars(self._at).update(self._fields)
        return True
