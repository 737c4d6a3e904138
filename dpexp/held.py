"""The last moment at which all that a checkpoint holds agreed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dpexp.states import copied, mapped, marks


class Held:
    """Holds a run's position, and knows whether the weights still agree with it.

    They do after a step and after an evaluation, and in the middle of either until an update
    begins. What else may have written into weights or the method's state, such as an analysis or an
    attack that fails, is told by their marks.
    """

    def __init__(self, position: Any, tensors: Sequence[Tensor]) -> None:
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
