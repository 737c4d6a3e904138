"""Callbacks of anyone's own, which look at a run as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpexp.training.parts import Parts
from dpexp.training.train_state import TrainState
from dpexp.training.unwritten import content_of, look_at
from dpexp.types import ConfigError


def call_back(parts: Parts, state: TrainState, line: Mapping[str, Any]) -> None:
    """Call a run's callbacks with a line of metrics: they may look, and change nothing.

    Args:
        parts: of the run.
        state: after the evaluation; of weights that were written to no checkpoint is saved.
        line: of metrics.jsonl.

    Raises:
        ConfigError: a callback has written to the examples, or to the weights that train.
    """
    if not parts.callbacks:
        return
    held = [*parts.task.train.tensors(), *parts.task.test.tensors()]
    models = [state.model, state.final_model]
    examples, weights = content_of(held), [look_at(model) for model in models]
    for callback in parts.callbacks:
        callback(dict(line))
        name = getattr(callback, "__name__", type(callback).__name__)
        if [look_at(model) for model in models] != weights:
            state.distrust()
            raise ConfigError(
                f"Expected callbacks that leave the weights as they are; {name} has written to "
                "those that train, and no noise covers what it wrote. Leave that out."
            )
        if content_of(held) != examples:
            raise ConfigError(
                f"Expected callbacks that leave the examples as they are; {name} has written to "
                "them, and the run would go on with others than its record names. Let it work on "
                "a copy (.clone())."
            )
